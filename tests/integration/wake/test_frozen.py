"""A process that is stopped in the middle of a wake, and continued later, undoes no work."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from sandkeeper.domain.decisions.wake import WakeStatus
from sandkeeper.domain.states import State
from support.deps import MovableClock
from support.engine_process import Engine
from support.eventually import eventually
from support.wake_replica import WORKDIR, Waker, browse

Make = Callable[..., Awaitable[Waker]]

LEASE_S = 1.0
FIND_APP = "pgrep -f 'http.[s]erver'"


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.mark.parametrize("step", ["restoring_files", "upload", "starting_app"])
async def test_edits_survive_a_process_that_was_stopped_during_the_wake(
    waking: Make,
    engine: Engine,
    database: str,
    keeper_name: str,
    tmp_path: Path,
    step: str,
) -> None:
    clock = MovableClock()
    waker = await waking(clock=clock)
    sandbox = await waker.create("shop")
    native = await waker.enter(sandbox)
    # More than one transfer: 8 MiB go into one.
    await native.commands.run(
        f"cd {WORKDIR} && for n in 1 2 3 4; do head -c 3000000 /dev/urandom > $n; done"
    )
    await waker.write(sandbox, "index.html", "before")
    await waker.replica.lifecycle.pause(sandbox.id, actor="test")
    await waker.provider.kill(sandbox.instance_id or "")
    place = (database, str(tmp_path / "kept"), engine.url, engine.key, keeper_name)
    stopped = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "support.wake_replica", *place, sandbox.id, f"stop:{step}"),
        cwd=str(__file__).partition("/integration/")[0],
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        await eventually(lambda: is_stopped(stopped.pid), within_s=60)
        since = time.monotonic()
        clock.advance(minutes=2)  # Its leases are over.
        assert await waker.wakes.resume_interrupted() == 1
        back = await waker.settle(sandbox)
        assert (back.state, back.run.ready) == (State.RUNNING, True)
        assert await browse(engine.url, back) == "before"
        inside = await waker.enter(sandbox)
        edit = "for n in 1 2 3 4 index.html; do echo edited $n > $n; done"
        await inside.commands.run(f"cd {WORKDIR} && {edit}")
        server = (await inside.commands.run(FIND_APP)).stdout
        done = await waker.get(sandbox)
        await eventually(lambda: time.monotonic() > since + LEASE_S)
    finally:
        os.kill(stopped.pid, signal.SIGCONT)
        said, _ = await asyncio.wait_for(stopped.communicate(), 60)
    assert stopped.returncode == 0, said.decode()
    last = await waker.replica.store.wakes.find_last(sandbox.id)
    assert last is not None
    assert last.status is WakeStatus.SUCCEEDED
    read = await inside.commands.run(f"cd {WORKDIR} && cat 1 2 3 4 index.html")
    assert read.stdout == "".join(f"edited {n}\n" for n in ("1", "2", "3", "4", "index.html"))
    assert (await inside.commands.run(FIND_APP)).stdout == server, "the app went on"
    now = await waker.get(sandbox)
    assert (now.state, now.instance_id, now.wake) == (State.RUNNING, done.instance_id, done.wake)
    assert await waker.instances(sandbox) == [done.instance_id]
