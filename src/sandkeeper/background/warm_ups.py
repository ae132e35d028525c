"""Finds out what became of the warm-ups: somebody came, nobody came, or it did not come up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandkeeper.background.scheduler import Outcome

if TYPE_CHECKING:
    from sandkeeper.services.wake.prewarm import Warming


class SettleWarmUps:
    """One look at the open ones."""

    name = "warm-ups"

    def __init__(self, warming: Warming) -> None:
        self._warming = warming

    async def run(self) -> Outcome:
        """Settle what is over."""
        return Outcome(detail=dict(await self._warming.settle()))
