"""The spawner's workers: one waits for the next order, and none outlives its purpose."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from pathlib import Path

import pytest

from sandkeeper.engine.runtime.bubblewrap.runtime import BubblewrapRuntime
from sandkeeper.engine.runtime.contract import Command, Egress, ResourceLimits, RuntimeFaultError
from sandkeeper.engine.runtime.linux import cgroups, process_records
from support.eventually import eventually
from support.isolation import not_on_gvisor
from support.process_leaks import find_spawner, get_first_process, get_spawner, kill_spawner
from support.runtime_helpers import ENV, Sandbox, plan


def list_waiting(data: Path) -> list[int]:
    """Return the workers of the folder's spawner, which have the same command line."""
    spawner = find_spawner(data) or 0
    line = _read(spawner, "cmdline")
    return [
        pid
        for pid in process_records.list_children(spawner)
        if line and _read(pid, "cmdline") == line
    ]


def list_marked(mark: str) -> list[int]:
    """Return the processes that carry a sandbox's mark."""
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return [pid for pid in pids if mark.encode() in _read(pid, "environ")]


def list_held(pid: int) -> list[str]:
    """Return what the process has open besides its standard streams."""
    found: list[str] = []
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # It was closed a moment ago.
            if int(path.name) > 2:
                found.append(str(path.readlink()).partition(":")[0])
    return found


@not_on_gvisor("a worker is at work for longer, and would be taken for the waiting one")
async def test_a_worker_waits_for_the_next_order_and_holds_nothing_of_a_sandbox(
    sandbox: Sandbox, data: Path
) -> None:
    lasting = await sandbox.start("read word; echo $word", stdin=True)
    waiting = await eventually(lambda: list_waiting(data))
    assert len(waiting) == 1
    if os.geteuid() == 0:  # The kernel shows descriptors of non-dumpable processes only to root.
        await eventually(lambda: list_held(waiting[0]) == ["socket"])
    for _ in range(3):
        assert (await sandbox.run("echo done")).out == "done\n"
    await eventually(lambda: len(list_waiting(data)) == 1 and list_waiting(data) != waiting)
    lasting.signal(signal.SIGKILL)
    assert await lasting.wait() == -signal.SIGKILL


async def test_a_waiting_worker_ends_with_its_spawner(sandbox: Sandbox, data: Path) -> None:
    waiting = await eventually(lambda: list_waiting(data))
    await kill_spawner(data)
    await eventually(lambda: not any(process_records.read_start(pid) for pid in waiting))
    assert (await sandbox.run("echo still here")).out == "still here\n"


async def test_an_order_sent_to_a_dead_spawner_goes_to_the_next_one(
    sandbox: Sandbox, data: Path
) -> None:
    """The event loop has no chance to see the end of the connection before the order is sent."""
    spawner = get_spawner(data)
    # A worker that was just forked has the connection open until it has closed it.
    ended = [spawner, *await eventually(lambda: list_waiting(data))]
    os.kill(spawner, signal.SIGKILL)
    deadline = time.monotonic() + 30
    while any(process_records.read_start(pid) for pid in ended):
        assert time.monotonic() < deadline
    assert (await sandbox.run("echo still here")).out == "still here\n"


async def test_an_order_is_done_although_the_waiting_worker_was_killed(
    sandbox: Sandbox, data: Path
) -> None:
    waiting = await eventually(lambda: list_waiting(data))
    for pid in waiting:
        with contextlib.suppress(ProcessLookupError):  # One may just have done its work.
            os.kill(pid, signal.SIGKILL)
    await eventually(lambda: not any(process_records.read_start(pid) for pid in waiting))
    assert (await sandbox.run("echo done")).out == "done\n"


async def test_a_boot_whose_worker_is_killed_fails_at_once_and_can_be_done_again(
    data: Path, tmp_path: Path
) -> None:
    """A backend that never gets ready blocks the worker after the first process was started."""
    asked, never_ready = tmp_path / "asked", tmp_path / "never_ready"
    never_ready.write_text(f"#!/bin/sh\necho $$ > {asked}\nexec sleep 1000\n")
    never_ready.chmod(0o755)
    runtime = BubblewrapRuntime(data, backend=str(never_ready))
    await runtime.start()
    boot = asyncio.create_task(runtime.boot(plan(tmp_path, "one", egress=Egress())))
    helper = int(await eventually(lambda: asked.exists() and asked.read_text()))
    strays = list_marked(runtime.group_prefix + "one")
    os.kill(_find_parent(helper), signal.SIGKILL)
    with pytest.raises(RuntimeFaultError, match="killed"):
        await asyncio.wait_for(boot, 30)
    await runtime.boot(plan(tmp_path, "one"))
    assert strays
    assert not any(process_records.read_start(pid) for pid in strays)
    only = [get_first_process(data, "one")]
    await eventually(lambda: list_marked(runtime.group_prefix + "one") == only)
    os.kill(helper, signal.SIGKILL)
    await runtime.close()


async def test_many_at_once_are_started_though_one_worker_waits(
    sandbox: Sandbox, data: Path
) -> None:
    children = [await sandbox.start(f"exit {number}") for number in range(20)]
    assert [await child.wait() for child in children] == list(range(20))
    for child in children:
        os.close(child.stdout or 0)
        os.close(child.stderr or 0)
    await eventually(lambda: len(list_waiting(data)) == 1)


async def test_every_ended_process_is_reaped(
    sandbox: Sandbox, runtime: BubblewrapRuntime, data: Path, tmp_path: Path
) -> None:
    await runtime.boot(plan(tmp_path, "two"))
    await sandbox.run("setsid sleep 0 & setsid true &")
    await runtime.halt("two")
    spawner = get_spawner(data)

    def list_dead() -> list[int]:
        return [
            pid
            for pid in process_records.list_children(spawner)
            if not process_records.read_start(pid)
        ]

    await eventually(lambda: not list_dead())


@not_on_gvisor("there is no /dev/tty")
async def test_a_terminal_is_the_controlling_one_of_its_session(
    sandbox: Sandbox, runtime: BubblewrapRuntime
) -> None:
    line = (
        "test -t 0 -a -t 1 -a -t 2 && (: > /dev/tty) && ps -o sid= -p $$ | grep -qw $$ && stty size"
    )
    child = await runtime.spawn(sandbox.id, Command(("/bin/bash", "-c", line), ENV, size=(90, 33)))
    assert await child.wait() == 0
    assert os.read(child.stdout or 0, 100) == b"33 90\r\n"
    os.close(child.stdout or 0)


@not_on_gvisor("too many processes end the sandbox; see test_gvisor.py")
@pytest.mark.skipif(cgroups.find_parents() is None, reason="no control groups for this user")
async def test_a_full_sandbox_says_why_no_command_starts(
    runtime: BubblewrapRuntime, tmp_path: Path
) -> None:
    await runtime.boot(plan(tmp_path, "full", limits=ResourceLimits(pids_max=8)))
    line = "for n in 1 2 3 4 5 6 7 8 9; do sleep 1000 & done; wait"
    await runtime.spawn("full", Command(("/bin/bash", "-c", line), ENV))

    async def is_refused() -> bool:
        try:
            child = await runtime.spawn("full", Command(("/bin/true",), ENV, stdin=False))
        except RuntimeFaultError as fault:
            return "as many processes as it may have" in str(fault)
        await child.wait()
        os.close(child.stdout or 0)
        os.close(child.stderr or 0)
        return False

    await eventually(is_refused)


def _find_parent(pid: int) -> int:
    return int(_read(pid, "stat").rpartition(b")")[2].split()[1])


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""
