"""The engine's database: one SQLite file, written by one thread.

Every call is a function of the connection, run in the order of the calls. Calls that wait
together are committed together, so fifty concurrent creations cost one or two flushes of the disk;
each caller still gets only its own result or error. A commit is on disk when the call returns.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from sandkeeper.engine.storage.disk_headroom import DiskHeadroom

T = TypeVar("T")

_log = logging.getLogger("sandkeeper.engine")

_BATCH_MAX = (
    64  # More would keep the first caller waiting for the last; fewer would flush more often.
)

# A full disk shows itself by its own code or as a write that failed.
_NO_ROOM = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}

_SCHEMA = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS sandboxes (id TEXT PRIMARY KEY, record TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS templates (id TEXT PRIMARY KEY, record TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS builds (
    id TEXT PRIMARY KEY, template_id TEXT NOT NULL, record TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS secrets (id TEXT PRIMARY KEY, record TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS volumes (id TEXT PRIMARY KEY, record TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS webhooks (id TEXT PRIMARY KEY, record TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS events (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, sandbox_id TEXT NOT NULL,
    type TEXT NOT NULL, at REAL NOT NULL, record TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS events_of_sandbox ON events (sandbox_id, seq);
CREATE INDEX IF NOT EXISTS events_at ON events (at);
CREATE TABLE IF NOT EXISTS deliveries (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, webhook_id TEXT NOT NULL, event_id TEXT NOT NULL,
    due_at REAL NOT NULL, attempts INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS deliveries_due ON deliveries (due_at);
CREATE INDEX IF NOT EXISTS deliveries_of_webhook ON deliveries (webhook_id, seq);
CREATE TABLE IF NOT EXISTS attempts (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, webhook_id TEXT NOT NULL, event_id TEXT NOT NULL,
    event_type TEXT NOT NULL, status TEXT NOT NULL, at REAL NOT NULL, record TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS attempts_of_webhook ON attempts (webhook_id, at);
"""


class _Call:
    """A queued function, and the future of its caller."""

    __slots__ = ("_future", "_loop", "error", "function", "value")

    def __init__(self, function: Callable[[sqlite3.Connection], Any]) -> None:
        self.function = function
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[Any] = self._loop.create_future()
        self.value: Any = None
        self.error: BaseException | None = None

    def run(self, connection: sqlite3.Connection) -> None:
        """Run inside a savepoint, so that a failing call rolls back only its own writes."""
        connection.execute("SAVEPOINT one")
        try:
            self.value = self.function(connection)
        except Exception as error:  # noqa: BLE001 - the caller gets it, whatever it is
            connection.execute("ROLLBACK TO one")
            self.error = error
        connection.execute("RELEASE one")

    def answer(self) -> None:
        with contextlib.suppress(RuntimeError):  # The loop may be closed already.
            self._loop.call_soon_threadsafe(self._resolve)

    def _resolve(self) -> None:
        if self._future.done():
            return
        if self.error is not None:
            self._future.set_exception(self.error)
        else:
            self._future.set_result(self.value)

    async def outcome(self) -> Any:
        return await self._future


class EngineDatabase:
    """The engine's SQLite file. Make it, `open` it, `close` it; `run` in between."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="database", daemon=True)
        self._connection: sqlite3.Connection | None = None
        self._reserve = DiskHeadroom(path.with_suffix(".reserve"))

    def open(self) -> None:
        """Open the file, made where it is missing and for its owner alone: it holds tokens."""
        self._path.touch(mode=0o600)
        connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.executescript(_SCHEMA)
        self._connection = connection
        self._reserve.allocate()
        self._thread.start()

    def close(self) -> None:
        """Finish queued calls, then close the file."""
        self._calls.put(None)
        self._thread.join()
        if self._connection is not None:
            self._connection.close()

    async def run(self, function: Callable[[sqlite3.Connection], T]) -> T:
        """Run the function in a transaction and return its value once that is on disk.

        A cancelled caller does not take its write back.
        """
        call = _Call(function)
        self._calls.put(call)
        value: T = await call.outcome()
        return value

    def _work(self) -> None:
        assert self._connection is not None
        while True:
            first = self._calls.get()
            if first is None:
                return
            batch = [first]
            ended = False
            while len(batch) < _BATCH_MAX:
                try:
                    more = self._calls.get_nowait()
                except queue.Empty:
                    break
                if more is None:
                    ended = True
                    break
                batch.append(more)
            self._commit(self._connection, batch)
            if ended:
                return

    def _commit(self, connection: sqlite3.Connection, batch: list[_Call]) -> None:
        _attempt(connection, batch)
        refused = [call for call in batch if is_full(call.error)]
        if refused and self._reserve.release():
            _log.warning("the disk is full; the engine continues with its reserved space")
            _attempt(connection, refused)
        self._reserve.allocate()
        for call in batch:
            call.answer()


def _attempt(connection: sqlite3.Connection, batch: list[_Call]) -> None:
    """Run and commit; store each call's error with the call."""
    for call in batch:
        call.error = None
    try:
        connection.execute("BEGIN IMMEDIATE")
        for call in batch:
            call.run(connection)
        connection.execute("COMMIT")
    except Exception as error:  # noqa: BLE001 - a full disk fails every call of the batch, and only them
        cause = next((call.error for call in batch if is_full(call.error)), error)
        for call in batch:
            call.error = cause
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")


def is_full(error: BaseException | None) -> bool:
    """Return whether a call failed because the disk is full."""
    return (
        isinstance(error, sqlite3.OperationalError)
        and getattr(error, "sqlite_errorcode", 0) & 0xFF in _NO_ROOM
    )
