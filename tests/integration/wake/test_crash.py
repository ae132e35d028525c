"""Kill -9 at each step of a wake ends in one running sandbox with all files; many callers, one."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sandkeeper.domain.decisions.wake import WakeStatus
from sandkeeper.domain.policy import AppOnResume, FilesOnResume
from sandkeeper.domain.states import State
from support.deps import MovableClock
from support.engine_process import Engine
from support.wake_replica import STAY, WORKDIR, Waker, browse

Make = Callable[..., Awaitable[Waker]]

AFTER = ["restoring_files", "starting_app", "waiting_for_port"]
STEPS = [
    *(("resume", step) for step in ["resuming", *AFTER]),
    *(("recreate", step) for step in ["recreating", *AFTER]),
]


async def die_at(step: str, *arguments: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "support.wake_replica", *arguments, step),
        cwd=str(__file__).partition("/integration/")[0],
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    assert process.returncode == -9, said.decode()


@pytest.mark.parametrize(("method", "step"), STEPS)
async def test_a_keeper_killed_at_any_step_leaves_one_sandbox_with_all_files(
    waking: Make,
    engine: Engine,
    database: str,
    keeper_name: str,
    tmp_path: Path,
    method: str,
    step: str,
) -> None:
    clock = MovableClock()
    waker = await waking(clock=clock)
    # An app that is kept has no steps of its own.
    on_resume = AppOnResume.RESTART if step in AFTER[1:] else AppOnResume.KEEP
    sandbox = await waker.create(
        "shop",
        policy=replace(STAY, app_on_resume=on_resume, files_on_resume=FilesOnResume.BEFORE),
    )
    await waker.write(sandbox, "index.html", "edited before")
    await waker.replica.lifecycle.pause(sandbox.id, actor="test")
    if method == "recreate":
        await waker.provider.kill(sandbox.instance_id or "")
    place = (database, str(tmp_path / "kept"), engine.url, engine.key, keeper_name)
    await die_at(step, *place, sandbox.id)
    clock.advance(minutes=2)  # The dead one's leases are over.
    assert await waker.wakes.resume_interrupted() == 1
    back = await waker.settle(sandbox)
    last = await waker.replica.store.wakes.find_last(sandbox.id)
    assert last is not None
    assert last.status is WakeStatus.SUCCEEDED, last
    assert (back.state, back.run.ready) == (State.RUNNING, True)
    assert await browse(engine.url, back) == "edited before"
    assert await waker.instances(sandbox) == [back.instance_id]


async def test_the_first_files_of_a_newborn_are_put_in_place_after_a_crash(
    waking: Make, engine: Engine, database: str, keeper_name: str, tmp_path: Path
) -> None:
    clock = MovableClock()
    waker = await waking(clock=clock)
    sandbox = await waker.create("shop")
    await waker.write(sandbox, "index.html", "kept before it was born")
    await waker.capture(sandbox)
    await (await waker.enter(sandbox)).files.remove(f"{WORKDIR}/index.html")
    born = await waker.get(sandbox)
    await waker.replica.store.sandboxes.save(
        born.evolve(wake=None), expect_version=born.version, now=clock()
    )
    place = (database, str(tmp_path / "kept"), engine.url, engine.key, keeper_name)
    await die_at("restoring_files", *place, sandbox.id)
    clock.advance(minutes=2)
    assert await waker.wakes.resume_interrupted() == 1
    back = await waker.settle(sandbox)
    assert (back.state, back.run.ready) == (State.RUNNING, True)
    assert await browse(engine.url, back) == "kept before it was born"


async def test_sixty_four_wakes_at_once_make_one_instance(waking: Make, engine: Engine) -> None:
    one, two = await waking(), await waking(name="two")
    sandbox = await one.create("shop")
    await one.write(sandbox, "index.html", "once")
    await one.capture(sandbox)
    await one.provider.kill(sandbox.instance_id or "")
    wakes = await asyncio.gather(*(waker.wake(sandbox) for _ in range(32) for waker in (one, two)))
    assert {wake.id for wake in wakes} == {wakes[0].id}
    assert wakes[0].status is WakeStatus.SUCCEEDED
    back = await one.get(sandbox)
    assert back.generation == 2
    assert await one.instances(sandbox) == [back.instance_id]
    assert await browse(engine.url, back) == "once"
