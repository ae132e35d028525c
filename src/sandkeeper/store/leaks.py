"""Instances at the provider that no record knows. One sighting is a rumour; two are a leak."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson
from sqlalchemy import func, select, update

from sandkeeper.store.tables import LEAKS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from sandkeeper.store.database import Database

_T = LEAKS.c


@dataclass(frozen=True, slots=True)
class Leak:
    """``kind`` is ``leak`` (ours by its metadata) or ``foreign`` (not ours: never touched)."""

    instance_id: str
    provider: str
    kind: str
    first_seen_at: datetime
    last_seen_at: datetime
    region: str | None = None
    owner: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    sightings: int = 1
    removed_at: datetime | None = None


class Leaks:
    """Sightings of unknown instances."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def sight(self, seen: Leak) -> Leak:
        """Counts a sighting; returns the leak with all of its sightings.

        Looks of the same instant (two replicas reading one list) count once.
        """
        async with self._database.writing() as connection:
            same = _T.instance_id == seen.instance_id
            known = (await connection.execute(select(LEAKS).where(same))).mappings().first()
            if known is None:
                await connection.execute(
                    self._database.insert_ignoring(LEAKS, ["instance_id"]), _row(seen)
                )
            elif known["last_seen_at"] < seen.last_seen_at:
                await connection.execute(
                    update(LEAKS)
                    .where(same, _T.last_seen_at < seen.last_seen_at)
                    .values(last_seen_at=seen.last_seen_at, sightings=_T.sightings + 1)
                )
            row = (await connection.execute(select(LEAKS).where(same))).mappings().one()
        return _from_row(row)

    async def list(self, *, since: datetime, limit: int = 1000) -> list[Leak]:
        """Leaks that are not removed and were seen since then, oldest first."""
        statement = (
            select(LEAKS)
            .where(_T.removed_at.is_(None), _T.last_seen_at >= since)
            .order_by(_T.first_seen_at)
            .limit(limit)
        )
        async with self._database.reading() as connection:
            return [_from_row(row) for row in (await connection.execute(statement)).mappings()]

    async def mark_removed(self, instance_id: str, *, at: datetime) -> None:
        """Notes that a leak was removed at the provider."""
        async with self._database.writing() as connection:
            await connection.execute(
                update(LEAKS).where(_T.instance_id == instance_id).values(removed_at=at)
            )

    async def count_removed(self, *, since: datetime) -> int:
        """How many were removed since then; the hourly cap counts on it."""
        statement = select(func.count()).where(_T.removed_at >= since)
        async with self._database.reading() as connection:
            return int(await connection.scalar(statement) or 0)


def _row(leak: Leak) -> dict[str, Any]:
    row = {name: getattr(leak, name) for name in Leak.__slots__}
    return row | {"metadata": orjson.dumps(dict(leak.metadata)).decode()}


def _from_row(row: Mapping[Any, Any]) -> Leak:
    found = {name: row[name] for name in Leak.__slots__}
    return Leak(**found | {"metadata": orjson.loads(row["metadata"])})
