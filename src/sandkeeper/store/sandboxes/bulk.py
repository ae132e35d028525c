"""Many sandboxes at once: read in one statement, written in one transaction.

Webhooks come in bursts, and a transaction each would cost more than all the rest of the work. A
batch is all or nothing: if one row has changed since it was read, nothing is written, and the
caller processes them one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from sandkeeper.domain.errors import VersionConflictError
from sandkeeper.domain.events import Event
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.store.database import Database
from sandkeeper.store.deliveries import Delivery, DeliveryStore
from sandkeeper.store.events import EventStore
from sandkeeper.store.sandboxes.mapping import from_rows
from sandkeeper.store.sandboxes.update_sql import UPDATE, bind_row
from sandkeeper.store.tables.sandboxes import DELIVERIES, SANDBOXES

_T = SANDBOXES.c


class BulkWriter:
    """Reads and writes of many sandboxes."""

    def __init__(self, database: Database, events: EventStore, deliveries: DeliveryStore) -> None:
        self._database = database
        self._events = events
        self._deliveries = deliveries

    async def list_by_instance(self, instance_ids: Sequence[str]) -> list[Sandbox]:
        """Return the sandboxes whose current instances these are; at most a thousand."""
        statement = select(SANDBOXES).where(self._database.in_list(_T.instance_id, instance_ids))
        async with self._database.reading() as connection:
            rows = (await connection.execute(statement)).mappings()
            return await from_rows(rows, self._database.keyring)

    async def save(
        self,
        changes: Sequence[tuple[Sandbox, Sequence[Event]]],
        *,
        deliveries: Sequence[Delivery],
        now: datetime,
    ) -> list[Sandbox]:
        """Write all records, their events and the deliveries, or nothing.

        Each record carries the version that it was read with. Raise VersionConflictError if any row
        has another one. Return the records with their new versions.
        """
        saved = [one.evolve(version=one.version + 1, updated_at=now) for one, _ in changes]
        async with self._database.writing() as connection:
            await self._lock(connection, [sandbox for sandbox, _ in changes])
            if saved:
                keyring = self._database.keyring
                await connection.execute(UPDATE, [bind_row(one, keyring) for one in saved])
            if deliveries:
                await connection.execute(
                    insert(DELIVERIES), [one.render_row() for one in deliveries]
                )
                event_ids = [one.event_id for one in deliveries if one.event_id is not None]
                await self._deliveries.mark(connection, event_ids, now)
            published = [(after, events) for after, (_, events) in zip(saved, changes, strict=True)]
            await self._events.append_all(connection, published, now=now)
        if saved:
            self._events.announce_locally()
        return saved

    async def _lock(self, connection: AsyncConnection, expected: Sequence[Sandbox]) -> None:
        """Lock the rows, in one order for all writers, and check that none has changed."""
        if not expected:
            return
        statement = (
            select(_T.id, _T.version)
            .where(self._database.in_list(_T.id, [sandbox.id for sandbox in expected]))
            .order_by(_T.id)
            .with_for_update()
        )
        found = {row.id: row.version for row in await connection.execute(statement)}
        if found != {sandbox.id: sandbox.version for sandbox in expected}:
            raise VersionConflictError(sandboxes=len(expected))
