"""All rows as lines of JSON, read at one moment, and written back into an empty database.

The lines are the same for SQLite and PostgreSQL, so a backup of one can be restored into the other.
They have the columns of the schema's revision; what is newer is added by the migrations.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Final

import orjson
from sqlalchemy import Boolean, Table, delete, inspect, literal, select, text, update
from sqlalchemy.engine import Connection
from sqlalchemy.ext.asyncio import AsyncConnection

from sandkeeper.domain.owner import OwnerKind
from sandkeeper.domain.states import ENDED, State
from sandkeeper.store.database import Database
from sandkeeper.store.errors import translate_errors
from sandkeeper.store.files import HELD
from sandkeeper.store.schema import find_revision, migrate_within, read_revision
from sandkeeper.store.tables import access, capacity, costs, encryption, files, sessions, tokens
from sandkeeper.store.tables.sandboxes import FACTS, LEAKS, METADATA, REPLICAS, SANDBOXES
from sandkeeper.store.types import to_epoch_ms

DERIVED: Final = frozenset({"sandbox_changes", "sandbox_counts", "sandbox_search", "slots"})
"""Tables that triggers fill from the others."""
MOMENTARY: Final = frozenset({"waiters", "places"})
"""Tables of what is true for a moment only: who waits for a slot, and what a provider said."""
ROWS_MAX: Final = 1000
"""Rows in one piece. Higher takes more memory; lower costs more round trips."""

_MODULES: Final = (access, capacity, costs, encryption, files, sessions, tokens)
"""Every module with tables, so that `METADATA` has them all."""


def list_tables() -> list[Table]:
    """Return the tables of a backup, those that others depend on first."""
    return [table for table in METADATA.sorted_tables if table.name not in DERIVED | MOMENTARY]


async def hold_packs(database: Database, *, until: datetime, now: datetime) -> None:
    """Let no saved content be removed or rewritten until then.

    A pass that marks packs either commits before this, or sees it.
    """
    row = {"name": HELD, "value": str(to_epoch_ms(until)), "updated_at": now}
    statement = database.insert_replacing(FACTS, ["name"], ["value", "updated_at"])
    async with database.writing() as connection:
        if not database.is_sqlite:
            await connection.execute(text("LOCK TABLE file_packs IN SHARE MODE"))
        await connection.execute(statement, row)


async def release_packs(database: Database) -> None:
    """End what `hold_packs` began."""
    async with database.writing() as connection:
        await connection.execute(delete(FACTS).where(FACTS.c.name == HELD))


@asynccontextmanager
async def open_snapshot(database: Database) -> AsyncIterator[AsyncConnection]:
    """Open a read transaction that sees one moment, however long it takes."""
    with translate_errors():
        if database.is_sqlite:
            async with database.open_reader() as connection:
                await connection.exec_driver_sql("BEGIN")
                try:
                    yield connection
                finally:
                    await connection.exec_driver_sql("ROLLBACK")
            return
        async with database.engine.connect() as connection:
            await connection.execution_options(isolation_level="REPEATABLE READ")
            for name in ("statement_timeout", "idle_in_transaction_session_timeout"):
                await connection.execute(text(f"SET LOCAL {name} = 0"))
            yield connection


async def read_rows(connection: AsyncConnection, table: Table) -> AsyncIterator[tuple[int, bytes]]:
    """Yield a table as pieces of JSON lines, each with its number of rows.

    The first line has the names of the columns.
    """
    names = [column.name for column in table.columns]
    flags = [place for place, one in enumerate(table.columns) if isinstance(one.type, Boolean)]
    yield 0, orjson.dumps(names, option=orjson.OPT_APPEND_NEWLINE)
    listed = ", ".join(f'"{name}"' for name in names)
    async for found in _read_pieces(connection, table.name, listed):
        for row in found:
            for place in flags:
                row[place] = None if row[place] is None else bool(row[place])
        lines = [orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in found]
        yield len(found), b"".join(lines)


async def _read_pieces(
    connection: AsyncConnection, table: str, columns: str
) -> AsyncIterator[list[list[object]]]:
    if connection.dialect.name == "postgresql":
        rows = await connection.stream(text(f'SELECT {columns} FROM "{table}"'))  # noqa: S608  # Our own names.
        async for some in rows.partitions(ROWS_MAX):
            yield [list(row) for row in some]
        return
    # SQLite's driver holds a whole result in memory.
    after = -(2**63)
    page = text(
        f'SELECT rowid, {columns} FROM "{table}"'  # noqa: S608  # Our own names.
        f" WHERE rowid > :after ORDER BY rowid LIMIT {ROWS_MAX}"
    )
    while found := (await connection.execute(page, {"after": after})).all():
        yield [list(row[1:]) for row in found]
        after = found[-1][0]


async def find_rows(database: Database) -> str | None:
    """Return the name of a table that has rows; None in an empty database."""
    if await find_revision(database) is None:
        return None
    async with database.reading() as connection:
        existing = set(await connection.run_sync(lambda one: inspect(one).get_table_names()))
        for table in list_tables():
            if table.name not in existing:
                continue
            if await connection.scalar(select(literal(1)).select_from(table).limit(1)):
                return table.name
    return None


async def prepare_empty(connection: AsyncConnection, revision: str) -> None:
    """Give an empty database the schema of this revision, in the caller's transaction."""
    found = await connection.run_sync(read_revision)
    if found is not None and found != revision:
        await connection.run_sync(migrate_within, "downgrade", "base")
    await connection.run_sync(migrate_within, "upgrade", revision)


async def prepare_newest(connection: AsyncConnection) -> None:
    """Bring the schema up to date, in the caller's transaction."""
    await connection.run_sync(migrate_within, "upgrade", "head")


async def write_rows(
    connection: AsyncConnection, table: str, lines: AsyncIterable[list[bytes]]
) -> int:
    """Insert a table from its lines, which come in pieces, and return the number of rows."""
    names: list[str] = []
    count = 0
    async for some in lines:
        given = [orjson.loads(line) for line in some]
        if given and not names:
            names = given.pop(0)
        if not given:
            continue
        listed = ", ".join(f'"{name}"' for name in names)
        marks = ", ".join(f":c{place}" for place in range(len(names)))
        statement = text(f'INSERT INTO "{table}" ({listed}) VALUES ({marks})')  # noqa: S608  # A backup's names.
        rows = [{f"c{place}": value for place, value in enumerate(row)} for row in given]
        await connection.execute(statement, rows)
        count += len(rows)
    await connection.run_sync(_advance_sequences, table, names)
    return count


async def forget_time_away(
    connection: AsyncConnection, *, taken_at: datetime, now: datetime
) -> None:
    """Let the time since the backup count for nothing, and drop what is true no more.

    A lifetime or a session that was over by the backup's clock may have been extended since, so
    every deadline moves on by the time that has passed. A member of a warm pool may have been
    handed out since: its row goes, and the reconciler pauses its instance if it still exists. So do
    the claims, the replicas and the leaks of then.
    """
    away_ms = max(0, to_epoch_ms(now) - to_epoch_ms(taken_at))
    is_live = f"state NOT IN ({', '.join(repr(state.value) for state in sorted(ENDED))})"
    moved = ", ".join(
        f"{name} = {name} + :away"
        for name in ("last_active_at", "expires_at", "next_check_at", "leased_until")
    )
    for statement in (
        f"UPDATE sandboxes SET {moved} WHERE {is_live}",  # noqa: S608  # Our own words.
        f"UPDATE sandboxes SET state_since = state_since + :away WHERE state = '{State.PAUSED}'",  # noqa: S608  # Our own words.
        "UPDATE sessions SET idle_at = idle_at + :away, last_used_at = last_used_at + :away",
        "UPDATE leases SET until = until + :away",
    ):
        await connection.execute(text(statement), {"away": away_ms})
    in_pool = SANDBOXES.c.owner_kind == OwnerKind.POOL.value
    await connection.execute(delete(SANDBOXES).where(in_pool))
    await connection.execute(delete(LEAKS).where(LEAKS.c.removed_at.is_(None)))
    await connection.execute(delete(REPLICAS))
    await connection.execute(delete(FACTS).where(FACTS.c.name == HELD))
    await connection.execute(
        update(SANDBOXES).values(claim_kind=None, claim_holder=None, claim_until=None)
    )


def _advance_sequences(connection: Connection, table: str, names: list[str]) -> None:
    """Let PostgreSQL number new rows after the restored ones; SQLite does it by itself."""
    if connection.dialect.name != "postgresql":
        return
    for name in names:
        sequence = connection.scalar(
            text("SELECT pg_get_serial_sequence(:table, :name)"), {"table": table, "name": name}
        )
        if sequence is not None:
            connection.execute(
                text(f'SELECT setval(:sequence, max("{name}")) FROM "{table}"'),  # noqa: S608  # A backup's names.
                {"sequence": sequence},
            )
