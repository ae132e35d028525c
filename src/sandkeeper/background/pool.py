"""Keeps the warm pools at their size."""

from __future__ import annotations

from sandkeeper.background.scheduler import TaskOutcome
from sandkeeper.services.sessions.pools import Pools

NAME = "pool"


class FillPools:
    """Every replica may try; of several, one fills a pool at a time."""

    name = NAME

    def __init__(self, pools: Pools) -> None:
        self._pools = pools

    async def run(self) -> TaskOutcome:
        filled = await self._pools.fill()
        return TaskOutcome(
            detail={
                "created": filled.created,
                "retired": filled.retired,
                "failed": filled.failed,
            }
        )
