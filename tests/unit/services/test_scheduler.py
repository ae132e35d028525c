"""The scheduler runs tasks by period and on request, one at a time, and survives their failures."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from sandkeeper.background.scheduler import Scheduler, TaskOutcome, TaskRun, UnknownTaskError
from support.eventually import eventually


class Counting:
    """Counts its runs and notes whether two of them ever overlapped."""

    name = "counting"

    def __init__(self, *, again_in_s: float | None = None) -> None:
        self.runs = 0
        self.overlapped = False
        self._inside = False
        self._again_in_s = again_in_s

    async def run(self) -> TaskOutcome:
        self.overlapped |= self._inside
        self._inside = True
        await asyncio.sleep(0.01)
        self._inside = False
        self.runs += 1
        return TaskOutcome(detail={"runs": self.runs}, again_in_s=self._again_in_s)


class Failing:
    name = "failing"

    def __init__(self) -> None:
        self.runs = 0

    async def run(self) -> TaskOutcome:
        self.runs += 1
        raise RuntimeError("the database is away")


class Never:
    """Hangs until it is cancelled."""

    name = "never"

    async def run(self) -> TaskOutcome:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")


async def test_a_nudge_runs_a_task_long_before_its_period() -> None:
    task = Counting()
    driver = Scheduler()
    driver.register(task.name, task.run, period_s=3600)
    async with driver:
        await eventually(lambda: task.runs == 1)
        driver.wake_up("counting")
        await eventually(lambda: task.runs == 2)
        driver.wake_up("no such task")


async def test_a_task_that_names_its_next_deadline_runs_then() -> None:
    task = Counting(again_in_s=0.01)
    driver = Scheduler()
    driver.register(task.name, task.run, period_s=3600)
    async with driver:
        await eventually(lambda: task.runs >= 3)


async def test_a_failing_pass_is_recorded_and_the_next_period_comes() -> None:
    task, seen = Failing(), list[TaskRun]()
    driver = Scheduler(on_run=seen.append)
    driver.register(task.name, task.run, period_s=0.01)
    async with driver:
        await eventually(lambda: task.runs >= 2 and len(seen) >= 2)
        [status] = driver.statuses()
    assert status.failures >= 2
    assert status.last_success_at is None
    assert status.last_run is not None
    assert status.last_run.error == "RuntimeError: the database is away"


async def test_runs_of_one_task_never_overlap() -> None:
    task = Counting()
    driver = Scheduler()
    driver.register(task.name, task.run, period_s=0.001)
    async with driver:
        await asyncio.gather(*(driver.run_now("counting") for _ in range(10)))
    assert task.runs >= 10
    assert not task.overlapped


async def test_a_task_switched_off_rests_but_can_be_run_by_hand() -> None:
    task, enabled = Counting(), [False]
    driver = Scheduler()
    driver.register(task.name, task.run, period_s=3600, is_enabled=lambda: enabled[0])
    async with driver:
        run = await driver.run_now("counting")
        assert run.detail == {"runs": 1}
        driver.wake_up("counting")
        await asyncio.sleep(0.05)
        assert task.runs == 1
        enabled[0] = True
        driver.wake_up("counting")
        await eventually(lambda: task.runs == 2)


async def test_a_hung_run_is_ended_at_its_limit() -> None:
    driver = Scheduler()
    driver.register("never", Never().run, period_s=3600, limit_s=0.05)
    run = await driver.run_now("never")
    assert run.error == "the run was cancelled after 0.05 s"
    assert driver.statuses()[0].running_since is None


async def test_leaving_the_driver_ends_a_run_that_never_would() -> None:
    driver = Scheduler()
    driver.register("never", Never().run, period_s=1)
    async with driver:
        await eventually(lambda: driver.statuses()[0].running_since)
    with pytest.raises(UnknownTaskError):
        await driver.run_now("unknown")


async def test_it_stops_although_a_library_lost_the_cancellation_of_a_run() -> None:
    begun = asyncio.Event()

    async def lose_the_cancellation() -> None:
        begun.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    scheduler = Scheduler()
    scheduler.register("losing", lose_the_cancellation, period_s=3600)
    async with asyncio.timeout(60), scheduler:
        await begun.wait()
