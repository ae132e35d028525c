"""A connection to SQLite that goes to its thread once for each statement.

The driver's own cursor goes there to be made, to execute, to fetch and to be closed. Each way costs
more than most of our statements do, and SQLAlchemy reads every result to its end anyway.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import aiosqlite


class Result(NamedTuple):
    """What a statement left, read to its end."""

    description: Any = None
    rowcount: int = -1
    lastrowid: int | None = None
    rows: list[Any] = []  # noqa: RUF012  # The default of a cursor that has not executed.


class BufferedCursor:
    """A cursor that holds its whole result. Closing it costs nothing."""

    arraysize = 1

    def __init__(self, connection: BufferedConnection) -> None:
        self._connection = connection
        self._result = Result()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        pass

    @property
    def description(self) -> Any:
        return self._result.description

    @property
    def rowcount(self) -> int:
        return self._result.rowcount

    @property
    def lastrowid(self) -> int | None:
        return self._result.lastrowid

    async def execute(self, statement: str, parameters: Any = ()) -> Self:
        self._result = await self._connection.run(sqlite3.Cursor.execute, statement, parameters)
        return self

    async def executemany(self, statement: str, parameters: Sequence[Any]) -> Self:
        self._result = await self._connection.run(sqlite3.Cursor.executemany, statement, parameters)
        return self

    async def fetchall(self) -> list[Any]:
        return self._result.rows

    async def close(self) -> None:
        """Keep what SQLAlchemy still reads, such as the number of rows."""


class BufferedConnection(aiosqlite.Connection):
    """A connection whose transactions begin with their first statement, on the same way."""

    def __init__(self, connector: Any) -> None:
        super().__init__(connector, iter_chunk_size=64)
        self._is_to_begin = False
        self._may_be_open = False

    def begin(self) -> None:
        """Begin a transaction in IMMEDIATE mode before the next statement."""
        self._is_to_begin = True

    def cursor(self) -> BufferedCursor:  # type: ignore[override]  # All that SQLAlchemy needs of it.
        return BufferedCursor(self)

    async def run(self, execute: Any, statement: str, parameters: Any) -> Result:
        """Return the whole result of one statement."""
        begins, self._is_to_begin = self._is_to_begin, False
        self._may_be_open |= begins
        work = partial(self._run, execute, statement, parameters, begins=begins)
        result: Result = await self._execute(work)  # type: ignore[no-untyped-call]  # It has none.
        return result

    async def commit(self) -> None:
        await self._end(self._conn.commit)

    async def rollback(self) -> None:
        await self._end(self._conn.rollback)

    async def _end(self, end: Any) -> None:
        self._is_to_begin = False
        if self._may_be_open:
            await self._execute(end)  # type: ignore[no-untyped-call]  # It has no types.
            # Not if the caller was cancelled while it waited: then it rolls back.
            self._may_be_open = False

    def _run(self, execute: Any, statement: str, parameters: Any, *, begins: bool) -> Result:
        cursor = self._conn.cursor()
        try:
            if begins:
                cursor.execute("BEGIN IMMEDIATE")
            execute(cursor, statement, parameters)
            rows = cursor.fetchall() if cursor.description else []
            return Result(cursor.description, cursor.rowcount, cursor.lastrowid, rows)
        finally:
            cursor.close()


def connect_sqlite(database: str | Path, **given: Any) -> BufferedConnection:
    """Return a connection that is not open yet, as the driver's own function does."""
    return BufferedConnection(partial(sqlite3.connect, database, **given))
