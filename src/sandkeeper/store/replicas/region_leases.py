"""Which replica compares a region's records with the provider: one at a time.

A lease is valid while its pass is under way and the heartbeat of its holder lives, so a dead
holder's is free as soon as the others take it for dead. Each one has a higher term than the last;
a holder whose term is over writes nothing more.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import exists, or_, select, update

from sandkeeper.store.database import Database
from sandkeeper.store.tables.sandboxes import REGION_LEASES, REPLICAS

_T = REGION_LEASES.c

PASS_S_MAX: Final = 900.0
"""A pass that began so long ago is over, even if its holder lives. Lower than a pass takes lets two
replicas compare at once; higher waits longer for one whose end could not be written."""


@dataclass(frozen=True, slots=True)
class RegionPass:
    """The last pass over a region. `finished_at` is None while it is under way."""

    term: int
    holder: str | None
    started_at: datetime
    finished_at: datetime | None


class RegionLeaseStore:
    """Reads and writes of the leases."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def take(
        self, region: str, *, holder: str, now: datetime, others_before: datetime
    ) -> int | None:
        """Begin a pass and return its term; None if it is another replica's turn.

        That is so while a pass of a living replica is under way, or if another one has begun one
        after `others_before` that succeeded.
        """
        given = {"region": region, "term": 0, "holder": None, "started_at": now}
        is_dead = ~exists().where(REPLICAS.c.id == _T.holder)
        is_over = _T.finished_at.is_not(None) | (
            _T.started_at < now - timedelta(seconds=PASS_S_MAX)
        )
        is_free = or_(
            _T.holder.is_(None),
            is_dead,
            _T.holder == holder,
            is_over & (_T.started_at <= others_before),
        )
        statement = (
            update(REGION_LEASES)
            .where(_T.region == region, is_free)
            .values(holder=holder, term=_T.term + 1, started_at=now, finished_at=None)
            .returning(_T.term)
        )
        async with self._database.writing() as connection:
            await connection.execute(
                self._database.insert_ignoring(REGION_LEASES, ["region"]), given
            )
            term: int | None = await connection.scalar(statement)
        return term

    async def is_held(self, region: str, term: int) -> bool:
        """Return whether no later pass has begun."""
        async with self._database.reading() as connection:
            return term == await connection.scalar(select(_T.term).where(_T.region == region))

    async def finish(self, region: str, term: int, *, now: datetime, succeeded: bool) -> None:
        """End a pass. After a failure it is the turn of any replica at once."""
        ended = {"finished_at": now} if succeeded else {"finished_at": now, "holder": None}
        statement = update(REGION_LEASES).where(_T.region == region, _T.term == term)
        async with self._database.writing() as connection:
            await connection.execute(statement.values(**ended))

    async def find(self, region: str) -> RegionPass | None:
        """Return the last pass."""
        async with self._database.reading() as connection:
            found = await connection.execute(select(REGION_LEASES).where(_T.region == region))
            row = found.one_or_none()
        if row is None or row.term == 0:
            return None
        return RegionPass(row.term, row.holder, row.started_at, row.finished_at)
