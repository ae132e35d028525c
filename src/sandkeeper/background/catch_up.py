"""The background task that reads the provider's event log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandkeeper.background.scheduler import Outcome

if TYPE_CHECKING:
    from sandkeeper.services.observe.event_polling import CatchUp


class CatchUpTask:
    """One pass over every region's log."""

    name = "catch-up"

    def __init__(self, catch_up: CatchUp) -> None:
        self._catch_up = catch_up

    async def run(self) -> Outcome:
        reports = await self._catch_up.run()
        return Outcome(
            {
                "read": sum(report.read for report in reports),
                "changed": sum(report.changed for report in reports),
                "unsupported": sum(not report.supported for report in reports),
            }
        )
