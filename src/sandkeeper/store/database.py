"""Connections and transactions, and where the two databases differ.

SQLite: write-ahead log, and every write transaction begins IMMEDIATE, because the default mode
reads first and silently loses updates. Writers of this process queue on a lock instead of polling
the file; other processes wait by ``busy_timeout``. PostgreSQL: a pool of asyncpg connections, with
limits on both sides: the server ends the transaction of a client that stands still, and the client
gives up on a server that does.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
import threading
import time
import weakref
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import parse_qs, urlsplit

import asyncpg  # type: ignore[import-untyped]  # It ships no types.
import orjson
from sqlalchemy import (
    ColumnElement,
    Executable,
    String,
    Table,
    any_,
    event,
    func,
    literal,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, Connection, make_url
from sqlalchemy.engine.interfaces import AdaptedConnection, DBAPIConnection, ExceptionContext
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry, QueuePool

from sandkeeper.common.private_files import FILE_MODE, restrict_file
from sandkeeper.domain.errors import InvalidSettingsError, StoreUnavailableError
from sandkeeper.encryption.keyring import Keyring
from sandkeeper.store.errors import DISK_FULL, READ_ONLY, translate_errors
from sandkeeper.store.sqlite.connection import BufferedConnection, connect_sqlite
from sandkeeper.store.sqlite.file import SqliteFile

STATEMENT_S: Final = 5.0
"""PostgreSQL ends a longer statement. Higher makes callers wait; lower fails on a busy machine."""
LOCK_S: Final = 3.0
"""PostgreSQL ends a statement that waits longer for another transaction's row."""
IDLE_S: Final = 1.5
"""PostgreSQL ends a transaction whose client sends nothing for this long, so that a replica that
stands still holds its rows only for a moment. Lower would also hit a busy event loop.
"""
CONNECT_S: Final = 3.0
TRANSACTION_S: Final = 6.0
"""After this time the client gives up, whatever the server does."""
_KEEPALIVE_S: Final = 5
FULL_SHOWN_S: Final = 10.0
"""How long after a write that found the disk full this is said."""

BUSY_TIMEOUT_MS: Final = 30_000
WORKER_END_S: Final = 5.0
"""How long ``close`` waits for one of SQLite's threads, whose statement cannot be cancelled."""
POOL_SIZE: Final = 16
"""The number of connections, unless the settings name another. They stay open: opening one to
PostgreSQL costs ten milliseconds of the event loop's time, and each connection prepares its own
statements. Higher lets more background work run at once, between two requests; lower makes requests
wait for a connection.
"""


TLS_FILES: Final = ("sslrootcert", "sslcert", "sslkey", "sslcrl")


_POOLER: Final = re.compile(r"[?&]pgbouncer=(true|false)(?=&|$)")
_REFUSED_PARAMETER: Final = "unsupported startup parameter"


def split_pooler(url: str) -> tuple[str, bool]:
    """Return a PostgreSQL URL without `pgbouncer=true`, and whether it said so."""
    found = _POOLER.search(url)
    if found is None:
        return url, False
    head, rest = url[: found.start()], url[found.end() :]
    joined = head + (f"?{rest[1:]}" if rest and "?" not in head else rest)
    return joined, found[1] == "true"


def parse_url(url: str) -> URL:
    """Return the database's URL with its async driver; a plain path is an SQLite file.

    Of a PostgreSQL URL only the kind is read here: the driver reads the rest as libpq does, with
    `sslmode`, `application_name`, `options`, `target_session_attrs` and several hosts.
    """
    scheme = url.partition("://")[0] if "://" in url else "sqlite"
    name = scheme.partition("+")[0]
    if name in ("postgresql", "postgres"):
        _check_files(url)
        return URL.create("postgresql+asyncpg")
    if name != "sqlite":
        raise InvalidSettingsError(f"The database {name!r} is not supported.", database=name)
    return make_url(url if "://" in url else f"sqlite:///{url}").set(drivername="sqlite+aiosqlite")


def _check_files(url: str) -> None:
    """Name a file of the URL that is missing; the driver would only say that something is."""
    for name, values in parse_qs(urlsplit(url).query).items():
        if name in TLS_FILES and not Path(values[-1]).is_file():
            raise InvalidSettingsError(
                f"The database URL names a missing file: {name}={values[-1]}"
            )


async def connect_postgresql(url: str, *, is_pooled: bool = False) -> Any:
    """Return a connection of the driver's own, with the limits of our sessions.

    PgBouncer gives each transaction another session. So nothing is prepared that outlives one, and
    the limits are those of the role.
    """
    limits_s = {
        "statement_timeout": STATEMENT_S,
        "lock_timeout": LOCK_S,
        "idle_in_transaction_session_timeout": IDLE_S,
        "tcp_user_timeout": 2 * _KEEPALIVE_S,
    }
    keepalive = {
        "tcp_keepalives_idle": str(_KEEPALIVE_S),
        "tcp_keepalives_interval": "2",
        "tcp_keepalives_count": "3",
    }
    settings = {name: str(round(limit_s * 1000)) for name, limit_s in limits_s.items()}
    given: dict[str, Any] = (
        {"statement_cache_size": 0} if is_pooled else {"server_settings": settings | keepalive}
    )
    try:
        return await asyncpg.connect(url, timeout=CONNECT_S, **given)
    except (asyncpg.ClientConfigurationError, ssl.SSLError) as error:
        raise InvalidSettingsError(f"The database URL cannot be used: {error}") from error
    except asyncpg.PostgresError as error:
        if _REFUSED_PARAMETER not in str(error):
            raise
        raise InvalidSettingsError(
            "The database URL leads to PgBouncer: add pgbouncer=true to it."
        ) from error


class Database:
    """One engine, its read and write transactions, and its errors as our own.

    The keyring opens what is encrypted in it; it is empty until the master key was read.
    """

    def __init__(self, url: str, *, pool_size: int = POOL_SIZE) -> None:
        self.url = parse_url(url)
        plain, self.is_pooled = split_pooler(url)
        self._given_url = plain.replace("postgresql+asyncpg:", "postgresql:", 1)
        self._pool_size = pool_size
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self._workers: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        if self.is_sqlite:
            _make_private(self.url.database)
        self.engine: AsyncEngine = self._open_engine()
        self._reader = self._open_reader()
        self._writer = asyncio.Lock()
        self._file = SqliteFile(self.url) if self.is_sqlite else None
        self._write_error: str | None = None
        self._full_at = -FULL_SHOWN_S
        self.keyring = Keyring()

    def _open_engine(self) -> AsyncEngine:
        # SQLite's driver never appears to be in a transaction, because we begin transactions
        # ourselves.
        skips = not self.is_sqlite
        arguments: dict[str, Any] = (
            {} if self.is_sqlite else {"async_creator_fn": self.connect_directly}
        )
        if self.is_pooled:
            # Each statement replaces the one without a name of its session; none is left behind.
            arguments |= {
                "prepared_statement_cache_size": 0,
                "prepared_statement_name_func": lambda: "",
            }
        engine = create_async_engine(
            self.url,
            pool_size=self._pool_size,
            pool_timeout=CONNECT_S,
            max_overflow=0,
            skip_autocommit_rollback=skips,
            connect_args=arguments,
        )
        if self.is_sqlite:
            event.listen(engine.sync_engine, "do_connect", self._track_worker)
            event.listen(engine.sync_engine, "connect", _prepare_sqlite)
            event.listen(engine.sync_engine, "begin", _begin_sqlite)
        else:
            event.listen(engine.sync_engine, "handle_error", _leave_demoted_server)
        return engine

    async def connect_directly(self, *_: object, **__: object) -> Any:
        """Return a connection to PostgreSQL outside the pool."""
        return await connect_postgresql(self._given_url, is_pooled=self.is_pooled)

    def _open_reader(self) -> AsyncEngine:
        """Return the connections without transactions; SQLite sets that per connection.

        Behind PgBouncer a transaction is needed, for the statement to be prepared in its session.
        """
        if self.is_pooled:
            return self.engine
        if not self.is_sqlite:
            return self.engine.execution_options(isolation_level="AUTOCOMMIT")
        reader = create_async_engine(
            self.url,
            pool_size=self._pool_size,
            max_overflow=0,
            isolation_level="AUTOCOMMIT",
            skip_autocommit_rollback=True,
        )
        event.listen(reader.sync_engine, "do_connect", self._track_worker)
        event.listen(reader.sync_engine, "connect", _prepare_sqlite)
        return reader

    def _track_worker(
        self, _dialect: object, _entry: object, _args: object, parameters: dict[str, Any]
    ) -> None:
        """Make SQLite's driver connect through us, to know the thread of each connection."""

        def connect(*args: Any, **given: Any) -> BufferedConnection:
            connection = connect_sqlite(*args, **given)
            thread = connection._thread
            thread.daemon = True
            self._workers.add(thread)
            return connection

        parameters["async_creator_fn"] = connect

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncConnection]:
        """Open a connection for one read; on SQLite it never waits for a writer.

        It is not a transaction, because begin and commit would each cost as much as the statement.
        So a second statement may see a later state than the first.
        """
        with translate_errors():
            async with self._limit(), self._reader.connect() as connection:
                yield connection

    def open_reader(self) -> AsyncConnection:
        """Return a connection without a transaction and without our limits, to be opened."""
        return self._reader.connect()

    @asynccontextmanager
    async def writing(self, *, is_limited: bool = True) -> AsyncIterator[AsyncConnection]:
        """Open a transaction: all of it is committed at the end, or nothing.

        Only a migration may take longer than the limits.
        """
        try:
            with translate_errors():
                if self._file is not None:
                    self._file.check()
                    async with self._writer, self.engine.begin() as connection:
                        yield connection
                else:
                    async with self._limit(is_limited), self.engine.begin() as connection:
                        yield connection
        except StoreUnavailableError as error:
            self._write_error = error.message
            if error.message == DISK_FULL:
                self._full_at = time.monotonic()
            raise
        self._write_error = None

    @property
    def write_error(self) -> str | None:
        """Return why the last write failed; None if it succeeded.

        On a full disk small writes still succeed now and then, so that is said for a while.
        """
        if time.monotonic() - self._full_at < FULL_SHOWN_S:
            return DISK_FULL
        return self._write_error

    def _limit(self, is_limited: bool = True) -> asyncio.Timeout:
        """Return the client's limit; a statement of SQLite cannot be cancelled and has none."""
        return asyncio.timeout(TRANSACTION_S if is_limited and not self.is_sqlite else None)

    def in_list(self, column: ColumnElement[str], values: Collection[str]) -> ColumnElement[bool]:
        """Return a condition that is true where the column has one of these values.

        They are bound as one value, however many there are. A statement with a placeholder for each
        would be built, and prepared by PostgreSQL, again for every different number of values.
        """
        if self.is_sqlite:
            given = func.json_each(orjson.dumps(list(values)).decode()).table_valued("value")
            return column.in_(select(given.c.value))
        return column == any_(literal(list(values), postgresql.ARRAY(String)))

    def insert_ignoring(self, table: Table, conflict: Sequence[str]) -> Executable:
        """Return an insert that leaves an existing row unchanged."""
        kind = sqlite.insert if self.is_sqlite else postgresql.insert
        return kind(table).on_conflict_do_nothing(index_elements=list(conflict))

    def insert_replacing(
        self, table: Table, conflict: Sequence[str], replaced: Sequence[str]
    ) -> Executable:
        """Return an insert that replaces the named columns of an existing row."""
        statement = sqlite.insert(table) if self.is_sqlite else postgresql.insert(table)
        return statement.on_conflict_do_update(
            index_elements=list(conflict),
            set_={name: statement.excluded[name] for name in replaced},
        )

    def insert_adding(self, table: Table, conflict: Sequence[str], added: str) -> Executable:
        """Return an insert that adds to the named column of an existing row."""
        statement = sqlite.insert(table) if self.is_sqlite else postgresql.insert(table)
        return statement.on_conflict_do_update(
            index_elements=list(conflict),
            set_={added: table.c[added] + statement.excluded[added]},
        )

    def count_connections(self) -> tuple[int, int]:
        """Return how many connections are in use, and how many are open and idle."""
        pools = {id(pool): pool for pool in (self.engine.pool, self._reader.pool)}.values()
        sized = [pool for pool in pools if isinstance(pool, QueuePool)]
        return sum(pool.checkedout() for pool in sized), sum(pool.checkedin() for pool in sized)

    async def close(self) -> None:
        """Close every connection, and wait for SQLite's threads.

        The thread of a connection whose caller was cancelled still runs. It reports to the event
        loop when it is done, so the loop must not be closed before that.
        """
        await self._reader.dispose()
        await self.engine.dispose()
        for worker in [one for one in self._workers if one.is_alive()]:
            await asyncio.to_thread(worker.join, WORKER_END_S)


def _leave_demoted_server(context: ExceptionContext) -> None:
    """Drop a connection to a server that became a standby, so that the next one finds the primary.

    The URL names several hosts then, with `target_session_attrs=read-write`.
    """
    if getattr(context.original_exception, "sqlstate", None) == READ_ONLY:
        context.is_disconnect = True


def _make_private(database: str | None) -> None:
    """Create the file for its owner only; SQLite gives its log the same mode."""
    if not database or database == ":memory:" or database.startswith("file:"):
        return
    path = Path(database)
    with contextlib.suppress(OSError):  # A folder that is missing is reported when connecting.
        path.touch(mode=FILE_MODE)
        for name in (database, f"{database}-wal", f"{database}-shm"):
            restrict_file(Path(name))


def _prepare_sqlite(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
    # The driver must not begin transactions by itself: _begin_sqlite does, in the right mode.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    adapted = cast("AdaptedConnection", connection.connection.dbapi_connection)
    cast("BufferedConnection", adapted.driver_connection).begin()
