"""One wake under way: its steps, written as they happen.

Writes are combined: one transaction saves the sandbox's record, the wake's row and the events. For
a resume, with a start command and a port, when the caller has just read the record and it had no
claim, these are:

    write               claim     step               record
    1  step()           acquire   RESUMING           -
    2  announce()       keep      RESTORING_FILES    RUNNING, as the provider replied
    3  step()           keep      STARTING_APP       -
    4  step()           release   WAITING_FOR_PORT   -
    5  finish()         -         finished           ready, URL, receipt

- Write 1 carries a presumed claim: `remember` got it with `is_presumed`, and this write makes it
  real. If the record has changed since, nothing is written, and the claim is acquired by a write of
  its own before write 1 is tried again. Without such a record, or if it has a claim or is not to be
  resumed, the claim is acquired that way from the start.
- Write 2 belongs to the observation: `announce` hands the step to it, and `step` does not write
  that step again.
- Writes 3 and 4 are left out without a start command or a port. The first write after `let_go`
  releases the claim; without a port that is write 5. A failure before `let_go` releases the claim
  by a write of its own.
- Each write also carries the outcome of the step before it and the receipt so far, in the wake's
  row. It starts from the record that the last one saved: `remember` keeps it, `recall` returns it.
- The other methods follow the same order. A reboot adds a write for REBOOTING. A recreation writes
  RECREATING first, and between writes 1 and 2 the new generation by a write of its own.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sandkeeper.domain.decisions.wake import StepOutcome, Wake, WakeStatus, WakeStep
from sandkeeper.domain.errors import SandkeeperError, VersionConflictError
from sandkeeper.domain.events import Event, WakeProgressed
from sandkeeper.domain.receipt import Receipt, StepName, WakeMethod, WakeSummary
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.services.lifecycle.claims import without_claim
from sandkeeper.store import Store

OnStep = Callable[[Wake, StepName], Awaitable[None]]

# A wake that fails does so this long before its caller stops waiting, so that the caller hears why.
LAST_WORD = timedelta(seconds=1)

RACES_MAX = 20
FINISHED = "finished"


async def nothing_on_step(_wake: Wake, _step: StepName) -> None:
    """Do nothing: the default listener."""


def change_nothing(record: Sandbox) -> tuple[Sandbox, Sequence[Event]]:
    """Return the record unchanged, for a wake that leaves only its receipt."""
    return record, ()


@dataclass(frozen=True, slots=True)
class PendingStep:
    """A step about to begin, to be written in one transaction with another change of the record."""

    mark: Callable[[Sandbox], Sandbox]
    event: WakeProgressed
    wake: Wake


class WakeProgress:
    """A wake that this process drives. Each step is saved in the wake, shown in the record, and
    published. `on_step` runs when a step has been written and is about to be done.

    Every write starts from the record as the last one left it. If that is out of date, the record
    is read and written again.
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
        self._announced: WakeStep | None = None

    @property
    def method(self) -> WakeMethod:
        """Return the method that this wake has reached."""
        return self.wake.method or WakeMethod.NOTHING

    @property
    def receipt(self) -> Receipt:
        """Return what is known of the receipt so far."""
        return self.wake.receipt or Receipt(self.method)

    async def may_recreate(self) -> bool:
        """Return whether it may create an instance, by its own right or that of a joined caller."""
        return self.wake.may_recreate or (await self._refresh()).may_recreate

    async def is_wanted(self) -> bool:
        """Return whether a caller still waits, with time left to hear how it ended."""
        until = (await self._refresh()).wanted_until
        return until is not None and self._clock() + LAST_WORD < until

    async def start_over(self) -> bool:
        """Return whether a caller joined while the sandbox was no longer coming up; only once."""
        if not (await self._refresh()).starts_over:
            return False
        self.wake = self.wake.evolve(starts_over=False)
        return await self._store.wakes.set_starts_over(self.wake.id, value=False)

    async def _refresh(self) -> Wake:
        """Read what callers asked for since the wake began."""
        found = await self._store.wakes.find(self.wake.id) or self.wake
        self.wake = self.wake.evolve(
            may_recreate=found.may_recreate,
            wanted_until=found.wanted_until,
            starts_over=found.starts_over,
        )
        return self.wake

    async def begin_attempt(self, attempt: int) -> None:
        """Record which attempt this is."""
        self._let_go = None
        if attempt != self.wake.attempt:
            self.wake = self.wake.evolve(attempt=attempt, updated_at=self._clock())
            await self._store.wakes.save(self.wake)

    def record_receipt(self, receipt: Receipt) -> None:
        """Record the result so far; it is written with the next step or the end."""
        self.wake = self.wake.evolve(receipt=receipt)

    async def announce(self, name: StepName, method: WakeMethod, record: Sandbox) -> PendingStep:
        """Begin a step whose first write the caller makes; `step` then continues it."""
        self._announced = self._open(name, method)
        usual_ms = await self._find_usual_ms(method)
        return PendingStep(
            mark=lambda fresh: self._settle(fresh, name, usual_ms),
            event=self._event(record, name.value, StepOutcome.RUNNING.value),
            wake=self.wake,
        )

    @asynccontextmanager
    async def step(self, name: StepName, method: WakeMethod) -> AsyncIterator[None]:
        """Run one step. Write it before anything is done, so that a crash can be continued."""
        began = time.monotonic()
        step, self._announced = self._announced, None
        if step is None or step.name is not name:
            before = self.wake
            step = self._open(name, method)
            try:
                await self._show(name, await self._find_usual_ms(method))
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
        """Write how it ended, with the record as `settle` leaves it and the events of that.

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
            method=self.method,
        )
        try:
            await self._show(None, None, reason=error.message if error else "", settle=settle)
        except BaseException:
            self.wake = before
            raise
        return self.wake

    def remember(self, record: Sandbox, *, is_presumed: bool = False) -> None:
        """Keep the record, so that the next write needs no read.

        A record with a claim that is only presumed is written as it is, or not at all: the faster
        writer has the claim.
        """
        self._record = record
        self._is_presumed = is_presumed

    def recall(self) -> Sandbox | None:
        """Return the remembered record, once."""
        known, self._record = self._record, None
        return known

    def let_go(self, held: Sandbox) -> None:
        """Release the claim under which `held` was read with the next write."""
        self._let_go = held

    def _open(self, name: StepName, method: WakeMethod) -> WakeStep:
        step = WakeStep(name, self._clock(), attempt=self.wake.attempt)
        receipt = self.wake.receipt
        if receipt is not None and receipt.method is not method:
            receipt = None
        steps = (*_without_open(self.wake.steps), step)
        self.wake = self.wake.evolve(
            method=method, steps=steps, receipt=receipt, updated_at=self._clock()
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
            progressed = self._event(fresh, name, self.wake.status.value, reason)
            try:
                saved = await self._store.sandboxes.save(
                    self._settle(settled, step, usual_ms),
                    [*events, progressed],
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
        """Return what the record shows. A wake that had nothing to do keeps the last receipt."""
        last = self._mark_before
        did_nothing = step is None and self.method is WakeMethod.NOTHING and not self.wake.error
        if did_nothing and last is not None and last.generation == sandbox.generation:
            return replace(last, step=None)
        return WakeSummary(
            wake_id=self.wake.id,
            method=self.method,
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
    """Return the steps, with those that a crash left under way marked as failed."""
    return tuple(
        replace(step, outcome=StepOutcome.FAILED, detail="cut short")
        if step.outcome is StepOutcome.RUNNING
        else step
        for step in steps
    )
