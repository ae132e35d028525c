"""One wake under way: its steps, written down as they happen."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime

from sandkeeper.domain.decisions.wake import StepOutcome, Wake, WakeStatus, WakeStep
from sandkeeper.domain.errors import SandkeeperError, VersionConflictError
from sandkeeper.domain.events import Event, WakeProgressed
from sandkeeper.domain.receipt import Receipt, StepName, WakeMethod, WakeSummary
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.services.lifecycle.claims import without_claim
from sandkeeper.store import Store

OnStep = Callable[[Wake, StepName], Awaitable[None]]

RACES_MAX = 20
FINISHED = "finished"


async def nothing_on_step(_wake: Wake, _step: StepName) -> None:
    """The default listener."""


def change_nothing(record: Sandbox) -> tuple[Sandbox, Sequence[Event]]:
    """The end of a wake that leaves no more than its receipt."""
    return record, ()


@dataclass(frozen=True, slots=True)
class PendingStep:
    """A step that is about to begin, for whoever writes the record anyway: in one transaction."""

    mark: Callable[[Sandbox], Sandbox]
    event: WakeProgressed
    wake: Wake


class WakeProgress:
    """A wake that this process drives. Each step is kept in the wake, shown in the record, and
    published; `on_step` is told when a step has been written down and is about to be done.

    Every write goes to the record as it was left by the last one. Should it be older than it seems,
    it is read and written again.
    """

    def __init__(
        self,
        wake: Wake,
        *,
        store: Store,
        clock: Callable[[], datetime],
        find_usual_ms: Callable[[WakeMethod], Awaitable[int | None]],
        on_step: OnStep = nothing_on_step,
    ) -> None:
        self.wake = wake
        self._store = store
        self._clock = clock
        self._find_usual_ms = find_usual_ms
        self._on_step = on_step
        self._mark_before: WakeSummary | None = None
        self._is_marked = False
        self._record: Sandbox | None = None
        self._is_presumed = False
        self._let_go: Sandbox | None = None
        self._told: WakeStep | None = None

    @property
    def method(self) -> WakeMethod:
        """How far up the ladder this wake is."""
        return self.wake.rung or WakeMethod.NOTHING

    @property
    def receipt(self) -> Receipt:
        """What is known of the receipt so far."""
        return self.wake.receipt or Receipt(self.method)

    async def may_recreate(self) -> bool:
        """Whether it may make a new instance: by its own right, or by that of one who joined it."""
        if not self.wake.may_recreate:
            wake = await self._store.wakes.find(self.wake.id) or self.wake
            self.wake = self.wake.evolve(may_recreate=wake.may_recreate)
        return self.wake.may_recreate

    async def begin_attempt(self, attempt: int) -> None:
        """Note which attempt this is."""
        self._let_go = None
        if attempt != self.wake.attempt:
            self.wake = self.wake.evolve(attempt=attempt, updated_at=self._clock())
            await self._store.wakes.save(self.wake)

    def record_receipt(self, receipt: Receipt) -> None:
        """Note what came out so far; it is written with the next step or the end."""
        self.wake = self.wake.evolve(receipt=receipt)

    async def announce(self, name: StepName, rung: WakeMethod, record: Sandbox) -> PendingStep:
        """Begin a step whose first words somebody else writes; `step` then goes on with it."""
        self._told = self._open(name, rung)
        usual_ms = await self._find_usual_ms(rung)
        return PendingStep(
            mark=lambda fresh: self._settle(fresh, name, usual_ms),
            event=self._event(record, name.value, StepOutcome.RUNNING.value),
            wake=self.wake,
        )

    @asynccontextmanager
    async def step(self, name: StepName, rung: WakeMethod) -> AsyncIterator[None]:
        """One step. It is written down before anything is done, so that a crash is taken up."""
        began = time.monotonic()
        step, self._told = self._told, None
        if step is None or step.name is not name:
            before = self.wake
            step = self._open(name, rung)
            try:
                await self._show(name, await self._find_usual_ms(rung))
            except VersionConflictError:
                self.wake = before
                raise
        await self._on_step(self.wake, name)
        outcome, detail = StepOutcome.FAILED, ""
        try:
            yield
            outcome = StepOutcome.DONE
        except SandkeeperError as error:
            detail = str(error)[:500]
            raise
        finally:
            took_ms = round((time.monotonic() - began) * 1000)
            ended = replace(step, outcome=outcome, took_ms=took_ms, detail=detail)
            self.wake = self.wake.evolve(steps=(*self.wake.steps[:-1], ended))

    async def finish(
        self,
        error: SandkeeperError | None = None,
        *,
        settle: Callable[[Sandbox], tuple[Sandbox, Sequence[Event]]] = change_nothing,
    ) -> Wake:
        """Write down how it ended, with the record as `settle` leaves it and what that publishes.

        The receipt stays with the record. `settle` may raise: then nothing is written.
        """
        now = self._clock()
        took_ms = round((now - self.wake.started_at).total_seconds() * 1000)
        status = WakeStatus.FAILED if error else WakeStatus.SUCCEEDED
        before = self.wake
        self.wake = before.evolve(
            status=status,
            receipt=replace(self.receipt, took_ms=took_ms),
            finished_at=now,
            error_code=error.code if error else None,
            error=error.message if error else None,
            rung=self.method,
        )
        try:
            await self._show(None, None, reason=error.message if error else "", settle=settle)
        except BaseException:
            self.wake = before
            raise
        return self.wake

    def remember(self, record: Sandbox, *, is_presumed: bool = False) -> None:
        """Spare the next write a read.

        A record with a claim that is only presumed is written as it is, or not at all: who was
        faster has the claim.
        """
        self._record = record
        self._is_presumed = is_presumed

    def recall(self) -> Sandbox | None:
        """What was remembered, once."""
        known, self._record = self._record, None
        return known

    def let_go(self, held: Sandbox) -> None:
        """Give the claim under which `held` was read back with the next write."""
        self._let_go = held

    def _open(self, name: StepName, rung: WakeMethod) -> WakeStep:
        step = WakeStep(name, self._clock(), attempt=self.wake.attempt)
        receipt = self.wake.receipt
        if receipt is not None and receipt.rung is not rung:
            receipt = None
        steps = (*_without_open(self.wake.steps), step)
        self.wake = self.wake.evolve(
            rung=rung, steps=steps, receipt=receipt, updated_at=self._clock()
        )
        return step

    def _event(self, record: Sandbox, step: str, status: str, reason: str = "") -> WakeProgressed:
        now = self._clock()
        return WakeProgressed(
            sandbox_id=record.id,
            owner=record.owner,
            at=now,
            actor=self.wake.actor,
            reason=reason or f"{step.replace('_', ' ')}: {status}",
            wake_id=self.wake.id,
            step=step,
            status=status,
            elapsed_ms=round((now - self.wake.started_at).total_seconds() * 1000),
        )

    def _settle(self, record: Sandbox, step: StepName | None, usual_ms: int | None) -> Sandbox:
        if not self._is_marked:
            self._mark_before, self._is_marked = record.wake, True
        marked = record.evolve(wake=self._mark(record, step, usual_ms))
        return marked if self._let_go is None else without_claim(marked, self._let_go)

    async def _show(
        self,
        step: StepName | None,
        usual_ms: int | None,
        *,
        reason: str = "",
        settle: Callable[[Sandbox], tuple[Sandbox, Sequence[Event]]] = change_nothing,
    ) -> None:
        """Write the wake, the record that shows it and the events, all or nothing."""
        self.wake = self.wake.evolve(updated_at=self._clock())
        for _ in range(RACES_MAX):
            fresh = self.recall() or await self._store.sandboxes.get(self.wake.sandbox_id)
            settled, events = settle(fresh)
            name = step.value if step else FINISHED
            told = self._event(fresh, name, self.wake.status.value, reason)
            try:
                saved = await self._store.sandboxes.save(
                    self._settle(settled, step, usual_ms),
                    [*events, told],
                    expect_version=fresh.version,
                    now=self.wake.updated_at,
                    wake=self.wake,
                )
            except VersionConflictError:
                if self._is_presumed:
                    raise
                continue
            self.remember(saved)
            return
        raise VersionConflictError(sandbox_id=self.wake.sandbox_id)

    def _mark(self, sandbox: Sandbox, step: StepName | None, usual_ms: int | None) -> WakeSummary:
        """What the record shows. A wake that had nothing to do leaves the last receipt in place."""
        last = self._mark_before
        did_nothing = step is None and self.method is WakeMethod.NOTHING and not self.wake.error
        if did_nothing and last is not None and last.generation == sandbox.generation:
            return replace(last, step=None)
        return WakeSummary(
            wake_id=self.wake.id,
            rung=self.method,
            started_at=self.wake.started_at,
            generation=sandbox.generation,
            step=step,
            usual_ms=usual_ms,
            receipt=self.wake.receipt if step is None else None,
            error_code=self.wake.error_code,
            error=self.wake.error,
            finished_at=None if step else self.wake.finished_at,
        )


def _without_open(steps: tuple[WakeStep, ...]) -> tuple[WakeStep, ...]:
    """What a crash left under way was not finished."""
    return tuple(
        replace(step, outcome=StepOutcome.FAILED, detail="cut short")
        if step.outcome is StepOutcome.RUNNING
        else step
        for step in steps
    )
