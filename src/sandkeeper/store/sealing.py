"""Values that are encrypted in the database: how many with which key, and their re-encryption."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

import orjson
from sqlalchemy import ColumnElement, and_, func, not_, or_, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from sandkeeper.encryption.errors import SecretDamagedError
from sandkeeper.encryption.keyring import PREFIX, render_prefix
from sandkeeper.store.database import Database
from sandkeeper.store.key_value import SECRETS, decode_value, encode_value
from sandkeeper.store.sandboxes.sealed_env import SealedEnv, seal_env
from sandkeeper.store.tables.files import FILE_PACKS
from sandkeeper.store.tables.sandboxes import FACTS, SANDBOXES

PLAIN: Final = ""
"""In counts, the key of what is not encrypted."""

KEY_ID_CHARACTERS: Final = 8
"""The length of a data key's id."""

_S = SANDBOXES.c
_HAS_PLAIN_ENV: Final = _S.launch.contains('"env":{"', autoescape=True)


@dataclass(frozen=True, slots=True)
class ResealStep:
    """What one step did. ``damaged`` are records whose variables do not decrypt: left alone."""

    changed: int
    damaged: tuple[str, ...]
    next_id: str | None


class SealedValues:
    """Every encrypted value of the database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def reseal(self, *, after_id: str, limit: int) -> ResealStep:
        """Encrypt values that are plain, or encrypted with an older key, with the current key.

        It looks at ``limit`` records after ``after_id``. A record that changes at the same time is
        written by the other writer, with its current key.
        """
        keyring = self._database.keyring
        other = not_(_S.env.startswith(render_prefix(keyring.current_id), autoescape=True))
        stale = (
            select(_S.id, _S.owner_kind, _S.owner_id, _S.launch, _S.env)
            .where(_S.id > after_id, or_(and_(_S.env.is_not(None), other), _HAS_PLAIN_ENV))
            .order_by(_S.id)
            .limit(limit)
        )
        async with self._database.writing() as connection:
            if self._database.is_sqlite:
                # Otherwise the plain text stays in the unused part of a page.
                await connection.execute(text("PRAGMA secure_delete=ON"))
            rows = (await connection.execute(stale)).mappings().all()
            damaged = [row["id"] for row in rows if not await self._reseal_env(connection, row)]
            secrets = await self._reseal_secrets(connection)
        is_last = len(rows) < limit
        return ResealStep(
            changed=len(rows) - len(damaged) + secrets,
            damaged=tuple(damaged),
            next_id=None if is_last else rows[-1]["id"],
        )

    async def erase_plain(self) -> None:
        """Remove from SQLite's log what was there before `reseal`; PostgreSQL has its vacuum."""
        if self._database.is_sqlite:
            async with self._database.reading() as connection:
                await connection.execute(text("PRAGMA wal_checkpoint(TRUNCATE)"))

    async def count(self) -> dict[str, Counter[str]]:
        """Return, for each kind of data, how many are encrypted with each key."""
        async with self._database.reading() as connection:
            counts = {
                "environments": await self._count(connection, _S.env, _S.env.is_not(None)),
                "secrets": Counter[str](),
                "packs": Counter[str](),
            }
            plain = select(func.count()).select_from(SANDBOXES).where(_HAS_PLAIN_ENV)
            counts["environments"][PLAIN] += int(await connection.scalar(plain) or 0)
            for _, value in await self._list_secrets(connection):
                counts["secrets"][find_key(orjson.loads(value))] += 1
            key = func.coalesce(FILE_PACKS.c.data_key, PLAIN)
            for row in await connection.execute(select(key, func.count()).group_by(key)):
                counts["packs"][row[0]] = row[1]
        return {kind: +found for kind, found in counts.items()}

    async def _count(
        self, connection: AsyncConnection, column: ColumnElement[Any], condition: Any
    ) -> Counter[str]:
        # The beginning of a sealed value names its key.
        head = func.substr(column, 1, len(PREFIX) + KEY_ID_CHARACTERS)
        statement = select(head, func.count()).where(condition).group_by(head)
        return Counter({find_key(row[0]): row[1] for row in await connection.execute(statement)})

    async def _reseal_env(self, connection: AsyncConnection, row: Any) -> bool:
        """Return False for variables that do not decrypt."""
        keyring = self._database.keyring
        owner = f"{row['owner_kind']}:{row['owner_id']}"
        launch = orjson.loads(row["launch"])
        env = launch.pop("env", {})
        if row["env"] is not None:
            env = SealedEnv(row["env"], owner, keyring)
        try:
            sealed = seal_env(env, owner, keyring)
        except SecretDamagedError:
            return False
        is_unchanged = and_(_S.launch == row["launch"], _S.env.is_not_distinct_from(row["env"]))
        await connection.execute(
            update(SANDBOXES)
            .where(_S.id == row["id"], _S.owner_id == row["owner_id"], is_unchanged)
            .values(launch=orjson.dumps(launch).decode(), env=sealed)
        )
        return True

    async def _reseal_secrets(self, connection: AsyncConnection) -> int:
        keyring = self._database.keyring
        changed = 0
        for name, value in await self._list_secrets(connection):
            if find_key(orjson.loads(value)) == keyring.current_id:
                continue
            sealed = encode_value(name, decode_value(name, value, keyring), keyring)
            await connection.execute(
                update(FACTS)
                .where(FACTS.c.name == name, FACTS.c.value == value)
                .values(value=sealed)
            )
            changed += 1
        return changed

    async def _list_secrets(self, connection: AsyncConnection) -> list[tuple[str, str]]:
        statement = select(FACTS.c.name, FACTS.c.value).where(FACTS.c.name.in_(sorted(SECRETS)))
        return [(row.name, row.value) for row in await connection.execute(statement)]


def find_key(value: object) -> str:
    """Return the id of the data key that sealed a value; PLAIN for any other value."""
    if not isinstance(value, str) or not value.startswith(PREFIX):
        return PLAIN
    return value.removeprefix(PREFIX).partition(".")[0]
