"""Closes the sessions that nobody has used for too long."""

from __future__ import annotations

from sandkeeper.background.scheduler import TaskOutcome
from sandkeeper.services.sessions.cleanup import SessionCleaner

NAME = "session-cleanup"


class SessionCleanup:
    """Any replica may do it: a session is closed once, however many try."""

    name = NAME

    def __init__(self, closing: SessionCleaner) -> None:
        self._closing = closing

    async def run(self) -> TaskOutcome:
        cleaned = await self._closing.clean_up()
        return TaskOutcome(
            detail={"checked": cleaned.checked, "closed": cleaned.closed, "kept": cleaned.kept}
        )
