"""The audit log: entries are added and read, never changed, and pruned with the events."""

from __future__ import annotations

from typing import Any

import orjson
from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from sandkeeper.domain.access import AuditAction, AuditEntry
from sandkeeper.store.database import Database
from sandkeeper.store.tables.access import AUDIT


async def append_audit(connection: AsyncConnection, entry: AuditEntry) -> None:
    """Write an entry into the caller's transaction."""
    await connection.execute(insert(AUDIT), _row(entry))


class AuditStore:
    """Reads and writes of the audit log."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, entry: AuditEntry) -> None:
        async with self._database.writing() as connection:
            await append_audit(connection, entry)

    async def list(self, *, before: int | None = None, limit: int = 100) -> list[AuditEntry]:
        """Return entries, newest first; `before` is the last number of the previous page."""
        statement = select(AUDIT).order_by(AUDIT.c.number.desc()).limit(min(limit, 1000))
        if before is not None:
            statement = statement.where(AUDIT.c.number < before)
        async with self._database.reading() as connection:
            rows = (await connection.execute(statement)).mappings()
            return [
                AuditEntry(
                    at=row["at"],
                    actor=row["actor"],
                    action=AuditAction(row["action"]),
                    subject=row["subject"],
                    address=row["address"],
                    data=orjson.loads(row["data"]),
                    number=row["number"],
                )
                for row in rows
            ]


def _row(entry: AuditEntry) -> dict[str, Any]:
    return {
        "at": entry.at,
        "actor": entry.actor,
        "action": entry.action.value,
        "subject": entry.subject,
        "address": entry.address,
        "data": orjson.dumps(dict(entry.data)).decode(),
    }
