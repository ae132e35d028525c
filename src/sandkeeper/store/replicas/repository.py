"""The table of replicas, and how the work of a dead one becomes free.

A replica writes its name into everything it holds: the claims on sandboxes and the turn to fill a
pool (``replica:token``), the wakes and rebuilds it drives, the requests it answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from sqlalchemy import Column, ColumnElement, and_, delete, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from sandkeeper.store.database import Database
from sandkeeper.store.replicas.lock import ProcessLock
from sandkeeper.store.tables.sandboxes import ANSWERS, REBUILDS, REPLICAS, SANDBOXES, WAKES
from sandkeeper.store.tables.sessions import POOLS

_T = REPLICAS.c
MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class LastBeat:
    """The last sign of life of a replica. ``beats`` counts them."""

    beats: int
    beat_at: datetime
    started_at: datetime
    database_ahead: timedelta = timedelta()
    """How far the database's clock was ahead of the replica's then."""


class ReplicaStore:
    """Reads and writes of the table of replicas."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def make_lock(self) -> ProcessLock:
        """Return the lock beside the SQLite file; PostgreSQL and a database in memory have none."""
        name = self._database.url.database if self._database.is_sqlite else None
        return ProcessLock(Path(f"{name}.lock") if name and name != ":memory:" else None)

    async def beat(
        self, replica: str, *, now: datetime, database_ahead: timedelta = timedelta()
    ) -> bool:
        """Write a sign of life; return False if the replica was unknown and is now known again."""
        said = {"beat_at": now, "database_ahead_ms": round(database_ahead / MILLISECOND)}
        statement = update(REPLICAS).where(_T.id == replica).values(beats=_T.beats + 1, **said)
        async with self._database.writing() as connection:
            if (await connection.execute(statement)).rowcount:
                return True
            row = {"id": replica, "beats": 1, "started_at": now, **said}
            await connection.execute(self._database.insert_ignoring(REPLICAS, ["id"]), row)
        return False

    async def list(self) -> Mapping[str, LastBeat]:
        """Return every replica that has not stopped, dead ones included."""
        async with self._database.reading() as connection:
            rows = await connection.execute(select(REPLICAS))
            return {
                row.id: LastBeat(
                    row.beats,
                    row.beat_at,
                    row.started_at,
                    row.database_ahead_ms * MILLISECOND,
                )
                for row in rows
            }

    async def remove(self, replica: str, seen: LastBeat | None, *, now: datetime) -> Sequence[str]:
        """Remove a replica and free what it held; return the ids of the sandboxes it had claimed.

        Do nothing if it has given a sign of life since ``seen``.
        """
        gone = delete(REPLICAS).where(_T.id == replica)
        async with self._database.writing() as connection:
            if seen is not None:
                removed = await connection.execute(gone.where(_T.beats == seen.beats))
                if not removed.rowcount:
                    return []
            else:
                await connection.execute(gone)
            return await _free(connection, replica, now)

    async def remove_all(self, *, now: datetime) -> Sequence[str]:
        """Remove every replica and free all work, as ``remove`` does for one."""
        async with self._database.writing() as connection:
            await connection.execute(delete(REPLICAS))
            return await _free(connection, None, now)


async def _free(connection: AsyncConnection, replica: str | None, now: datetime) -> Sequence[str]:
    """Free what one replica holds, or all. Each sandbox is due at once: the sweep decides again."""

    def is_held(column: Column[str]) -> ColumnElement[bool]:
        if replica is None:
            return column.is_not(None)
        mine = column.startswith(f"{replica}:", autoescape=True)
        # Said once more for SQLite, which then reads only the claimed rows.
        return and_(column.is_not(None), mine)

    def is_driven(column: Column[str]) -> ColumnElement[bool]:
        return column.is_not(None) if replica is None else column == replica

    sandbox, wake, rebuild, answer = SANDBOXES.c, WAKES.c, REBUILDS.c, ANSWERS.c
    freed = await connection.scalars(
        update(SANDBOXES)
        .where(is_held(sandbox.claim_holder))
        .values(
            claim_kind=None,
            claim_holder=None,
            claim_until=None,
            next_check_at=now,
            version=sandbox.version + 1,
            updated_at=now,
        )
        .returning(sandbox.id)
    )
    sandbox_ids = freed.all()
    under_way = and_(wake.finished_at.is_(None), wake.due_at > now, is_driven(wake.driver))
    await connection.execute(update(WAKES).where(under_way).values(due_at=now))
    under_way = and_(rebuild.due_at > now, is_driven(rebuild.driver))
    await connection.execute(update(REBUILDS).where(under_way).values(due_at=now))
    await connection.execute(
        update(POOLS).where(is_held(POOLS.c.filler)).values(filler=None, filled_until=None)
    )
    unanswered = and_(answer.status.is_(None), answer.held_until > now, is_driven(answer.holder))
    await connection.execute(update(ANSWERS).where(unanswered).values(held_until=now))
    return sandbox_ids
