"""The idle sweep (`sandbox-idle-enforcer`): whatever is due is claimed, decided again and done.

Driven by deadlines: each pass says when the next row falls due and the driver runs it then; the
period is only the safety net. Rows are claimed with a lease in small batches, so that several
replicas share the work with no leader and a dead one's rows fall due again by themselves. Each row
is worked on alone: one that fails or hangs takes up one place and holds up nobody else.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from enum import StrEnum
from typing import TYPE_CHECKING

import structlog

from sandkeeper.background.driver import Outcome
from sandkeeper.domain.errors import SandkeeperError
from sandkeeper.domain.idle import Extend, Keep, Kill, Pause, Verify, decide_idle
from sandkeeper.domain.states import State

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from sandkeeper.domain.sandbox import Sandbox
    from sandkeeper.services.activities import Activities
    from sandkeeper.services.claims import Claims
    from sandkeeper.services.creation import Creation
    from sandkeeper.services.lifecycle import Lifecycle
    from sandkeeper.services.verification import Verification

log = structlog.get_logger(__name__)

NAME = "idle-sweep"

# How long a pass goes on claiming. Longer passes hide from the operator what they do; shorter ones
# only end a little earlier and are run again at once, because rows are still due.
PASS_S = 30.0

# A full house is looked at again after this time, and so is a pass with work still under way.
BREATH_S = 0.05


class Done(StrEnum):
    """What became of one due row; the keys of the run's detail."""

    KEPT = "kept"
    PAUSED = "paused"
    ABANDONED = "abandoned"
    KILLED = "killed"
    EXTENDED = "extended"
    VERIFIED = "verified"
    FAILED = "failed"


class IdleSweep:
    """Puts the idle to sleep, ends what is over, extends what is used, verifies what is unsure."""

    name = NAME

    def __init__(
        self,
        *,
        claims: Claims,
        lifecycle: Lifecycle,
        creation: Creation,
        verification: Verification,
        activities: Activities,
        clock: Callable[[], datetime],
        concurrency: int = 16,
    ) -> None:
        self._claims = claims
        self._lifecycle = lifecycle
        self._creation = creation
        self._verification = verification
        self._activities = activities
        self._clock = clock
        self._concurrency = concurrency

    async def run(self) -> Outcome:
        """One pass over all that is due; ends when nothing is due and nothing is under way."""
        await self._activities.flush()
        counts: Counter[str] = Counter()
        loop = asyncio.get_running_loop()
        ends = loop.time() + PASS_S
        under_way: set[asyncio.Task[Done]] = set()
        try:
            while True:
                free = self._concurrency - len(under_way)
                claimed: Sequence[Sandbox] = ()
                if free and loop.time() < ends:
                    claimed = await self._claims.claim_due(limit=free)
                for sandbox in claimed:
                    under_way.add(asyncio.create_task(self._settle(sandbox)))
                if not under_way:
                    break
                finished, under_way = await asyncio.wait(
                    under_way, timeout=BREATH_S, return_when=asyncio.FIRST_COMPLETED
                )
                counts.update(task.result().value for task in finished)
        finally:
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)
        return await self._report(counts)

    async def _report(self, counts: Counter[str]) -> Outcome:
        detail = {kind.value: counts[kind.value] for kind in Done}
        checked = sum(counts.values())
        if checked:
            log.info("idle_sweep", checked=checked, **detail)
        next_at = await self._claims.find_next_due_at()
        again_in_s = None if next_at is None else (next_at - self._clock()).total_seconds()
        return Outcome(detail={"checked": checked, **detail}, again_in_s=again_in_s)

    async def _settle(self, held: Sandbox) -> Done:
        """Decide on the claimed row and carry it out; an error costs this row only."""
        try:
            return await self._decide(held)
        except SandkeeperError as error:
            await self._claims.postpone(held, error)
        except Exception as error:
            log.exception("idle_sweep_failed", sandbox_id=held.id)
            await self._claims.postpone(held, error)
        return Done.FAILED

    async def _decide(self, held: Sandbox) -> Done:
        if held.state is State.STARTING:
            # Due only when its creation was never answered, or was put off to now.
            await self._creation.finish(held)
            return Done.VERIFIED
        match decide_idle(held, now=self._clock()):
            case Keep(until=until):
                await self._claims.release(held, next_check_at=until)
                return Done.KEPT
            case Pause() as decision:
                paused = await self._lifecycle.pause_idle(held, decision)
                return Done.ABANDONED if paused is None else Done.PAUSED
            case Kill() as decision:
                await self._lifecycle.kill_due(held, decision)
                return Done.KILLED
            case Extend() as decision:
                await self._lifecycle.extend_due(held, decision)
                return Done.EXTENDED
            case Verify():
                await self._verification.verify_held(held)
                return Done.VERIFIED
