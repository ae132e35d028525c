"""How many sandboxes there are, without reading them.

Triggers append each change of a count in the transaction that causes it, so a count is the sum of
its changes and cannot disagree with the rows. ``fold`` keeps the sums short.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from sqlalchemy import ColumnElement, func, select, text

from sandkeeper.domain.states import State
from sandkeeper.store.database import Database
from sandkeeper.store.sandboxes.conditions import is_due
from sandkeeper.store.sandboxes.query import Place
from sandkeeper.store.tables.sandboxes import SANDBOX_CHANGES, SANDBOX_COUNTS, SANDBOXES

FOLD_MAX: Final = 50_000
"""Changes in one transaction of ``fold``. Higher delays other writers of SQLite; lower takes more
transactions."""
COUNTED_MAX: Final = 10_000
"""Overdue or stale sandboxes that are counted one by one; for more this number is given. Higher
makes a scrape slower when the keeper is behind."""

_T = SANDBOX_COUNTS.c
_PLACE: Final = "provider, region, state"
# One statement on PostgreSQL: it adds up exactly the rows that it removed, whatever commits beside.
_FOLD: Final = {
    True: (
        text(
            f"INSERT INTO sandbox_counts ({_PLACE}, change)"  # noqa: S608  # Our own names.
            f" SELECT {_PLACE}, sum(change) FROM sandbox_counts"
            " WHERE number <= :last GROUP BY provider, region, state HAVING sum(change) <> 0"
        ),
        text("DELETE FROM sandbox_counts WHERE number <= :last"),
    ),
    False: (
        text(
            "WITH folded AS (DELETE FROM sandbox_counts WHERE number IN"  # noqa: S608
            " (SELECT number FROM sandbox_counts WHERE number <= :last FOR UPDATE SKIP LOCKED)"
            f" RETURNING {_PLACE}, change)"
            f" INSERT INTO sandbox_counts ({_PLACE}, change)"
            f" SELECT {_PLACE}, sum(change) FROM folded"
            f" GROUP BY {_PLACE} HAVING sum(change) <> 0"
        ),
    ),
}


class CountStore:
    """Counts of sandboxes."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def by_state(self, *, silent: Sequence[Place] = ()) -> dict[State, int]:
        """Return how many sandboxes are shown in each state, zeros included."""
        statement = select(_T.provider, _T.region, _T.state, func.sum(_T.change)).group_by(
            _T.provider, _T.region, _T.state
        )
        found = dict.fromkeys(State, 0)
        async with self._database.reading() as connection:
            for provider, region, name, count in await connection.execute(statement):
                is_lost = name == State.RUNNING and (provider, region) in silent
                found[State.UNKNOWN if is_lost else State(name)] += int(count)
        return found

    async def stale(self, *, before: datetime, of: int) -> int:
        """Return how many live records were neither verified nor reported since ``before``.

        ``of`` is the number of live records: at most ten thousand or an eighth of them is counted.
        """
        seen_at = SANDBOX_CHANGES.c.seen_at
        is_stale = seen_at.is_not(None) & (seen_at < before)
        return await self._count(seen_at, is_stale, at_most=max(COUNTED_MAX, of // 8))

    async def due(self, *, now: datetime) -> int:
        """Return how many sandboxes are due and not claimed, at most ten thousand."""
        return await self._count(SANDBOXES.c.next_check_at, is_due(now), at_most=COUNTED_MAX)

    async def fold(self) -> int:
        """Replace the changes so far by their sums; return how many there were.

        Any number of replicas may do so at once, and stop at any point.
        """
        folded: int = 0
        while True:
            async with self._database.writing() as connection:
                numbers = select(_T.number).order_by(_T.number).limit(FOLD_MAX).subquery()
                found = select(func.max(numbers.c.number), func.count()).select_from(numbers)
                last, count = (await connection.execute(found)).one()
                if count > len(State):
                    for statement in _FOLD[self._database.is_sqlite]:
                        await connection.execute(statement, {"last": last})
            folded += int(count)
            if count < FOLD_MAX:
                return folded

    async def _count(
        self, column: ColumnElement[datetime], condition: ColumnElement[bool], *, at_most: int
    ) -> int:
        some = select(column).where(condition).limit(at_most).subquery()
        async with self._database.reading() as connection:
            return int(await connection.scalar(select(func.count()).select_from(some)) or 0)
