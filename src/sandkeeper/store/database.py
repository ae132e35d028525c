"""Connections and transactions, and where the two databases differ.

SQLite: write-ahead log, and every write transaction begins IMMEDIATE, because the default mode
reads first and silently loses updates. Writers of this process queue on a lock instead of polling
the file; other processes wait by ``busy_timeout``. PostgreSQL: a pool of asyncpg connections.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from sqlalchemy import event, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, IntegrityError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from sandkeeper.domain.errors import SettingsError, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from sqlalchemy import Executable, Table
    from sqlalchemy.engine import URL, Connection
    from sqlalchemy.engine.interfaces import DBAPIConnection
    from sqlalchemy.pool import ConnectionPoolEntry

_READ: Final = "sandkeeper_read"
_EVENT_ORDER_LOCK: Final = 0x5A4D_0001
"""Taken on PostgreSQL before log rows are numbered, so that numbers become visible in order."""

BUSY_TIMEOUT_MS: Final = 30_000
POOL_SIZE: Final = 8


def parse_url(url: str) -> URL:
    """Gives the URL its async driver; a plain path is an SQLite file."""
    parsed = make_url(url if "://" in url else f"sqlite:///{url}")
    name = parsed.get_backend_name()
    if name == "sqlite":
        return parsed.set(drivername="sqlite+aiosqlite")
    if name in ("postgresql", "postgres"):
        return parsed.set(drivername="postgresql+asyncpg")
    raise SettingsError(f"The database {name!r} is not supported.", database=name)


class Database:
    """One engine, read and write transactions on it, and errors in our own words."""

    def __init__(self, url: str) -> None:
        self.url = parse_url(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self.engine: AsyncEngine = self._open_engine()
        self._writer = asyncio.Lock()

    def _open_engine(self) -> AsyncEngine:
        if not self.is_sqlite:
            return create_async_engine(self.url, pool_size=POOL_SIZE, max_overflow=POOL_SIZE)
        engine = create_async_engine(self.url, pool_size=POOL_SIZE, max_overflow=0)
        event.listen(engine.sync_engine, "connect", _prepare_sqlite)
        event.listen(engine.sync_engine, "begin", _begin_sqlite)
        return engine

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncConnection]:
        """A connection for reads; on SQLite it never waits for a writer."""
        with _own_words():
            async with self.engine.connect() as connection:
                yield await connection.execution_options(**{_READ: True})

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[AsyncConnection]:
        """A transaction: all of it is committed at the end, or nothing."""
        with _own_words():
            if not self.is_sqlite:
                async with self.engine.begin() as connection:
                    yield connection
                return
            async with self._writer, self.engine.connect() as connection:
                await connection.execution_options(**{_READ: False})
                async with connection.begin():
                    yield connection

    async def order_log(self, connection: AsyncConnection) -> None:
        """Makes this transaction the only one that numbers log rows until it ends.

        To be called last, after all row changes: whoever waits here holds its rows already, and
        whoever holds this lock waits for no row any more, so that no deadlock is possible.
        """
        if not self.is_sqlite:
            await connection.execute(
                text("SELECT pg_advisory_xact_lock(:key)"), {"key": _EVENT_ORDER_LOCK}
            )

    def insert_ignoring(self, table: Table, conflict: Sequence[str]) -> Executable:
        """An insert that leaves a row alone which is there already."""
        kind = sqlite.insert if self.is_sqlite else postgresql.insert
        return kind(table).on_conflict_do_nothing(index_elements=list(conflict))

    def insert_replacing(
        self, table: Table, conflict: Sequence[str], replaced: Sequence[str]
    ) -> Executable:
        """An insert that gives the named columns of an existing row their new values."""
        statement = sqlite.insert(table) if self.is_sqlite else postgresql.insert(table)
        return statement.on_conflict_do_update(
            index_elements=list(conflict),
            set_={name: statement.excluded[name] for name in replaced},
        )

    async def close(self) -> None:
        """Closes every connection."""
        await self.engine.dispose()


def _prepare_sqlite(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
    # The driver must not begin transactions by itself: _begin_sqlite does, in the right mode.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    reads = connection.get_execution_options().get(_READ, False)
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")


class _own_words:  # noqa: N801  # Reads as a statement: ``with _own_words():``.
    """Turns a lost database or transaction into StoreUnavailableError; broken constraints pass."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, IntegrityError):
            return
        if isinstance(error, OperationalError | InterfaceError | PoolTimeoutError | OSError):
            raise StoreUnavailableError(detail=type(error).__name__) from error
        if isinstance(error, DBAPIError) and (error.connection_invalidated or _was_victim(error)):
            raise StoreUnavailableError(detail=type(error).__name__) from error


def _was_victim(error: DBAPIError) -> bool:
    """True when PostgreSQL gave this transaction up to let another one pass: a retry succeeds."""
    return getattr(error.orig, "sqlstate", None) in ("40001", "40P01")
