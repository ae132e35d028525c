"""What outlives the death of the process that owns the runtime, and of the spawner."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sandkeeper.engine.runtime.bubblewrap.child import CODE_LOST
from sandkeeper.engine.runtime.bubblewrap.runtime import BubblewrapRuntime
from sandkeeper.engine.runtime.contract import Egress, RuntimeFaultError
from sandkeeper.engine.runtime.egress import backends
from sandkeeper.engine.runtime.linux import cgroups
from sandkeeper.engine.runtime.spawner import orphans
from support.eventually import eventually
from support.process_leaks import end_all, get_first_process, get_spawner, kill_spawner
from support.runtime_helpers import Sandbox, plan, read_all

HANGS_UP = tuple(int(part) for part in os.uname().release.split(".")[:2]) >= (6, 9)

OWNER = """
import asyncio, sys
from pathlib import Path
from sandkeeper.engine.runtime.spawner import client
from sandkeeper.engine.runtime.bubblewrap.runtime import BubblewrapRuntime
from sandkeeper.engine.runtime.contract import BootPlan, Command, Egress

async def main(folder):
    if "any version" in sys.argv:
        client.PROTOCOL = 0
    runtime = BubblewrapRuntime(folder / "data")
    await runtime.start()
    disk = folder / "disks/one"
    offline = Egress(internet=False)
    await runtime.boot(BootPlan("one", (), disk / "upper", disk / "work", egress=offline))
    env = {"PATH": "/usr/bin:/bin"}
    wait = "until [ -e go ]; do sleep 0.02; done;"
    line = f"echo before; {wait} echo after; read word; echo $word; exit 5"
    await runtime.spawn("one", Command(("bash", "-c", line), env, label=b"lasting"))
    short = f"{wait} echo final output; exit 6"
    await runtime.spawn("one", Command(("bash", "-c", short), env, label=b"short"))
    if "frozen" in sys.argv:
        await runtime.freeze("one")
    print("ready", flush=True)
    await asyncio.sleep(1000)

asyncio.run(main(Path(sys.argv[1])))
"""

# An earlier version, which differs in nothing but its number.
OLD_SPAWNER = """
import sys
from pathlib import Path
from sandkeeper.engine.runtime.spawner import spawner
spawner.PROTOCOL = 0
spawner.main(Path(sys.argv[1]))
"""

CHURN = """
import asyncio, sys
from pathlib import Path
from sandkeeper.engine.runtime.bubblewrap.runtime import BubblewrapRuntime
from sandkeeper.engine.runtime.contract import BootPlan, Egress

async def main(folder, name):
    runtime = BubblewrapRuntime(folder / "data")
    await runtime.start()
    print("churning", flush=True)
    for number in range(1000):
        disk = folder / "disks" / f"{name}-{number}"
        await runtime.boot(
            BootPlan(disk.name, (), disk / "upper", disk / "work", egress=Egress())
        )
        await runtime.halt(disk.name)
        await runtime.discard(disk)

asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
"""


def own_and_die(folder: Path, *words: str) -> None:
    """Run an owner of the runtime in a process of its own, and kill it without any warning."""
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(folder), *words], stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "ready\n"
        owner.kill()


async def test_a_new_engine_takes_back_sandboxes_and_their_processes(tmp_path: Path) -> None:
    own_and_die(tmp_path)
    go = tmp_path / "disks/one/upper/root/home/user/go"
    runtime = BubblewrapRuntime(tmp_path / "data")
    await runtime.start()
    try:
        assert runtime.living() == ["one"]
        sandbox = Sandbox(runtime, "one")
        lasting = next(one for one in runtime.children("one") if one.label == b"lasting")
        await sandbox.run("touch go")
        assert lasting.stdin is not None
        os.write(lasting.stdin, b"again\n")
        assert await read_all(lasting.stdout) == "before\nafter\nagain\n"
        assert await lasting.wait() == 5
        assert go.exists()
    finally:
        await runtime.halt("one")
        await runtime.close()


async def test_what_ended_while_no_engine_was_there_still_tells_its_end(tmp_path: Path) -> None:
    own_and_die(tmp_path)
    first = BubblewrapRuntime(tmp_path / "data")
    await first.start()
    await Sandbox(first, "one").start("sleep 0.3; touch go")
    await first.close()
    await eventually((tmp_path / "disks/one/upper/root/home/user/go").exists)
    await asyncio.sleep(0.1)
    runtime = BubblewrapRuntime(tmp_path / "data")
    await runtime.start()
    try:
        short = next(one for one in runtime.children("one") if one.label == b"short")
        assert await short.wait() == 6
        assert await read_all(short.stdout) == "final output\n"
        assert short not in runtime.children("one")
    finally:
        await runtime.halt("one")
        await runtime.close()


async def test_a_frozen_sandbox_is_still_frozen_for_a_new_engine(tmp_path: Path) -> None:
    own_and_die(tmp_path, "frozen")
    runtime = BubblewrapRuntime(tmp_path / "data")
    await runtime.start()
    try:
        assert runtime.is_frozen("one")
        await runtime.thaw("one")
        assert (await Sandbox(runtime, "one").run("echo awake")).out == "awake\n"
    finally:
        await runtime.halt("one")
        await runtime.close()
    assert runtime.living() == []


async def test_sandboxes_outlive_the_spawner(
    sandbox: Sandbox, runtime: BubblewrapRuntime, data: Path
) -> None:
    await sandbox.run("echo kept > file")
    child = await sandbox.start("until [ -e go ]; do sleep 0.02; done; echo went on; exit 4")
    await kill_spawner(data)
    assert sandbox.runtime.is_alive(sandbox.id)
    after = await sandbox.start("read word; echo $word", stdin=True)
    assert (await sandbox.run("cat file; touch go")).out == "kept\n"
    assert await child.wait() == CODE_LOST
    assert await read_all(child.stdout) == "went on\n"
    # What is done with a process of the old spawner does not touch one of the new.
    assert after in runtime.children(sandbox.id)
    os.write(after.stdin or 0, b"still here\n")
    assert await read_all(after.stdout) == "still here\n"
    assert await after.wait() == 0


@pytest.mark.parametrize(
    "backend",
    [way for way in backends.find_all() if "pasta" not in way],
    ids=lambda path: Path(path).name,
)
@pytest.mark.skipif(not HANGS_UP, reason="this kernel does not hang up when a process has ended")
async def test_a_way_out_ends_with_its_sandbox_without_engine_and_spawner(
    data: Path, tmp_path: Path, backend: str
) -> None:
    runtime = BubblewrapRuntime(data, backend=backend)
    await runtime.start()
    await runtime.boot(plan(tmp_path, "one", egress=Egress()))
    record = json.loads((tmp_path / "data/run/one.json").read_text())
    assert backends.is_connected(record)
    first = get_first_process(data, "one")
    os.kill(get_spawner(data), signal.SIGKILL)
    os.kill(first, signal.SIGKILL)
    await eventually(lambda: not backends.is_connected(record))
    await runtime.close()


async def test_orders_under_way_fail_when_the_spawner_dies(
    sandbox: Sandbox, runtime: BubblewrapRuntime, tmp_path: Path, data: Path
) -> None:
    boots = [asyncio.create_task(runtime.boot(plan(tmp_path, f"b{n}"))) for n in range(6)]
    await asyncio.sleep(0)
    os.kill(get_spawner(data), signal.SIGKILL)
    results = await asyncio.gather(*boots, return_exceptions=True)
    assert all(one is None or isinstance(one, RuntimeFaultError) for one in results)
    # Whatever was half done does not stand in the way of doing it again.
    for number in range(6):
        await runtime.boot(plan(tmp_path, f"b{number}"))
    assert len(runtime.living()) == 7


async def test_a_dead_sandbox_is_cleared_away_at_start(tmp_path: Path, data: Path) -> None:
    own_and_die(tmp_path)
    runtime = BubblewrapRuntime(tmp_path / "data")
    await runtime.start()
    first = get_first_process(data, "one")
    await runtime.close()
    os.kill(first, signal.SIGKILL)
    await eventually(lambda: not Path(f"/proc/{first}/root").exists())
    again = BubblewrapRuntime(tmp_path / "data")
    await again.start()
    assert again.living() == []
    assert list((tmp_path / "data/run").glob("*.json")) == []
    await again.close()


@pytest.mark.parametrize("frozen", [False, True])
async def test_sandboxes_end_when_their_data_folder_is_deleted(
    sandbox: Sandbox, runtime: BubblewrapRuntime, tmp_path: Path, frozen: bool, data: Path
) -> None:
    """Also under a running engine, and also those that an earlier spawner had started."""
    first, spawner = get_first_process(data, "one"), get_spawner(data)
    if frozen:
        await runtime.freeze("one")
    elif cgroups.find_parents() is not None:
        await kill_spawner(data)
        await sandbox.run("true")
        spawner = get_spawner(data)
    shutil.rmtree(tmp_path / "data")
    await eventually(lambda: not Path(f"/proc/{spawner}/root").exists(), within_s=60)
    assert not Path(f"/proc/{first}/root").exists()
    assert list(Path("/sys/fs/cgroup").glob(f"**/{runtime.group_prefix}*")) == []
    with pytest.raises(RuntimeFaultError, match="data folder"):
        await runtime.boot(plan(tmp_path, "two"))


async def _kill_engine_and_spawner(runtime: BubblewrapRuntime, data: Path, sandbox_id: str) -> int:
    """Stop the engine and the spawner; return the sandbox's first process, which lives on."""
    first = get_first_process(data, sandbox_id)
    await kill_spawner(data)
    await runtime.close()
    return first


@pytest.mark.skipif(orphans.find_links() is None, reason="this user has no folder below /run")
@pytest.mark.parametrize("frozen", [False, True])
async def test_sandboxes_whose_folder_is_gone_are_ended_by_the_next_engine_of_any_folder(
    runtime: BubblewrapRuntime, sandbox: Sandbox, tmp_path: Path, frozen: bool, data: Path
) -> None:
    """Engine and spawner were stopped before the folder was deleted, so no process noticed."""
    if frozen:
        await runtime.freeze(sandbox.id)
    first = await _kill_engine_and_spawner(runtime, data, sandbox.id)
    another = BubblewrapRuntime(tmp_path / "another")
    await another.start()
    assert Path(f"/proc/{first}/root").exists()
    await another.close()
    shutil.rmtree(tmp_path / "data")
    another = BubblewrapRuntime(tmp_path / "another")
    await another.start()
    await eventually(lambda: not Path(f"/proc/{first}/root").exists())
    assert list(Path("/sys/fs/cgroup").glob(f"**/{runtime.group_prefix}*")) == []
    assert not (orphans.find_links() or tmp_path).joinpath(runtime.group_prefix).is_symlink()
    await another.close()
    end_all(tmp_path / "another")


async def test_sandboxes_of_a_recreated_folder_are_ended_by_its_engine(
    runtime: BubblewrapRuntime, sandbox: Sandbox, tmp_path: Path, data: Path
) -> None:
    first = await _kill_engine_and_spawner(runtime, data, sandbox.id)
    shutil.rmtree(tmp_path / "data")
    again = BubblewrapRuntime(tmp_path / "data")
    await again.start()
    await eventually(lambda: not Path(f"/proc/{first}/root").exists())
    assert again.living() == []
    await again.close()


async def test_sandboxes_of_a_renamed_folder_live_on(
    runtime: BubblewrapRuntime, sandbox: Sandbox, tmp_path: Path
) -> None:
    (tmp_path / "data").rename(tmp_path / "renamed")
    another = BubblewrapRuntime(tmp_path / "another")
    await another.start()
    await another.close()
    assert runtime.is_alive(sandbox.id)
    (tmp_path / "renamed").rename(tmp_path / "data")
    end_all(tmp_path / "another")


async def test_a_spawner_of_another_version_is_replaced_and_its_sandboxes_live_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, data: Path
) -> None:
    (tmp_path / "data/run").mkdir(parents=True)
    with subprocess.Popen([sys.executable, "-c", OLD_SPAWNER, str(tmp_path / "data")]) as old:
        await eventually((tmp_path / "data/spawner.sock").exists)
        own_and_die(tmp_path, "any version")
        runtime = BubblewrapRuntime(tmp_path / "data")
        await runtime.start()
        assert old.wait(30) == -signal.SIGKILL
    assert "speaks protocol 0 and this engine" in caplog.text
    assert runtime.living() == ["one"]
    assert get_spawner(data) != old.pid
    lasting = next(one for one in runtime.children("one") if one.label == b"lasting")
    assert lasting.stdin is not None
    os.write(lasting.stdin, b"again\n")
    await Sandbox(runtime, "one").run("touch go")
    assert await read_all(lasting.stdout) == "before\nafter\nagain\n"
    await runtime.close()


async def test_kills_at_random_moments_leak_nothing(tmp_path: Path) -> None:
    for number in range(8):
        with subprocess.Popen(
            [sys.executable, "-c", CHURN, str(tmp_path), str(number)],
            stdout=subprocess.PIPE,
            text=True,
        ) as owner:
            assert owner.stdout is not None
            assert owner.stdout.readline() == "churning\n"
            await asyncio.sleep(0.003 + 0.017 * number)
            owner.kill()
    runtime = BubblewrapRuntime(tmp_path / "data")
    await runtime.start()
    for sandbox_id in runtime.living():
        await runtime.halt(sandbox_id)
    await runtime.close()
    assert list((tmp_path / "data/run").iterdir()) == []
    tag = runtime.group_prefix
    assert list(Path("/sys/fs/cgroup").glob(f"**/{tag}*")) == []
