"""Logins and client tokens: one row each until it expires, revoked or not.

A revocation changes a stamp in the same transaction. A replica that follows revocations reads the
stamp, one row by its key, and reads the revoked ids only when the stamp has changed.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import orjson
from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from sandkeeper.domain.owner import Owner, OwnerKind
from sandkeeper.domain.token import IssuedToken, TokenUse
from sandkeeper.store.database import Database
from sandkeeper.store.tables.sandboxes import FACTS
from sandkeeper.store.tables.tokens import TOKENS

_T = TOKENS.c
STAMP: Final = "tokens.revoked"


class TokenStore:
    """Reads and writes of the table of tokens."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, token: IssuedToken) -> bool:
        """Write a token; False if its id existed already."""
        statement = self._database.insert_ignoring(TOKENS, ["id"])
        async with self._database.writing() as connection:
            return bool((await connection.execute(statement, _row(token))).rowcount)

    async def list(
        self, use: TokenUse, *, now: datetime, before: int | None = None, limit: int = 100
    ) -> list[IssuedToken]:
        """Return valid tokens, newest first; `before` is the last number of the previous page."""
        statement = select(TOKENS).where(
            _T.use == use.value, _T.expires_at > now, _T.revoked_at.is_(None)
        )
        if before is not None:
            statement = statement.where(_T.number < before)
        statement = statement.order_by(_T.number.desc()).limit(min(limit, 1000))
        async with self._database.reading() as connection:
            return [_from_row(row) for row in (await connection.execute(statement)).mappings()]

    async def revoke(self, token_id: str, use: TokenUse, *, now: datetime) -> bool:
        """Revoke a token permanently; False if there is none with this id and use."""
        same = (_T.id == token_id) & (_T.use == use.value)
        async with self._database.writing() as connection:
            statement = update(TOKENS).where(same, _T.revoked_at.is_(None)).values(revoked_at=now)
            if (await connection.execute(statement)).rowcount:
                await self._change_stamp(connection, now)
                return True
            return await connection.scalar(select(_T.id).where(same)) is not None

    async def forbid(self, token: IssuedToken) -> bool:
        """Record an id that is in no row as revoked; False if it is in one."""
        statement = self._database.insert_ignoring(TOKENS, ["id"])
        async with self._database.writing() as connection:
            row = _row(token) | {"revoked_at": token.issued_at}
            if not (await connection.execute(statement, row)).rowcount:
                return False
            await self._change_stamp(connection, token.issued_at)
            return True

    async def read_stamp(self) -> str | None:
        """Return the stamp, which changes with every revocation."""
        async with self._database.reading() as connection:
            return await connection.scalar(select(FACTS.c.value).where(FACTS.c.name == STAMP))

    async def list_revoked(self, *, now: datetime) -> frozenset[str]:
        """Return the ids of revoked tokens that have not expired."""
        statement = select(_T.id).where(_T.revoked_at.is_not(None), _T.expires_at > now)
        async with self._database.reading() as connection:
            return frozenset((await connection.scalars(statement)).all())

    async def _change_stamp(self, connection: AsyncConnection, now: datetime) -> None:
        statement = self._database.insert_replacing(FACTS, ["name"], ["value", "updated_at"])
        value = orjson.dumps(secrets.token_hex(8)).decode()
        await connection.execute(statement, {"name": STAMP, "value": value, "updated_at": now})


def _row(token: IssuedToken) -> dict[str, Any]:
    return {
        "id": token.id,
        "use": token.use.value,
        "role": token.role,
        "holder": token.holder,
        "owner_kind": token.owner.kind.value if token.owner else None,
        "owner_id": token.owner.id if token.owner else None,
        "issued_at": token.issued_at,
        "expires_at": token.expires_at,
    }


def _from_row(row: Mapping[Any, Any]) -> IssuedToken:
    owner = None
    if row["owner_kind"] is not None:
        owner = Owner(OwnerKind(row["owner_kind"]), row["owner_id"])
    return IssuedToken(
        id=row["id"],
        use=TokenUse(row["use"]),
        issued_at=row["issued_at"],
        expires_at=row["expires_at"],
        role=row["role"],
        holder=row["holder"],
        owner=owner,
        number=row["number"],
    )
