"""Received webhook deliveries, and the ids of the provider's events that were absorbed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, Final

from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from sandkeeper.store.cooperative import yielding
from sandkeeper.store.database import Database
from sandkeeper.store.tables.sandboxes import DELIVERIES, SEEN_EVENTS


@dataclass(frozen=True, slots=True)
class Delivery:
    """One webhook call. ``outcome`` is the receiver's: applied, older, duplicate, refused."""

    received_at: datetime
    outcome: str
    delivery_id: str | None = None
    event_id: str | None = None
    type: str | None = None
    instance_id: str | None = None
    event_at: datetime | None = None
    detail: str = ""
    number: int = field(default=0, compare=False)
    """Its position in the inbox, assigned by the database."""

    def render_row(self) -> dict[str, Any]:
        """Return the columns to write."""
        return {name: getattr(self, name) for name in _WRITTEN}


_WRITTEN: Final = tuple(item.name for item in fields(Delivery) if item.name != "number")


class DeliveryStore:
    """The webhook inbox, and the stored event ids that make a repeated event a duplicate."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def record(self, delivery: Delivery) -> None:
        """Write a delivery that changed no sandbox; ``save`` writes one that did."""
        async with self._database.writing() as connection:
            await self.write(connection, delivery)

    async def write(self, connection: AsyncConnection, delivery: Delivery) -> None:
        """Write a delivery and its event id into the caller's transaction."""
        await connection.execute(insert(DELIVERIES), delivery.render_row())
        if delivery.event_id is not None:
            await self.mark(connection, [delivery.event_id], delivery.received_at)

    async def mark(
        self, connection: AsyncConnection, event_ids: Sequence[str], seen_at: datetime
    ) -> None:
        """Record events as absorbed, in the caller's transaction."""
        if event_ids:
            statement = self._database.insert_ignoring(SEEN_EVENTS, ["event_id"])
            await connection.execute(
                statement, [{"event_id": one, "seen_at": seen_at} for one in event_ids]
            )

    async def mark_seen(self, event_ids: Sequence[str], *, seen_at: datetime) -> None:
        """Record events that changed no sandbox."""
        async with self._database.writing() as connection:
            await self.mark(connection, event_ids, seen_at)

    async def find_seen(self, event_ids: Sequence[str]) -> set[str]:
        """Return which of the given events were absorbed before."""
        if not event_ids:
            return set()
        one = SEEN_EVENTS.c.event_id
        statement = select(one).where(self._database.in_list(one, event_ids))
        async with self._database.reading() as connection:
            return set((await connection.scalars(statement)).all())

    async def latest(self, *, before: int | None = None, limit: int = 100) -> list[Delivery]:
        """Return deliveries, newest first; `before` is the last number of the previous page."""
        statement = select(DELIVERIES).order_by(DELIVERIES.c.number.desc()).limit(min(limit, 1000))
        if before is not None:
            statement = statement.where(DELIVERIES.c.number < before)
        async with self._database.reading() as connection:
            rows = (await connection.execute(statement)).mappings()
            return [Delivery(**row) async for row in yielding(rows)]
