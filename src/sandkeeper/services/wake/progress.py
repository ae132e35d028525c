"""One wake under way: its steps, written as they happen. `record_writer` lists the writes."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sandkeeper.domain.decisions.wake import StepOutcome, Wake, WakeStatus, WakeStep
from sandkeeper.domain.errors import SandkeeperError
from sandkeeper.domain.events import Event, WakeProgressed
from sandkeeper.domain.receipt import (
    FILES_NOT_SAVED,
    Receipt,
    StepName,
    WakeMethod,
    WakeSummary,
    list_steps,
)
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import State
from sandkeeper.providers.acting_claim import check_deadline
from sandkeeper.services.wake.record_writer import RecordWriter
from sandkeeper.store import Store

OnStep = Callable[[Wake, StepName], Awaitable[None]]

# A wake that fails does so this long before its caller stops waiting, so that the caller hears why.
LAST_WORD = timedelta(seconds=1)

FINISHED = "finished"
WAITING = "waiting_for_capacity"


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
    published. `on_step` runs when a step has been written and is about to be done. `record` makes
    the writes.
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
        self.record = RecordWriter(store, wake.sandbox_id)
        self._mark_before: WakeSummary | None = None
        self._is_marked = False
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
        self.record.drop_claim()
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
            mark=lambda fresh: self.record.apply_claim(self._show(fresh, name, usual_ms)),
            event=self._event(record, name.value, StepOutcome.RUNNING.value),
            wake=self.wake,
        )

    @asynccontextmanager
    async def step(self, name: StepName, method: WakeMethod) -> AsyncIterator[None]:
        """Run one step. Write it before anything is done, so that a crash can be continued."""
        began = time.monotonic()
        step, self._announced = self._announced, None
        if step is None or step.name is not name:
            step = self._open(name, method)
            await self._write(name, await self._find_usual_ms(method))
        await self._on_step(self.wake, name)
        check_deadline()
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
        change: Callable[[Sandbox], tuple[Sandbox, Sequence[Event]]] = change_nothing,
    ) -> Wake:
        """Write how it ended, with the record as `change` leaves it and the events of that.

        The receipt stays with the record. `change` may raise: then nothing is written.
        """
        with self._ending(error):
            await self._write(None, None, reason=error.message if error else "", change=change)
        return self.wake

    async def show_line(
        self, method: WakeMethod, position: int | None, wait_s: float | None = None
    ) -> None:
        """Show where in line the wake waits for a slot, before its first step; None if no more."""
        step = list_steps(method)[0]
        self.wake = self.wake.evolve(method=method, updated_at=self._clock())
        wait_ms = None if wait_s is None else round(wait_s * 1000)

        def place(fresh: Sandbox) -> tuple[Sandbox, Sequence[Event]]:
            shown = self._show(fresh, step, None)
            assert shown.wake is not None
            mark = replace(shown.wake, position=position, wait_ms=wait_ms)
            words = "waits for a slot" if position is None else f"number {position} in line"
            waits = self._event(fresh, WAITING, StepOutcome.RUNNING.value, words)
            return shown.evolve(wake=mark), [waits]

        await self.record.write(place, wake=self.wake, now=self.wake.updated_at)

    @contextmanager
    def finish_with(self, record: Sandbox) -> Iterator[PendingStep]:
        """End the wake with a write that the caller makes in the block; it releases the claim."""
        self.record.release_with_next()
        with self._ending(None):
            yield PendingStep(
                mark=lambda fresh: self.record.apply_claim(self._show(fresh, None, None)),
                event=self._event(record, FINISHED, self.wake.status.value),
                wake=self.wake,
            )
        self.record.drop_claim()

    @contextmanager
    def _ending(self, error: SandkeeperError | None) -> Iterator[None]:
        """Let the block write the wake as it ends now; if that fails, it has not ended."""
        now = self._clock()
        before = self.wake
        took_ms = round((now - before.started_at).total_seconds() * 1000)
        self.wake = before.evolve(
            status=WakeStatus.FAILED if error else WakeStatus.SUCCEEDED,
            receipt=replace(self.receipt, took_ms=took_ms),
            finished_at=now,
            updated_at=now,
            error_code=error.code if error else None,
            error=error.message if error else None,
            method=self.method,
        )
        try:
            yield
        except BaseException:
            self.wake = before
            raise

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

    def _show(self, record: Sandbox, step: StepName | None, usual_ms: int | None) -> Sandbox:
        """Return the record with this wake in it."""
        if not self._is_marked:
            self._mark_before, self._is_marked = record.wake, True
        return record.evolve(wake=self._mark(record, step, usual_ms))

    async def _write(
        self,
        step: StepName | None,
        usual_ms: int | None,
        *,
        reason: str = "",
        change: Callable[[Sandbox], tuple[Sandbox, Sequence[Event]]] = change_nothing,
    ) -> None:
        """Write the wake, the record that shows it and the events."""
        self.wake = self.wake.evolve(updated_at=self._clock())
        name = step.value if step else FINISHED

        def write_step(fresh: Sandbox) -> tuple[Sandbox, Sequence[Event]]:
            changed, events = change(fresh)
            progressed = self._event(fresh, name, self.wake.status.value, reason)
            return self._show(changed, step, usual_ms), [*events, progressed]

        await self.record.write(write_step, wake=self.wake, now=self.wake.updated_at)

    def _mark(self, sandbox: Sandbox, step: StepName | None, usual_ms: int | None) -> WakeSummary:
        """Return what the record shows. A wake that had nothing to do keeps the last receipt."""
        last = self._mark_before
        did_nothing = step is None and self.method is WakeMethod.NOTHING and not self.wake.error
        if did_nothing and last is not None and last.generation == sandbox.generation:
            receipt = last.receipt
            if receipt is not None and self.receipt.app_started:
                receipt = replace(receipt, app_started=True, app_kept=False)
            return replace(last, step=None, receipt=receipt)
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


def begin_receipt(run: WakeProgress, held: Sandbox, sandbox: Sandbox) -> Receipt:
    """Return the receipt with what the method keeps."""
    return replace(
        run.receipt,
        method=run.method,
        memory_kept=run.method in (WakeMethod.NOTHING, WakeMethod.RESUME),
        disk_kept=run.method is not WakeMethod.RECREATE,
        reason=_find_reason(run, held, sandbox),
    )


def _find_reason(run: WakeProgress, held: Sandbox, sandbox: Sandbox) -> str:
    """Return what the receipt says about the time before the wake."""
    if run.method is WakeMethod.RECREATE:
        return sandbox.last_end.recreation_reason or ""
    if held.state is State.PAUSED and FILES_NOT_SAVED in held.reason:
        return f"it was paused: {held.reason}"
    return ""
