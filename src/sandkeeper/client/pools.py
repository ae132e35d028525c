"""Warm pools: sandboxes of a template started before they are needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandkeeper.api import schemas
from sandkeeper.client.connection import HttpConnection, build_body

if TYPE_CHECKING:
    from sandkeeper.api.schemas.sessions import PoolOut


class AsyncPools:
    """Lists pools and sets their size."""

    def __init__(self, connection: HttpConnection) -> None:
        self._connection = connection

    async def list(self) -> list[PoolOut]:
        """Return all pools with size, hit rate and failures."""
        return (
            await self._connection.request(schemas.sessions.PoolList, "GET", "/api/pools")
        ).items

    async def set(self, template: str, target: int) -> PoolOut:
        """Set the number of warm sandboxes of a template; 0 empties the pool.

        A pool that stopped after failures is restarted.
        """
        body = build_body(schemas.sessions.PoolRequest, template=template, target=target)
        return await self._connection.request(
            schemas.sessions.PoolOut, "PUT", "/api/pools", body=body
        )
