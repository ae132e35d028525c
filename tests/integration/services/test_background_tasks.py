"""Every background task of a keeper, run once over a real database."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from sandkeeper.background.tasks import make_scheduler
from sandkeeper.testing.providers import SimulatedProvider
from support.sweep_replica import Replica


async def test_no_task_fails_on_a_keeper_with_one_sandbox(
    keeping_on: Callable[..., Awaitable[Replica]], database_url: str, tmp_path: Path
) -> None:
    replica = await keeping_on(database_url, SimulatedProvider(), settings={"data": tmp_path})
    await replica.create("shop")
    scheduler = make_scheduler(replica, end_streams=lambda: None)
    runs = [await scheduler.run_now(status.name) for status in scheduler.statuses()]
    assert {run.task: run.error for run in runs if not run.succeeded} == {}
