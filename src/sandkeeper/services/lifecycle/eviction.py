"""Make room: pause what is needed least, by the same steps as the idle sweep.

A pool's member is ended instead: the pool makes another one when there is room.
"""

from __future__ import annotations

import structlog

from sandkeeper.domain.decisions.capacity import MADE_ROOM, find_use
from sandkeeper.domain.decisions.idle import Pause, find_idle_since
from sandkeeper.domain.errors import SandkeeperError
from sandkeeper.domain.observe.observation import ObservedStatus
from sandkeeper.domain.owner import SCHEDULER_ACTOR, OwnerKind
from sandkeeper.domain.sandbox import ClaimKind, Sandbox
from sandkeeper.domain.states import State
from sandkeeper.services.deps import Deps
from sandkeeper.services.lifecycle.claims import Claims
from sandkeeper.services.lifecycle.lifecycle import Lifecycle

log = structlog.get_logger(__name__)


class Eviction:
    """Pause or end what was chosen to make room, unless it is in use by now."""

    def __init__(self, deps: Deps, claims: Claims, lifecycle: Lifecycle) -> None:
        self._claims = claims
        self._lifecycle = lifecycle
        self._metrics = deps.metrics
        self._clock = deps.clock

    async def make_room(self, victim: Sandbox) -> None:
        """Stop the sandbox; if it cannot be stopped, another one is chosen."""
        outcome = "failed"
        try:
            is_pooled = victim.owner.kind is OwnerKind.POOL
            has_stopped = await (self._end(victim) if is_pooled else self._pause(victim))
            outcome = "stopped" if has_stopped else "in_use"
        except SandkeeperError as error:
            log.info("no_room_made", sandbox_id=victim.id, error=str(error))
        finally:
            self._metrics.evictions.labels(outcome).inc()

    async def _end(self, member: Sandbox) -> bool:
        after = await self._lifecycle.kill(
            member.id,
            actor=SCHEDULER_ACTOR,
            reason=MADE_ROOM,
            seen=ObservedStatus.TERMINATED,
            unless=lambda held: held.owner.kind is not OwnerKind.POOL,
        )
        return after.state.is_ended

    async def _pause(self, victim: Sandbox) -> bool:
        """Pause it, with its files captured. What began since it was chosen keeps it awake."""
        async with self._claims.hold(victim.id, ClaimKind.PAUSE, wait_s=0) as held:
            if find_use(held, now=self._clock()) is not None:
                return False
            checked = await self._lifecycle.check_work(held)
            now = self._clock()
            if find_use(checked, now=now) is not None:
                return False
            idle_s = (now - find_idle_since(checked)).total_seconds()
            reason = f"{MADE_ROOM}; it was idle for {idle_s:.0f} s"
            paused = await self._lifecycle.pause_idle(checked, Pause(now, idle_s, reason))
            return paused is not None and paused.state is not State.RUNNING
