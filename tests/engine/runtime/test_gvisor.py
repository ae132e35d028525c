"""The second wall: the runtime's contract on gVisor's kernel, and what only that wall has."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from e2b import Sandbox as E2BSandbox
from e2b import Template

from sandkeeper.engine.runtime.bubblewrap import binaries
from sandkeeper.engine.runtime.bubblewrap.runtime import BubblewrapRuntime
from sandkeeper.engine.runtime.contract import (
    Isolation,
    NotAliveError,
    ResourceLimits,
    RuntimeFaultError,
)
from sandkeeper.engine.runtime.gvisor import runsc
from sandkeeper.engine.runtime.linux import cgroups, process_records
from support.engine_process import Engine
from support.eventually import eventually
from support.isolation import needs_gvisor, not_on_gvisor
from support.process_leaks import get_first_process
from support.runtime_helpers import Sandbox, plan
from support.sandbox_probe import assert_outside_host_ids, read_ids

HERE = Path(__file__).resolve().parent
TESTS = HERE.parents[1]
# Of the suites that `make test-gvisor` runs as a whole: exec, files, ports, pause, crash, escape.
SELECTION = (
    "engine/runtime/test_sandboxes.py",
    "engine/runtime/test_recovery.py::test_sandboxes_outlive_the_spawner",
    "engine/envd/test_files.py::test_what_is_written_is_read_and_belongs_to_the_user",
    "engine/proxy/test_ports.py::test_messages_pass_a_websocket_both_ways",
    "engine/control/test_lifecycle.py::test_a_pause_with_memory_keeps_the_processes",
    "security/test_escape_probes.py",
)

# Words from the names of tests that say nothing about the wall.
SAME_BEHIND_BOTH = ("many_sandboxes", "described", "cannot_be", "discarded", "arguments", "usage")

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="gVisor needs root")


@needs_gvisor
@not_on_gvisor("this run is it")
@pytest.mark.timeout(300)
def test_the_contract_holds_on_gvisor(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    line += [f"--basetemp={tmp_path}/t", *(f"{TESTS}/{name}" for name in SELECTION)]
    line += ["-k", " and ".join(f"not {word}" for word in SAME_BEHIND_BOTH)]
    said = subprocess.run(
        line,
        capture_output=True,
        text=True,
        check=False,
        cwd=TESTS.parent,
        env={**os.environ, "TEST_ISOLATION": Isolation.GVISOR},
    )
    assert said.returncode == 0, said.stdout[-6000:] + said.stderr[-2000:]


@pytest.fixture
async def on_gvisor(runtime: BubblewrapRuntime, tmp_path: Path) -> AsyncIterator[Sandbox]:
    await runtime.boot(replace(plan(tmp_path, "one"), isolation=Isolation.GVISOR))
    yield Sandbox(runtime, "one")
    await runtime.halt("one")


@needs_gvisor
async def test_programs_call_gvisors_kernel_and_not_the_hosts(on_gvisor: Sandbox) -> None:
    said = await on_gvisor.run("dmesg; uname -r; cat /proc/self/status")
    assert "Starting gVisor" in said.out
    assert os.uname().release not in said.out
    powers = [line.split()[1] for line in said.out.splitlines() if line.startswith("Cap")]
    assert set(powers) == {"0" * 16}


@needs_gvisor
async def test_a_program_gets_its_own_descriptors_and_environment_only(on_gvisor: Sandbox) -> None:
    said = await on_gvisor.run("echo /proc/self/fd/*; env | cut -d= -f1 | sort | tr '\\n' ' '")
    held, names = said.out.splitlines()
    # The last is the folder that the shell looks into.
    assert set(held.split()) <= {f"/proc/self/fd/{number}" for number in range(4)}
    assert set(names.split()) <= {"HOME", "LANG", "LOGNAME", "PATH", "PWD", "SHLVL", "USER", "_"}


@needs_gvisor
async def test_sentry_and_gofer_are_held_on_the_host(
    on_gvisor: Sandbox, runtime: BubblewrapRuntime, data: Path
) -> None:
    """Neither has a host id, both have a filter, and neither sees the host's files."""
    await on_gvisor.start("sleep 1000")
    first = get_first_process(data, "one")
    own = Path("/proc/self/ns/mnt").stat().st_ino
    found = {}
    for pid in process_records.list_children(first):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        found[words[0].decode()] = pid
    assert {"runsc-gofer", "runsc-sandbox"} <= set(found)
    for name in ("runsc-gofer", "runsc-sandbox"):
        pid = found[name]
        assert_outside_host_ids(read_ids(pid))
        assert "\nSeccomp:\t2\n" in Path(f"/proc/{pid}/status").read_text(), name
        assert Path(f"/proc/{pid}/ns/mnt").stat().st_ino != own
        folder = Path(f"/proc/{pid}/cwd")
        assert folder.samefile(f"/proc/{pid}/root"), name
        assert not Path(f"/proc/{pid}/root{data}").exists()
    assert runtime.is_alive("one")


@needs_gvisor
async def test_files_pass_both_ways_at_once(on_gvisor: Sandbox) -> None:
    home = Path(f"/proc/self/fd/{on_gvisor.runtime.root('one')}/home/user")
    await on_gvisor.run("echo inside > file; echo inside > /tmp/file")
    assert (home / "file").read_text() == "inside\n"
    assert (home / "../../tmp/file").read_text() == "inside\n"
    for number in range(5):
        (home / "file").write_text(f"{number}\n")
        assert (await on_gvisor.run("cat file")).out == f"{number}\n"


@needs_gvisor
@pytest.mark.parametrize("line", ["kill -9 1", "x=x; while :; do x=$x$x; done"])
async def test_a_sandbox_whose_kernel_ends_has_ended_and_starts_again(
    on_gvisor: Sandbox, runtime: BubblewrapRuntime, tmp_path: Path, line: str
) -> None:
    """Its root may end the first process; too much memory ends the sentry."""
    small = ResourceLimits(memory_mb=256)
    wanted = replace(plan(tmp_path, "two", limits=small), isolation=Isolation.GVISOR)
    await runtime.boot(wanted)
    two = Sandbox(runtime, "two")
    await two.run("echo kept > /root/file", user="root")
    await two.start(line, user="root")
    await eventually(lambda: not runtime.is_alive("two"))
    with pytest.raises(NotAliveError):
        await two.run("true")
    await runtime.boot(wanted)
    assert (await two.run("cat /root/file", user="root")).out == "kept\n"
    assert (await on_gvisor.run("echo untouched")).out == "untouched\n"
    await runtime.halt("two")


@needs_gvisor
async def test_a_fork_bomb_ends_at_most_its_own_sandbox(
    on_gvisor: Sandbox, runtime: BubblewrapRuntime, tmp_path: Path
) -> None:
    few = ResourceLimits(pids_max=16)
    await runtime.boot(replace(plan(tmp_path, "bomb", limits=few), isolation=Isolation.GVISOR))
    parents = cgroups.find_parents()
    assert parents is not None
    group = cgroups.list_groups(parents, runtime.group_prefix)["bomb"]
    await Sandbox(runtime, "bomb").start("while :; do sleep 1000 & done 2>/dev/null")
    for _ in range(20):
        assert len(cgroups.list_processes(group)) < 2000
        await asyncio.sleep(0.05)
    assert (await on_gvisor.run("echo untouched")).out == "untouched\n"
    await runtime.halt("bomb")
    assert runtime.living() == ["one"]


@needs_gvisor
async def test_a_dead_kernel_leaves_nothing_for_the_next_engine(
    runtime: BubblewrapRuntime, data: Path, tmp_path: Path
) -> None:
    await runtime.boot(replace(plan(tmp_path, "one"), isolation=Isolation.GVISOR))
    record = process_records.find_record(data / "run", "one")
    assert record is not None
    await runtime.close()
    os.kill(record["sentry"]["pid"], signal.SIGKILL)
    await eventually(lambda: process_records.read_start(record["sentry"]["pid"]) == 0)
    again = BubblewrapRuntime(data)
    await again.start()
    assert again.living() == []
    await eventually(lambda: process_records.read_start(record["pid"]) == 0)
    assert list((data / "run").iterdir()) == []
    assert list(Path("/sys/fs/cgroup").glob(f"**/{runtime.group_prefix}*")) == []
    await again.close()


@needs_gvisor
def test_a_template_has_its_wall_and_every_answer_tells_it(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "data", "--runtime", "hostile=runsc").start()
    options = engine.sdk_options()
    try:
        Template.build(Template().from_base_image().run_cmd("dmesg > log"), "hostile", **options)
        hostile = E2BSandbox.create("hostile", timeout=300, **options)
        assert "Starting gVisor" in hostile.files.read("log")
        snapshot = hostile.create_snapshot()
        again = E2BSandbox.create(snapshot.snapshot_id, timeout=300, **options)
        own = E2BSandbox.create(timeout=300, **options)
        with engine.client() as api:
            listed = {one["sandboxID"]: one["isolation"] for one in api.get("/v2/sandboxes").json()}
            told = api.get(f"/sandboxes/{hostile.sandbox_id}").json()["isolation"]
        assert told == "gvisor"
        assert listed[hostile.sandbox_id] == listed[again.sandbox_id] == "gvisor"
        assert "Starting gVisor" in again.commands.run("dmesg").stdout
        if not os.environ.get("TEST_ISOLATION"):
            assert listed[own.sandbox_id] == "bubblewrap"
        hostile.pause()
        assert "Starting gVisor" in hostile.connect(timeout=300).commands.run("dmesg").stdout
    finally:
        engine.stop()


async def test_without_runsc_the_reason_is_told(
    runtime: BubblewrapRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runsc, "_PLACES", "/nowhere")
    monkeypatch.setenv("PATH", "/nowhere")
    fault = "runsc is missing" if binaries.find_uid_base() is not None else "runs as root"
    with pytest.raises(RuntimeFaultError, match=fault):
        await runtime.prove(Isolation.GVISOR)
    assert runtime.living() == []


@root_only
async def test_a_runsc_that_does_not_work_is_refused_with_its_own_words(
    runtime: BubblewrapRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "bin/runsc"
    broken.parent.mkdir()
    broken.write_bytes(Path("/bin/false").read_bytes())
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{broken.parent}:{os.environ['PATH']}")
    with pytest.raises(RuntimeFaultError, match="runsc"):
        await runtime.prove(Isolation.GVISOR)
    assert runtime.living() == []
    assert list((tmp_path / "data/run").iterdir()) == []
