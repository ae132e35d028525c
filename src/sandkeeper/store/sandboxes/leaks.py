"""Instances at the provider that are no record's current one, and what happened to each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import orjson
from sqlalchemy import ColumnElement, and_, case, func, or_, select, update

from sandkeeper.store.database import Database
from sandkeeper.store.tables.sandboxes import LEAKS

_T = LEAKS.c


@dataclass(frozen=True, slots=True)
class Leak:
    """One such instance.

    ``kind`` is ``leak`` (a second instance beside the recorded one: paused, then removed),
    ``unowned`` (ours by its metadata and in no record: paused and shown, never removed) or
    ``foreign`` (not ours: never touched). ``reason`` says why it has this kind, and for a removed
    one why it was removed. ``paused_at`` is since when it waits, paused, for a decision.
    """

    instance_id: str
    provider: str
    kind: str
    first_seen_at: datetime
    last_seen_at: datetime
    region: str | None = None
    owner: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    sightings: int = 1
    reason: str = ""
    removed_at: datetime | None = None
    removed_by: str | None = None
    paused_at: datetime | None = None


class LeakStore:
    """Sightings of unknown instances."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def record(self, seen: Leak) -> Leak:
        """Count a sighting; return the leak with all of its sightings.

        Sightings of the same instant (two replicas reading one list) count once. An instance that
        had another kind before starts again: what is removed was seen as a leak each time.
        """
        async with self._database.writing() as connection:
            same = _T.instance_id == seen.instance_id
            known = (await connection.execute(select(LEAKS).where(same))).mappings().first()
            if known is None:
                await connection.execute(
                    self._database.insert_ignoring(LEAKS, ["instance_id"]), _row(seen)
                )
            elif known["kind"] != seen.kind:
                await connection.execute(update(LEAKS).where(same).values(**_row(seen)))
            elif known["last_seen_at"] < seen.last_seen_at:
                await connection.execute(
                    update(LEAKS)
                    .where(same, _T.last_seen_at < seen.last_seen_at)
                    .values(
                        last_seen_at=seen.last_seen_at,
                        sightings=_T.sightings + 1,
                        reason=seen.reason,
                    )
                )
            row = (await connection.execute(select(LEAKS).where(same))).mappings().one()
        return _from_row(row)

    async def list(self, *, since: datetime, limit: int = 1000) -> list[Leak]:
        """Return what was seen since then, oldest first, then all removed, newest first."""
        statement = (
            select(LEAKS)
            .where(or_(_T.removed_at.is_not(None), _T.last_seen_at >= since))
            .order_by(
                case((_T.removed_at.is_(None), 0), else_=1),
                _T.removed_at.desc(),
                _T.first_seen_at,
                _T.instance_id,
            )
            .limit(limit)
        )
        async with self._database.reading() as connection:
            return [_from_row(row) for row in (await connection.execute(statement)).mappings()]

    async def mark_paused(self, instance_id: str, *, at: datetime) -> None:
        """Record that the instance waits, paused, for its removal or for a decision."""
        async with self._database.writing() as connection:
            await connection.execute(
                update(LEAKS).where(_T.instance_id == instance_id).values(paused_at=at)
            )

    async def mark_removed(self, instance_id: str, *, at: datetime, by: str, reason: str) -> None:
        """Record that a leak was removed at the provider, by whom and why; the row is kept."""
        async with self._database.writing() as connection:
            await connection.execute(
                update(LEAKS)
                .where(_T.instance_id == instance_id)
                .values(removed_at=at, removed_by=by, reason=reason)
            )

    async def count_removed(self, *, since: datetime) -> int:
        """Return how many were removed since then; the hourly cap depends on it."""
        statement = select(func.count()).where(_T.removed_at >= since)
        async with self._database.reading() as connection:
            return int(await connection.scalar(statement) or 0)


def render_aged(before: datetime) -> ColumnElement[bool]:
    """Return the rows past their retention: neither seen nor removed since ``before``."""
    return and_(_T.last_seen_at < before, or_(_T.removed_at.is_(None), _T.removed_at < before))


def _row(leak: Leak) -> dict[str, Any]:
    row = {name: getattr(leak, name) for name in Leak.__slots__}
    return row | {"metadata": orjson.dumps(dict(leak.metadata)).decode()}


def _from_row(row: Mapping[Any, Any]) -> Leak:
    found = {name: row[name] for name in Leak.__slots__}
    return Leak(**found | {"metadata": orjson.loads(row["metadata"])})
