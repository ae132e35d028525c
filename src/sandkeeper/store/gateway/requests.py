"""The last requests of each preview: a ring of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from sqlalchemy import delete, insert, select

from sandkeeper.domain.gateway.links import PreviewRequest
from sandkeeper.store.database import Database
from sandkeeper.store.tables.gateway import PREVIEW_REQUESTS

_R = PREVIEW_REQUESTS.c
KEPT: Final = 200
"""Requests kept of each sandbox. Higher makes every flush delete more slowly."""


class PreviewRequestStore:
    """Reads and writes of the table of requests."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def append(self, requests: Sequence[PreviewRequest]) -> None:
        """Write these, and remove what is older than the last `KEPT` of their sandboxes."""
        rows = [asdict(one) for one in requests]
        for row in rows:
            del row["number"]
        async with self._database.writing() as connection:
            await connection.execute(insert(PREVIEW_REQUESTS), rows)
            for sandbox_id in {one.sandbox_id for one in requests}:
                newest = select(_R.number).where(_R.sandbox_id == sandbox_id)
                oldest_kept = newest.order_by(_R.number.desc()).offset(KEPT - 1).limit(1)
                statement = delete(PREVIEW_REQUESTS).where(
                    _R.sandbox_id == sandbox_id, _R.number < oldest_kept.scalar_subquery()
                )
                await connection.execute(statement)

    async def list(self, sandbox_id: str, *, limit: int = KEPT) -> list[PreviewRequest]:
        """Return the sandbox's last requests, newest first."""
        statement = (
            select(PREVIEW_REQUESTS)
            .where(_R.sandbox_id == sandbox_id)
            .order_by(_R.number.desc())
            .limit(limit)
        )
        async with self._database.reading() as connection:
            found = (await connection.execute(statement)).mappings()
            return [PreviewRequest(**row) for row in found]
