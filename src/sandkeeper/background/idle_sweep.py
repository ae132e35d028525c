"""The idle sweep (`sandbox-idle-enforcer`): claim every due row, decide again, and act.

Deadlines drive the sweep: each pass reports when the next row is due and the driver runs it then;
the period is only the safety net. Rows are claimed with a lease in small batches, so several
replicas share the work without a leader, and the rows of a dead replica become due again. Each row
is processed alone: one that fails or hangs uses one slot and does not delay the others. A row whose
turn comes after its lease has ended is not acted on: it is postponed, and claimed again. Before a
sandbox is paused for being idle, one check inside finds whether something works there.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from enum import StrEnum

import structlog

from sandkeeper.background.scheduler import TaskOutcome
from sandkeeper.domain.decisions.idle import Extend, Keep, Kill, Pause, Verify, decide_idle
from sandkeeper.domain.errors import ProviderUnsupportedError, SandkeeperError
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import State
from sandkeeper.services.activity.buffer import ActivityBuffer
from sandkeeper.services.activity.lost_activity import LostActivity, WrittenActivity
from sandkeeper.services.deps import Deps
from sandkeeper.services.lifecycle.claims import Claims
from sandkeeper.services.lifecycle.end_instead import EndInstead
from sandkeeper.services.lifecycle.lifecycle import Lifecycle
from sandkeeper.services.monitoring.clock_monitor import ClockMonitor
from sandkeeper.telemetry import name_owner

log = structlog.get_logger(__name__)


# How long a pass continues to claim. Longer passes hide from the operator what they do; shorter
# ones only end a little earlier and run again at once, because rows are still due.
PASS_S = 30.0

# While work is under way, check this often for rows that have become due.
SWEEP_POLL_S = 0.25

# How many rows a sweep holds for each of its concurrent acts. The check inside takes about twice as
# long as the pause that follows: with fewer the pauses wait for checks, more only hold claims.
HELD_PER_ACT = 3

# A row that is due again in the same pass waits for this long. Lower lets an act without effect
# repeat without end; higher pauses a sandbox late that was used for a moment.
AGAIN = timedelta(seconds=1)

Act = Pause | Kill | Extend | Verify


class ClocksDifferError(RuntimeError):
    """The sweep paused nothing: what is due by a wrong clock may be in use."""


class Done(StrEnum):
    """The result of one due row; the keys of the run's detail."""

    KEPT = "kept"
    PAUSED = "paused"
    ABANDONED = "abandoned"
    KILLED = "killed"
    EXTENDED = "extended"
    VERIFIED = "verified"
    FAILED = "failed"
    WORKING = "working"


class IdleSweep:
    """Pause idle sandboxes, end expired ones, extend used ones and verify uncertain ones."""

    def __init__(
        self,
        deps: Deps,
        claims: Claims,
        lifecycle: Lifecycle,
        activities: ActivityBuffer,
        lost_activity: LostActivity,
        clocks: ClockMonitor,
        *,
        find_out: Callable[[Sandbox], Awaitable[None]],
        end_instead: EndInstead,
    ) -> None:
        self._lost_activity = lost_activity
        self._claims = claims
        self._lifecycle = lifecycle
        self._activities = activities
        self._clocks = clocks
        self._find_out = find_out
        self._end_instead = end_instead
        self._clock = deps.clock
        self._metrics = deps.metrics
        self._batch = deps.settings.sweep_batch
        self._held_max = HELD_PER_ACT * deps.settings.sweep_concurrency
        self._places = asyncio.Semaphore(deps.settings.sweep_concurrency)

    async def run(self) -> TaskOutcome:
        """Run one pass over all due rows; end when nothing is due and nothing is under way.

        While the clocks differ it only finds out what is not known, and raises ClocksDifferError.
        """
        await self._clocks.check_if_unknown()
        await self._activities.flush(passive=False)
        counts: Counter[str] = Counter()
        loop = asyncio.get_running_loop()
        look_at = loop.time()
        ends = look_at + PASS_S
        under_way: set[asyncio.Task[Done]] = set()
        acted_on: set[str] = set()
        try:
            while True:
                if len(under_way) < self._held_max and look_at <= loop.time() < ends:
                    # Read first: what it says to be written is then in the rows.
                    written = await self._lost_activity.read()
                    held = await self._claims.claim_due(
                        limit=self._batch, only_uncertain=not self._clocks.may_sweep
                    )
                    if not held:
                        look_at = loop.time() + SWEEP_POLL_S
                    due = await self._release_the_kept(held, written, acted_on)
                    acted_on.update(sandbox.id for sandbox, _ in due)
                    counts[Done.KEPT.value] += len(held) - len(due)
                    under_way |= {
                        asyncio.create_task(self._handle(sandbox, decision))
                        for sandbox, decision in due
                    }
                    if len(held) == self._batch and not due:
                        continue
                if not under_way:
                    break
                finished, under_way = await asyncio.wait(
                    under_way, timeout=SWEEP_POLL_S, return_when=asyncio.FIRST_COMPLETED
                )
                counts.update(task.result().value for task in finished)
        finally:
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)
        if not self._clocks.may_sweep:
            raise ClocksDifferError(" ".join(self._clocks.describe()))
        return await self._report(counts)

    async def _release_the_kept(
        self, held: Sequence[Sandbox], written: WrittenActivity, acted_on: set[str]
    ) -> list[tuple[Sandbox, Act]]:
        """Return the rows that need an act; release the others, and those just acted on."""
        now = self._clock()
        kept: list[tuple[Sandbox, datetime | None]] = []
        due: list[tuple[Sandbox, Act]] = []
        for sandbox in held:
            if sandbox.id in acted_on:
                kept.append((sandbox, now + AGAIN))
                continue
            decision = decide_idle(sandbox, now=now)
            if isinstance(decision, Pause | Kill):
                decision = written.decide(sandbox, decision, now) or decision
            if sandbox.state is State.STARTING:
                # Due only when its creation was never answered, or was postponed to now.
                due.append((sandbox, Verify("the creation was never answered")))
            elif isinstance(decision, Keep):
                kept.append((sandbox, decision.until))
            else:
                due.append((sandbox, decision))
        if kept:
            await self._claims.release_all(kept)
        return due

    async def _report(self, counts: Counter[str]) -> TaskOutcome:
        detail = {kind.value: counts[kind.value] for kind in Done}
        checked = sum(counts.values())
        if checked:
            log.info("idle_sweep", checked=checked, **detail)
        next_at = await self._claims.find_next_due_at()
        again_in_s = None if next_at is None else (next_at - self._clock()).total_seconds()
        return TaskOutcome(detail={"checked": checked, **detail}, again_in_s=again_in_s)

    async def _handle(self, held: Sandbox, decision: Act) -> Done:
        """Carry out the decision on a claimed row; an error affects this row only."""
        name_owner(held.owner)
        try:
            if _is_for_idleness(decision):
                held = await self._lifecycle.check_work(held)
                again = decide_idle(held, now=self._clock())
                if isinstance(again, Keep):
                    await self._claims.release(held, next_check_at=again.until)
                    return Done.WORKING
            async with self._places:
                return await self._act(held, decision)
        except SandkeeperError as error:
            await self._claims.postpone(held, error)
        except Exception as error:
            log.exception("idle_sweep_failed", sandbox_id=held.id)
            await self._claims.postpone(held, error)
        if isinstance(decision, Pause):
            self._metrics.idle_pauses_failed.inc()
        return Done.FAILED

    async def _act(self, held: Sandbox, decision: Act) -> Done:
        match decision:
            case Pause():
                try:
                    return _name(await self._lifecycle.pause_idle(held, decision), Done.VERIFIED)
                except ProviderUnsupportedError as refusal:
                    ended = await self._end_instead.end(held, decision, refusal)
                    return _name(ended, Done.KILLED)
            case Kill():
                return _name(await self._lifecycle.kill_due(held, decision), Done.KILLED)
            case Extend():
                await self._lifecycle.extend_due(held, decision)
                return Done.EXTENDED
            case Verify():
                await self._find_out(held)
                return Done.VERIFIED


def _name(stopped: Sandbox | None, otherwise: Done) -> Done:
    """Return what became of a sandbox that was to be stopped; None was in use again."""
    if stopped is None:
        return Done.ABANDONED
    return Done.PAUSED if stopped.state is State.PAUSED else otherwise


def _is_for_idleness(decision: Act) -> bool:
    is_idle_end = isinstance(decision, Kill) and decision.state is State.TERMINATED
    return isinstance(decision, Pause) or is_idle_end
