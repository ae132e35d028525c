"""Writes the activity that was gathered in memory: acts about once a second, looks now and then."""

from __future__ import annotations

import time

from sandkeeper.background.scheduler import TaskOutcome
from sandkeeper.services.activity.buffer import ActivityBuffer

NAME = "flush"

# Looks are written this often. Sooner has every poll of every page cost a write; later shows their
# count later, and loses more of it in a crash.
LOOKS_S = 10.0


class Flush:
    """A failed write waits in memory for the next second."""

    name = NAME

    def __init__(self, activities: ActivityBuffer) -> None:
        self._activities = activities
        self._looks_at = time.monotonic()

    async def run(self) -> TaskOutcome:
        looks = time.monotonic() - self._looks_at >= LOOKS_S
        written = await self._activities.flush(looks=looks)
        if looks:
            self._looks_at = time.monotonic()
        return TaskOutcome(detail={"written": written})
