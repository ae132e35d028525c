"""Writes the activity that was gathered in memory, about once a second."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandkeeper.background.driver import Outcome

if TYPE_CHECKING:
    from sandkeeper.services.activities import Activities

NAME = "flush"


class Flush:
    """A failed write waits in memory for the next second."""

    name = NAME

    def __init__(self, activities: Activities) -> None:
        self._activities = activities

    async def run(self) -> Outcome:
        return Outcome(detail={"written": await self._activities.flush()})
