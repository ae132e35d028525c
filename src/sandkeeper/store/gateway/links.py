"""Share links: one row each until it expires, used up or revoked or not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

from sqlalchemy import insert, or_, select, update

from sandkeeper.domain.gateway.links import ShareLink
from sandkeeper.domain.owner import Owner, OwnerKind
from sandkeeper.store.database import Database
from sandkeeper.store.tables.gateway import PREVIEW_LINKS

_L = PREVIEW_LINKS.c


class ShareLinkStore:
    """Reads and writes of the table of links."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, link: ShareLink) -> None:
        row = asdict(link)
        del row["owner"]
        row |= {"owner_kind": link.owner.kind.value, "owner_id": link.owner.id}
        async with self._database.writing() as connection:
            await connection.execute(insert(PREVIEW_LINKS), row)

    async def list(self, owner: Owner, *, now: datetime, limit: int) -> list[ShareLink]:
        """Return the owner's links that are valid now, newest first."""
        statement = (
            select(PREVIEW_LINKS)
            .where(_of(owner), _L.revoked_at.is_(None), _L.expires_at > now)
            .order_by(_L.created_at.desc(), _L.id)
            .limit(limit)
        )
        async with self._database.reading() as connection:
            return [_from_row(row) for row in (await connection.execute(statement)).mappings()]

    async def use(
        self, owner: Owner, port: int | None, digest: str, *, now: datetime
    ) -> ShareLink | None:
        """Count one use and return the link; None if it is not good here, or not any more."""
        is_here = _L.port.is_(None) if port is None else _L.port == port
        statement = (
            update(PREVIEW_LINKS)
            .where(_of(owner), is_here, _L.digest == digest, _L.revoked_at.is_(None))
            .where(_L.expires_at > now, or_(_L.uses_max.is_(None), _L.uses < _L.uses_max))
            .values(uses=_L.uses + 1)
            .returning(PREVIEW_LINKS)
        )
        async with self._database.writing() as connection:
            row = (await connection.execute(statement)).mappings().first()
        return None if row is None else _from_row(row)

    async def revoke(self, owner: Owner, link_id: str, *, now: datetime) -> bool:
        """Revoke a link permanently; False if the owner has none with this id."""
        same = _of(owner) & (_L.id == link_id)
        async with self._database.writing() as connection:
            statement = update(PREVIEW_LINKS).where(same, _L.revoked_at.is_(None))
            if (await connection.execute(statement.values(revoked_at=now))).rowcount:
                return True
            return await connection.scalar(select(_L.id).where(same)) is not None


def _of(owner: Owner) -> Any:
    return (_L.owner_kind == owner.kind.value) & (_L.owner_id == owner.id)


def _from_row(row: Mapping[Any, Any]) -> ShareLink:
    values = dict(row)
    owner = Owner(OwnerKind(values.pop("owner_kind")), values.pop("owner_id"))
    return ShareLink(owner=owner, **values)
