"""Looks after the apps of running sandboxes at each period."""

from __future__ import annotations

from sandkeeper.background.scheduler import TaskOutcome
from sandkeeper.services.wake.app_monitor import AppMonitor


class AppWatchTask:
    """One pass of the watch."""

    name = "app-watch"

    def __init__(self, watch: AppMonitor) -> None:
        self._watch = watch

    async def run(self) -> TaskOutcome:
        """Ask a bounded number of apps."""
        return TaskOutcome(detail=await self._watch.check())
