"""One wake under way: its steps, written down as they happen."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from sandkeeper.domain.errors import SandkeeperError, VersionConflictError
from sandkeeper.domain.events import WakeProgressed
from sandkeeper.domain.receipt import Receipt, Rung, WakeMark
from sandkeeper.domain.wake import Step, StepOutcome, WakeStatus

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from datetime import datetime

    from sandkeeper.domain.events import Event
    from sandkeeper.domain.receipt import StepName
    from sandkeeper.domain.sandbox import Sandbox
    from sandkeeper.domain.wake import Wake
    from sandkeeper.store import Store

    OnStep = Callable[[Wake, StepName], Awaitable[None]]

RACES_MAX = 20
FINISHED = "finished"


async def nothing_on_step(_wake: Wake, _step: StepName) -> None:
    """The default listener."""


class WakeRun:
    """A wake that this process drives. Each step is kept in the wake, shown in the record, and
    published; `on_step` is told when a step has been written down and is about to be done.
    """

    def __init__(
        self,
        wake: Wake,
        *,
        store: Store,
        clock: Callable[[], datetime],
        on_step: OnStep = nothing_on_step,
    ) -> None:
        self.wake = wake
        self._store = store
        self._clock = clock
        self._on_step = on_step
        self._mark_before: WakeMark | None = None
        self._is_marked = False
        self._record: Sandbox | None = None
        self._usual_ms: dict[Rung, int | None] = {}

    @property
    def rung(self) -> Rung:
        """How far up the ladder this wake is."""
        return self.wake.rung or Rung.NOTHING

    @property
    def receipt(self) -> Receipt:
        """What is known of the receipt so far."""
        return self.wake.receipt or Receipt(self.rung)

    async def begin_attempt(self, attempt: int) -> None:
        """Note which attempt this is."""
        if attempt != self.wake.attempt:
            await self._keep(self.wake.evolve(attempt=attempt))

    def note_receipt(self, receipt: Receipt) -> None:
        """Note what came out so far; it is written with the next step or the end."""
        self.wake = self.wake.evolve(receipt=receipt)

    @asynccontextmanager
    async def step(self, name: StepName, rung: Rung) -> AsyncIterator[None]:
        """One step. It is written down before anything is done, so that a crash is taken up."""
        began = time.monotonic()
        step = Step(name, self._clock(), attempt=self.wake.attempt)
        before = _without_open(self.wake.steps)
        receipt = self.wake.receipt
        if receipt is not None and receipt.rung is not rung:
            receipt = None
        self.wake = self.wake.evolve(rung=rung, steps=(*before, step), receipt=receipt)
        await self._show(name, StepOutcome.RUNNING.value)
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
            self.wake = self.wake.evolve(steps=(*before, ended))

    async def finish(self, error: SandkeeperError | None = None) -> Wake:
        """Write down how it ended; the receipt stays with the record."""
        now = self._clock()
        took_ms = round((now - self.wake.started_at).total_seconds() * 1000)
        receipt = replace(self.receipt, took_ms=took_ms)
        status = WakeStatus.FAILED if error else WakeStatus.SUCCEEDED
        self.wake = self.wake.evolve(
            status=status,
            receipt=receipt,
            finished_at=now,
            error_code=error.code if error else None,
            error=error.message if error else None,
            rung=self.rung,
        )
        await self._show(None, status.value, reason=error.message if error else "")
        return self.wake

    async def save(
        self, change: Callable[[Sandbox], Sandbox], events: Sequence[Event] = ()
    ) -> Sandbox:
        """Change the record; whoever wrote it meanwhile is respected."""
        for _ in range(RACES_MAX):
            fresh = await self._take_record()
            try:
                saved = await self._store.sandboxes.save(
                    change(fresh), events, expect_version=fresh.version, now=self._clock()
                )
            except VersionConflictError:
                continue
            self.remember(saved)
            return saved
        raise VersionConflictError(sandbox_id=self.wake.sandbox_id)

    def remember(self, record: Sandbox) -> None:
        """Spare the next change a read: should the record be older than it seems, it is read."""
        self._record = record

    def recall(self) -> Sandbox | None:
        """What was remembered, once."""
        known, self._record = self._record, None
        return known

    async def _take_record(self) -> Sandbox:
        """The record as it was left, once; then as it is in the store."""
        return self.recall() or await self._store.sandboxes.get(self.wake.sandbox_id)

    async def _find_usual_ms(self) -> int | None:
        if self.rung not in self._usual_ms:
            self._usual_ms[self.rung] = await self._store.wakes.find_usual_ms(self.rung)
        return self._usual_ms[self.rung]

    async def _keep(self, wake: Wake) -> None:
        self.wake = wake.evolve(updated_at=self._clock())
        await self._store.wakes.save(self.wake)

    async def _show(self, step: StepName | None, status: str, *, reason: str = "") -> None:
        """Write the wake, the record that shows it and the event, all or nothing."""
        now = self._clock()
        self.wake = self.wake.evolve(updated_at=now)
        elapsed_ms = round((now - self.wake.started_at).total_seconds() * 1000)
        usual_ms = await self._find_usual_ms() if step else None
        for _ in range(RACES_MAX):
            fresh = await self._take_record()
            if not self._is_marked:
                self._mark_before, self._is_marked = fresh.wake, True
            event = WakeProgressed(
                sandbox_id=fresh.id,
                owner=fresh.owner,
                at=now,
                actor=self.wake.actor,
                reason=reason,
                wake_id=self.wake.id,
                step=step.value if step else FINISHED,
                status=status,
                elapsed_ms=elapsed_ms,
            )
            try:
                saved = await self._store.sandboxes.save(
                    fresh.evolve(wake=self._mark(fresh, step, usual_ms)),
                    [event],
                    expect_version=fresh.version,
                    now=now,
                    wake=self.wake,
                )
            except VersionConflictError:
                continue
            self.remember(saved)
            return
        raise VersionConflictError(sandbox_id=self.wake.sandbox_id)

    def _mark(self, sandbox: Sandbox, step: StepName | None, usual_ms: int | None) -> WakeMark:
        """What the record shows. A wake that had nothing to do leaves the last receipt in place."""
        last = self._mark_before
        did_nothing = step is None and self.rung is Rung.NOTHING and not self.wake.error
        if did_nothing and last is not None and last.generation == sandbox.generation:
            return replace(last, step=None)
        return WakeMark(
            wake_id=self.wake.id,
            rung=self.rung,
            started_at=self.wake.started_at,
            generation=sandbox.generation,
            step=step,
            usual_ms=usual_ms,
            receipt=self.wake.receipt if step is None else None,
            error_code=self.wake.error_code,
            error=self.wake.error,
            finished_at=None if step else self.wake.finished_at,
        )


def _without_open(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """What a crash left under way was not finished."""
    return tuple(
        replace(step, outcome=StepOutcome.FAILED, detail="cut short")
        if step.outcome is StepOutcome.RUNNING
        else step
        for step in steps
    )
