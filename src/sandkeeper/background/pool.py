"""Keeps the warm pools at their size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandkeeper.background.scheduler import Outcome

if TYPE_CHECKING:
    from sandkeeper.services.sessions.pools import Pools

NAME = "pool"


class FillPools:
    """Every replica may try; of several, one fills a pool at a time."""

    name = NAME

    def __init__(self, pools: Pools) -> None:
        self._pools = pools

    async def run(self) -> Outcome:
        filled = await self._pools.fill()
        return Outcome(
            detail={
                "created": filled.created,
                "retired": filled.retired,
                "failed": filled.failed,
            }
        )
