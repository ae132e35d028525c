"""Takes up what a crash interrupted: wakes and rebuilds whose driver is no more."""

from __future__ import annotations

from sandkeeper.background.scheduler import TaskOutcome
from sandkeeper.services.jobs.jobs import Jobs
from sandkeeper.services.wake.wakes import Wakes


class WakeDriver:
    """One pass over the abandoned; each is driven on beside the pass."""

    name = "wake-driver"

    def __init__(self, wakes: Wakes, jobs: Jobs) -> None:
        self._wakes = wakes
        self._jobs = jobs

    async def run(self) -> TaskOutcome:
        """Take up what is due."""
        wakes = await self._wakes.resume_interrupted()
        rebuilds = await self._jobs.resume_interrupted()
        return TaskOutcome(detail={"wakes": wakes, "rebuilds": rebuilds})
