"""API keys: one row each, with the hash of its text. Every change is audited and changes a stamp.

A replica reads the stamp, one row by its key, and reads the keys only when the stamp has changed.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import orjson
from sqlalchemy import insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from sandkeeper.domain.access import ApiKey, AuditEntry, Scope
from sandkeeper.store.access.audit import append_audit
from sandkeeper.store.database import Database
from sandkeeper.store.tables.access import API_KEYS
from sandkeeper.store.tables.sandboxes import FACTS

_K = API_KEYS.c
STAMP: Final = "keys.changed"


class ApiKeyStore:
    """Reads and writes of the table of keys."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, key: ApiKey, entry: AuditEntry) -> None:
        async with self._database.writing() as connection:
            await self._insert(connection, key, entry)

    async def replace(
        self, old_id: str, key: ApiKey, entry: AuditEntry, *, until: datetime
    ) -> None:
        """Write a key; the one that it replaces expires at `until`, unless it does so earlier."""
        later = or_(_K.expires_at.is_(None), _K.expires_at > until)
        async with self._database.writing() as connection:
            await connection.execute(
                update(API_KEYS).where(_K.id == old_id, later).values(expires_at=until)
            )
            await self._insert(connection, key, entry)

    async def _insert(self, connection: AsyncConnection, key: ApiKey, entry: AuditEntry) -> None:
        await connection.execute(insert(API_KEYS), _row(key))
        await append_audit(connection, entry)
        await self._change_stamp(connection, entry.at)

    async def revoke(self, key_id: str, entry: AuditEntry) -> bool:
        """Revoke a key permanently; False if there is none with this id."""
        async with self._database.writing() as connection:
            statement = (
                update(API_KEYS)
                .where(_K.id == key_id, _K.revoked_at.is_(None))
                .values(revoked_at=entry.at)
            )
            if (await connection.execute(statement)).rowcount:
                await append_audit(connection, entry)
                await self._change_stamp(connection, entry.at)
                return True
            return await connection.scalar(select(_K.id).where(_K.id == key_id)) is not None

    async def list_valid(self, *, now: datetime) -> list[ApiKey]:
        """Return the keys that are valid now, oldest first."""
        statement = (
            select(API_KEYS)
            .where(_K.revoked_at.is_(None), or_(_K.expires_at.is_(None), _K.expires_at > now))
            .order_by(_K.created_at, _K.id)
        )
        async with self._database.reading() as connection:
            return [_from_row(row) for row in (await connection.execute(statement)).mappings()]

    async def read_stamp(self) -> str | None:
        """Return the stamp, which changes with every change of a key."""
        async with self._database.reading() as connection:
            return await connection.scalar(select(FACTS.c.value).where(FACTS.c.name == STAMP))

    async def _change_stamp(self, connection: AsyncConnection, now: datetime) -> None:
        statement = self._database.insert_replacing(FACTS, ["name"], ["value", "updated_at"])
        value = orjson.dumps(secrets.token_hex(8)).decode()
        await connection.execute(statement, {"name": STAMP, "value": value, "updated_at": now})


def _row(key: ApiKey) -> dict[str, Any]:
    return {
        "id": key.id,
        "name": key.name,
        "scope": str(key.scope),
        "digest": key.digest,
        "created_at": key.created_at,
        "created_by": key.created_by,
        "expires_at": key.expires_at,
        "revoked_at": key.revoked_at,
    }


def _from_row(row: Mapping[Any, Any]) -> ApiKey:
    return ApiKey(**{**row, "scope": Scope.parse(row["scope"])})
