"""Looks after the apps of running sandboxes at each period."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandkeeper.background.scheduler import Outcome

if TYPE_CHECKING:
    from sandkeeper.services.wake.app_monitor import AppWatch


class AppWatchTask:
    """One pass of the watch."""

    name = "app-watch"

    def __init__(self, watch: AppWatch) -> None:
        self._watch = watch

    async def run(self) -> Outcome:
        """Ask a bounded number of apps."""
        return Outcome(detail=await self._watch.look())
