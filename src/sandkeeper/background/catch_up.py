"""The background task that reads the provider's event log."""

from __future__ import annotations

from sandkeeper.background.scheduler import TaskOutcome
from sandkeeper.services.observe.event_polling import EventPolling


class CatchUpTask:
    """One pass over every region's log."""

    name = "catch-up"

    def __init__(self, catch_up: EventPolling) -> None:
        self._catch_up = catch_up

    async def run(self) -> TaskOutcome:
        reports = await self._catch_up.run()
        return TaskOutcome(
            {
                "read": sum(report.read for report in reports),
                "changed": sum(report.changed for report in reports),
                "unsupported": sum(not report.supported for report in reports),
            }
        )
