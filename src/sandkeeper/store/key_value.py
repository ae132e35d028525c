"""Small named values that all replicas share: switches, cursors, the webhook's secret."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import orjson
from sqlalchemy import delete, select

from sandkeeper.encryption.keyring import PREFIX, Keyring
from sandkeeper.store.database import Database
from sandkeeper.store.tables.sandboxes import FACTS

SECRETS: Final = frozenset({"webhook.secret", "jobs.confirmation"})
"""The names whose values are encrypted; an older version wrote them in plain."""


class KeyValueStore:
    """JSON values by name, e.g. ``switch.enforcer``, ``cursor.e2b``, ``webhook.secret``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, name: str) -> Any | None:
        """Return the value, or None."""
        async with self._database.reading() as connection:
            value = await connection.scalar(select(FACTS.c.value).where(FACTS.c.name == name))
        return None if value is None else self._decode(name, value)

    async def list(self, prefix: str) -> dict[str, Any]:
        """Return all values whose name starts with this prefix."""
        statement = select(FACTS).where(FACTS.c.name.startswith(prefix, autoescape=True))
        async with self._database.reading() as connection:
            rows = await connection.execute(statement.order_by(FACTS.c.name))
            return {row.name: self._decode(row.name, row.value) for row in rows}

    async def put(self, name: str, value: Any, *, now: datetime) -> None:
        """Set a value."""
        statement = self._database.insert_replacing(FACTS, ["name"], ["value", "updated_at"])
        row = {"name": name, "value": self._encode(name, value), "updated_at": now}
        async with self._database.writing() as connection:
            await connection.execute(statement, row)

    async def put_new(self, name: str, value: Any, *, now: datetime) -> Any:
        """Set a value unless it exists, and return the stored one: all replicas agree on it."""
        statement = self._database.insert_ignoring(FACTS, ["name"])
        row = {"name": name, "value": self._encode(name, value), "updated_at": now}
        async with self._database.writing() as connection:
            await connection.execute(statement, row)
            held = await connection.scalar(select(FACTS.c.value).where(FACTS.c.name == name))
        assert held is not None
        return self._decode(name, held)

    async def remove(self, name: str) -> None:
        """Delete a value."""
        async with self._database.writing() as connection:
            await connection.execute(delete(FACTS).where(FACTS.c.name == name))

    def _encode(self, name: str, value: Any) -> str:
        return encode_value(name, value, self._database.keyring)

    def _decode(self, name: str, text: str) -> Any:
        return decode_value(name, text, self._database.keyring)


def encode_value(name: str, value: Any, keyring: Keyring) -> str:
    """Return a value as it is stored."""
    text = orjson.dumps(value).decode()
    if name in SECRETS:
        text = orjson.dumps(keyring.seal(text, context=f"facts.value:{name}")).decode()
    return text


def decode_value(name: str, text: str, keyring: Keyring) -> Any:
    """Return a stored value."""
    value = orjson.loads(text)
    if name in SECRETS and isinstance(value, str) and value.startswith(PREFIX):
        return orjson.loads(keyring.open(value, context=f"facts.value:{name}"))
    return value
