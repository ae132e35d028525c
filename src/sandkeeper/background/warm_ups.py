"""Finds out what became of the warm-ups: somebody came, nobody came, or it did not come up."""

from __future__ import annotations

from sandkeeper.background.scheduler import TaskOutcome
from sandkeeper.services.wake.prewarm import PrewarmService


class SettleWarmUps:
    """One look at the open ones."""

    name = "warm-ups"

    def __init__(self, warming: PrewarmService) -> None:
        self._warming = warming

    async def run(self) -> TaskOutcome:
        """Settle what is over."""
        return TaskOutcome(detail=dict(await self._warming.finish_due()))
