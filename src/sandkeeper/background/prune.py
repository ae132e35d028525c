"""Removes what is past its retention time."""

from __future__ import annotations

from sandkeeper.background.scheduler import TaskOutcome
from sandkeeper.services.monitoring.retention import RecordRetention

NAME = "prune"


class Prune:
    """Any replica may do it, and several at once remove nothing twice."""

    name = NAME

    def __init__(self, pruning: RecordRetention) -> None:
        self._pruning = pruning

    async def run(self) -> TaskOutcome:
        pruned = await self._pruning.prune()
        return TaskOutcome(
            detail={
                "sandboxes": pruned.sandboxes,
                "events": pruned.events,
                "others": pruned.others,
            }
        )
