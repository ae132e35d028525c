"""Activity that was answered with 202 and perhaps not written: it must not cost a running sandbox.

Activity is written within a second, and a process may die in that second. A heartbeat is sent after
a flush, so it says: what this replica received before is written. So an idle pause waits until
every other replica has sent a heartbeat after the sandbox became idle; and when a replica has died,
nothing is paused before one idle period has passed since.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sandkeeper.domain.decisions.idle import Keep, Kill, Pause, compute_threshold_s
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import State
from sandkeeper.services.deps import Deps

NAME = "activity.lost_at"

# A pause that waits for another replica's heartbeat is decided again after this time.
LOOK_AGAIN_S = 1.0


@dataclass(frozen=True, slots=True)
class WrittenActivity:
    """Until when all activity is written, and the last moment at which some may have been lost."""

    written_until: datetime | None
    lost_at: datetime | None

    def decide(self, sandbox: Sandbox, decision: Pause | Kill, now: datetime) -> Keep | None:
        """Return until when to wait, if activity may be missing that forbids this decision."""
        if isinstance(decision, Kill) and decision.state is not State.TERMINATED:
            return None  # Its lifetime is over, whether it is used or not.
        if self.written_until is not None and self.written_until < decision.due_at:
            again_at = now + timedelta(seconds=LOOK_AGAIN_S)
            return Keep(again_at, "another replica may have activity that is not written yet")
        if self.lost_at is None or sandbox.active_at >= self.lost_at:
            return None
        until = self.lost_at + timedelta(seconds=compute_threshold_s(sandbox) or 0.0)
        return Keep(until, "a replica died and may have lost activity") if now < until else None


class LostActivity:
    """What the replicas of this keeper have written, and when one of them died."""

    def __init__(self, deps: Deps) -> None:
        self._store = deps.store
        self._replica = deps.replica
        self._clock = deps.clock

    async def note(self, at: datetime) -> None:
        """Note that a replica died, at this moment at the latest."""
        known = await self._find_lost_at()
        if known is None or known < at:
            await self._store.key_values.put(NAME, at.timestamp(), now=self._clock())

    async def read(self) -> WrittenActivity:
        """Return what is known now."""
        beats = await self._store.replicas.list()
        others = [beat.beat_at for replica, beat in beats.items() if replica != self._replica]
        return WrittenActivity(min(others, default=None), await self._find_lost_at())

    async def _find_lost_at(self) -> datetime | None:
        found = await self._store.key_values.find(NAME)
        return None if found is None else datetime.fromtimestamp(found, UTC)
