"""Warm-ups: one row each. A sandbox has at most one open one; an index enforces that."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any, Final

from sqlalchemy import func, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from sandkeeper.domain.decisions.prewarm import HOUR, Prewarm, PrewarmOutcome, PrewarmsSpent
from sandkeeper.store.database import Database
from sandkeeper.store.tables.sandboxes import WARMUPS

_T = WARMUPS.c
_BUDGET_LOCK: Final = 0x5A4D_0003


class PrewarmStore:
    """Reads and writes of the table of warm-ups."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def begin(
        self, warm_up: Prewarm, is_allowed: Callable[[PrewarmsSpent], bool]
    ) -> PrewarmsSpent:
        """Write the warm-up if `is_allowed` accepts what is spent; return what is spent.

        Simultaneous requests are counted one after the other, on all replicas, so that a budget is
        met exactly.
        """
        async with self._database.writing() as connection:
            if not self._database.is_sqlite:
                lock = text("SELECT pg_advisory_xact_lock(:key)")
                await connection.execute(lock, {"key": _BUDGET_LOCK})
            spent = await self._count(connection, warm_up)
            if is_allowed(spent):
                await connection.execute(insert(WARMUPS).values(**asdict(warm_up)))
            return spent

    async def list_open(self, *, limit: int) -> Sequence[Prewarm]:
        """Return warm-ups whose outcome is not known yet, the oldest first."""
        statement = select(WARMUPS).where(_T.settled_at.is_(None))
        async with self._database.reading() as connection:
            rows = await connection.execute(statement.order_by(_T.started_at).limit(limit))
            return [_from_row(row) for row in rows.mappings()]

    async def finish(self, warm_up: Prewarm, outcome: PrewarmOutcome, *, now: datetime) -> bool:
        """Write the outcome; False if it was already written."""
        statement = (
            update(WARMUPS)
            .where(_T.id == warm_up.id, _T.settled_at.is_(None))
            .values(outcome=outcome.value, settled_at=now)
        )
        async with self._database.writing() as connection:
            return bool((await connection.execute(statement)).rowcount)

    async def _count(self, connection: AsyncConnection, warm_up: Prewarm) -> PrewarmsSpent:
        is_open = _T.settled_at.is_(None)
        is_recent = _T.started_at > warm_up.started_at - HOUR
        is_own = _T.sandbox_id == warm_up.sandbox_id
        counts = [
            await connection.scalar(select(func.count()).select_from(WARMUPS).where(condition))
            for condition in (is_open, is_recent, is_recent & is_own, is_open & is_own)
        ]
        at_once, last_hour, owner_last_hour, own = (int(count or 0) for count in counts)
        return PrewarmsSpent(at_once, last_hour, owner_last_hour, is_open=own > 0)


def _from_row(row: Mapping[Any, Any]) -> Prewarm:
    values = {name: row[name] for name in Prewarm.__slots__}
    outcome = values["outcome"]
    return Prewarm(**values | {"outcome": None if outcome is None else PrewarmOutcome(outcome)})
