"""Own domains of previews, by host name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import delete, select

from sandkeeper.domain.gateway.links import PreviewDomain
from sandkeeper.domain.owner import Owner, OwnerKind
from sandkeeper.store.database import Database
from sandkeeper.store.tables.gateway import PREVIEW_DOMAINS

_D = PREVIEW_DOMAINS.c


class PreviewDomainStore:
    """Reads and writes of the table of domains."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, domain: PreviewDomain) -> bool:
        """Write a domain; False if it is taken."""
        row = {
            "host": domain.host,
            "owner_kind": domain.owner.kind.value,
            "owner_id": domain.owner.id,
            "port": domain.port,
            "created_at": domain.created_at,
            "created_by": domain.created_by,
        }
        statement = self._database.insert_ignoring(PREVIEW_DOMAINS, ["host"])
        async with self._database.writing() as connection:
            return bool((await connection.execute(statement, row)).rowcount)

    async def remove(self, host: str) -> bool:
        """Remove a domain; False if there is none."""
        async with self._database.writing() as connection:
            statement = delete(PREVIEW_DOMAINS).where(_D.host == host)
            return bool((await connection.execute(statement)).rowcount)

    async def list(self, *, limit: int) -> list[PreviewDomain]:
        """Return the domains in the order of their names."""
        statement = select(PREVIEW_DOMAINS).order_by(_D.host).limit(limit)
        async with self._database.reading() as connection:
            return [_from_row(row) for row in (await connection.execute(statement)).mappings()]


def _from_row(row: Mapping[Any, Any]) -> PreviewDomain:
    owner = Owner(OwnerKind(row["owner_kind"]), row["owner_id"])
    return PreviewDomain(row["host"], owner, row["port"], row["created_at"], row["created_by"])
