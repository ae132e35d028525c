"""Small named values that all replicas share: switches, cursors, the webhook's secret."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import orjson
from sqlalchemy import delete, select

from sandkeeper.store.database import Database
from sandkeeper.store.tables.sandboxes import FACTS


class KeyValueStore:
    """JSON values by name, e.g. ``switch.enforcer``, ``cursor.e2b``, ``webhook.secret``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, name: str) -> Any | None:
        """Return the value, or None."""
        async with self._database.reading() as connection:
            value = await connection.scalar(select(FACTS.c.value).where(FACTS.c.name == name))
        return None if value is None else orjson.loads(value)

    async def list(self, prefix: str) -> dict[str, Any]:
        """Return all values whose name starts with this prefix."""
        statement = select(FACTS).where(FACTS.c.name.startswith(prefix, autoescape=True))
        async with self._database.reading() as connection:
            rows = await connection.execute(statement.order_by(FACTS.c.name))
            return {row.name: orjson.loads(row.value) for row in rows}

    async def put(self, name: str, value: Any, *, now: datetime) -> None:
        """Set a value."""
        statement = self._database.insert_replacing(FACTS, ["name"], ["value", "updated_at"])
        row = {"name": name, "value": orjson.dumps(value).decode(), "updated_at": now}
        async with self._database.writing() as connection:
            await connection.execute(statement, row)

    async def put_new(self, name: str, value: Any, *, now: datetime) -> Any:
        """Set a value unless it exists, and return the stored one: all replicas agree on it."""
        statement = self._database.insert_ignoring(FACTS, ["name"])
        row = {"name": name, "value": orjson.dumps(value).decode(), "updated_at": now}
        async with self._database.writing() as connection:
            await connection.execute(statement, row)
            held = await connection.scalar(select(FACTS.c.value).where(FACTS.c.name == name))
        assert held is not None
        return orjson.loads(held)

    async def remove(self, name: str) -> None:
        """Delete a value."""
        async with self._database.writing() as connection:
            await connection.execute(delete(FACTS).where(FACTS.c.name == name))
