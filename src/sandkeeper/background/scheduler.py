"""Drive background tasks: a period, a nudge, one run at a time, and a readable last status.

The driver knows nothing of sandboxes. A task takes no input, checks the current state, and may run
at any time and any number of times. It does not retry inside, because the next period is the retry.
The nudge saves latency; the period ensures correctness. A task that knows its next deadline returns
it in its outcome (`again_in_s`) and runs at that time instead of at the end of the period.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Self

import structlog

from sandkeeper.common.cancellation import count_cancellations
from sandkeeper.common.tracing import TRACING

log = structlog.get_logger(__name__)

# A nudged task still waits this long between two runs. Higher delays what it was nudged for; lower
# lets many nudges keep the database busy with passes that find nothing.
REST_S = 0.25


Detail = int | float | str
"""A number or word of a run for an operator to read."""


@dataclass(frozen=True, slots=True)
class TaskOutcome:
    """The result of one run, as numbers for an operator, and when the task must run again."""

    detail: Mapping[str, Detail] = field(default_factory=dict)
    again_in_s: float | None = None


Run = Callable[[], Awaitable[TaskOutcome | Mapping[str, Detail] | None]]
"""One complete pass of a task. An error ends this pass only; the next period is the retry."""


@dataclass(frozen=True, slots=True)
class TaskRun:
    """One finished pass."""

    task: str
    started_at: datetime
    duration_s: float
    error: str | None
    detail: Mapping[str, Detail]

    @property
    def succeeded(self) -> bool:
        return self.error is None


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """The current status of a task, for an operator."""

    name: str
    period_s: float
    enabled: bool
    running_since: datetime | None
    runs: int
    failures: int
    last_run: TaskRun | None
    last_success_at: datetime | None


class UnknownTaskError(LookupError):
    """No background task has this name."""


class Scheduler:
    """Run the registered tasks while the context is open.

    Leaving the context cancels what runs: a cancelled pass leaves leases that expire and a correct
    provider, and the next pass (here or in another replica) repairs the records.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        on_run: Callable[[TaskRun], None] = lambda _run: None,
    ) -> None:
        self._clock = clock
        self._on_run = on_run
        self._slots: dict[str, _Runner] = {}
        self._loops: list[asyncio.Task[None]] = []
        self._on_stop: list[Callable[[], Awaitable[None]]] = []

    def register(
        self,
        name: str,
        run: Run,
        *,
        period_s: float,
        limit_s: float = 300,
        is_enabled: Callable[[], bool] = lambda: True,
        on_stop: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Add a task before the scheduler starts; cancel a run that is longer than `limit_s`.

        `on_stop` ends what the task leaves open between its runs.
        """
        if name in self._slots:
            raise ValueError(f"a task named {name!r} is registered already")
        self._slots[name] = _Runner(
            name=name,
            run=run,
            period_s=period_s,
            limit_s=limit_s,
            is_enabled=is_enabled,
            clock=self._clock,
            on_run=self._on_run,
        )
        if on_stop is not None:
            self._on_stop.append(on_stop)

    def wake_all(self) -> None:
        """Request a run of every task soon: one just switched on need not wait for its period."""
        for slot in self._slots.values():
            slot.nudged.set()

    def wake_up(self, name: str) -> None:
        """Request a run soon. Ignore unknown names: a nudge is only a hint."""
        slot = self._slots.get(name)
        if slot is not None:
            slot.nudged.set()

    async def run_now(self, name: str) -> TaskRun:
        """Run a task now, even if it is switched off, and return its run."""
        slot = self._slots.get(name)
        if slot is None:
            raise UnknownTaskError(name)
        return await slot.perform()

    def statuses(self) -> tuple[TaskStatus, ...]:
        return tuple(slot.status() for slot in self._slots.values())

    async def __aenter__(self) -> Self:
        self._loops = [
            asyncio.create_task(slot.drive(), name=f"background:{name}")
            for name, slot in self._slots.items()
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        self._loops = []
        for stop in self._on_stop:
            await stop()


class _Runner:
    """The state and loop of one task."""

    def __init__(
        self,
        *,
        name: str,
        run: Run,
        period_s: float,
        limit_s: float,
        is_enabled: Callable[[], bool],
        clock: Callable[[], datetime],
        on_run: Callable[[TaskRun], None],
    ) -> None:
        self.nudged = asyncio.Event()
        self._name = name
        self._task = run
        self._period_s = period_s
        self._limit_s = limit_s
        self._is_enabled = is_enabled
        self._clock = clock
        self._on_run = on_run
        self._one_at_a_time = asyncio.Lock()
        self._running_since: datetime | None = None
        self._runs = 0
        self._failures = 0
        self._last_run: TaskRun | None = None
        self._last_success_at: datetime | None = None
        self._again_in_s: float | None = None

    async def drive(self) -> None:
        while True:
            self.nudged.clear()
            wait_s = self._period_s
            if self._is_enabled():
                await self.perform()
                if count_cancellations():
                    return
                if self._again_in_s is not None:
                    wait_s = min(wait_s, max(0.0, self._again_in_s))
            rest_s = min(REST_S, self._period_s)
            await asyncio.sleep(rest_s)
            # Not `wait_for`: in Python 3.11 it can swallow a cancellation that meets a nudge.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, wait_s - rest_s)):
                    await self.nudged.wait()

    async def perform(self) -> TaskRun:
        async with self._one_at_a_time:
            self._running_since = started_at = self._clock()
            started = time.monotonic()
            error: str | None = None
            outcome = TaskOutcome()
            limit = asyncio.timeout(self._limit_s)
            try:
                async with limit:
                    with TRACING.span(f"task {self._name}"):
                        result = await self._task()
                    outcome = (
                        result if isinstance(result, TaskOutcome) else TaskOutcome(result or {})
                    )
            except Exception as failure:  # noqa: BLE001 - A failing pass must not end its own loop.
                error = f"{type(failure).__name__}: {failure}"
                if limit.expired():
                    error = f"the run was cancelled after {self._limit_s:g} s"
            finally:
                self._running_since = None
            run = TaskRun(
                task=self._name,
                started_at=started_at,
                duration_s=time.monotonic() - started,
                error=error,
                detail=outcome.detail,
            )
            self._remember(run, again_in_s=outcome.again_in_s)
            return run

    def _remember(self, run: TaskRun, *, again_in_s: float | None) -> None:
        self._again_in_s = again_in_s
        self._last_run = run
        self._runs += 1
        if run.succeeded:
            self._last_success_at = run.started_at
        else:
            self._failures += 1
            log.error("background_run", task=run.task, duration_s=run.duration_s, error=run.error)
        self._on_run(run)

    def status(self) -> TaskStatus:
        return TaskStatus(
            name=self._name,
            period_s=self._period_s,
            enabled=self._is_enabled(),
            running_since=self._running_since,
            runs=self._runs,
            failures=self._failures,
            last_run=self._last_run,
            last_success_at=self._last_success_at,
        )
