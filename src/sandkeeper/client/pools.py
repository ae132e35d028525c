"""Warm pools: sandboxes of a template that run before anybody asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandkeeper.api.schemas.sessions import Pool, PoolAsked
from sandkeeper.api.schemas.sessions import Pools as PoolList
from sandkeeper.client.connection import compose

if TYPE_CHECKING:
    from sandkeeper.client.connection import Connection


class AsyncPools:
    """Lists pools and sets their size."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def list(self) -> list[Pool]:
        """Every pool with its size, luck and failures."""
        return (await self._connection.ask(PoolList, "GET", "/api/pools")).items

    async def set(self, template: str, target: int) -> Pool:
        """Wish for so many warm sandboxes of a template; 0 empties the pool.

        A pool that had stopped after failures begins anew.
        """
        asked = compose(PoolAsked, template=template, target=target)
        return await self._connection.ask(Pool, "PUT", "/api/pools", body=asked)
