"""A sandbox that takes all it can get: the engine serves on, and no other sandbox is touched."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2b import CommandExitException, NotEnoughSpaceException, Sandbox, SandboxException

from support.base_cache import lend_base
from support.engine_process import Engine
from support.eventually import eventually

DISK_MB = 96
FILL = "i=0; while head -c 4M /dev/zero > fill.$i; do i=$((i+1)); done 2>/dev/null; echo full"
FORK = """
import os, time
while True:
    try:
        if os.fork() == 0:
            time.sleep(1000)
    except BlockingIOError:
        time.sleep(0.01)
"""


@pytest.fixture
def small_engine(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """An engine on a disk so small that a sandbox can fill it."""
    data = tmp_path / "small"
    data.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m,mode=700", "tmpfs", str(data)]
    if os.geteuid() != 0 or subprocess.run(mounting, capture_output=True, check=False).returncode:
        pytest.skip("a disk of its own needs the right to mount")
    engine = Engine(lend_base(tmp_path_factory, data))
    try:
        yield engine.start()
    finally:
        engine.stop()
        subprocess.run(["umount", "--lazy", str(data)], check=True)


def test_a_full_disk_is_told_and_freed_again(small_engine: Engine) -> None:
    options = small_engine.sdk_options()
    greedy = Sandbox.create(timeout=300, **options)
    other = Sandbox.create(timeout=300, **options)
    running = other.commands.run("read word; echo $word", background=True, stdin=True)
    assert greedy.commands.run(FILL).stdout == "full\n"
    for box in (greedy, other):
        with pytest.raises(NotEnoughSpaceException):
            box.files.write("more", b"x" * 30_000_000)
    assert other.commands.run("echo untouched").stdout == "untouched\n"
    other.commands.send_stdin(running.pid, "still here\n")
    assert running.wait().stdout == "still here\n"
    with small_engine.client() as api:
        assert api.get("/health").status_code == 200
        assert len(api.get("/v2/sandboxes").json()) == 2
        for network in ({}, {"network": {"denyOut": ["192.0.2.0/24"]}}):
            refused = api.post("/v2/sandboxes", json={"templateID": "base", **network})
            assert refused.status_code == 507
            assert refused.json()["code"] == 507
            assert "No space left" in refused.json()["message"]
        snapshot = api.post(f"/sandboxes/{greedy.sandbox_id}/snapshots", json={})
        assert snapshot.status_code == 507
        assert len(api.get("/v2/sandboxes").json()) == 2
    other.pause()
    other.connect(timeout=300)
    assert greedy.kill()
    after = Sandbox.create(timeout=300, **options)
    after.files.write("more", b"x" * 30_000_000)
    assert other.commands.run("echo untouched").stdout == "untouched\n"


async def test_processes_without_end_stay_in_their_sandbox(engine: Engine) -> None:
    options = engine.sdk_options()
    greedy = Sandbox.create(timeout=300, **options)
    other = Sandbox.create(timeout=300, **options)
    greedy.commands.run(f"python3 -c '{FORK}'", background=True, timeout=0)

    def is_refused() -> bool:
        try:
            greedy.commands.run("exec sh -c 'true | true | true'")
        except (CommandExitException, SandboxException):
            return True
        return False

    try:
        await eventually(is_refused, within_s=60)
        assert other.commands.run("echo untouched").stdout == "untouched\n"
    finally:
        assert greedy.kill()
    assert other.commands.run("echo untouched").stdout == "untouched\n"
    other.kill()


async def test_a_reader_that_stalls_is_let_go_and_the_process_goes_on(engine: Engine) -> None:
    box = Sandbox.create(timeout=300, **engine.sdk_options())
    # The handle is never read, so the engine soon cannot send any more.
    stalled = box.commands.run("head -c 60M /dev/zero; touch done", background=True, timeout=0)
    await eventually(lambda: box.files.exists("done"), within_s=120)
    assert box.commands.run("echo others are served").stdout == "others are served\n"
    stalled.disconnect()
    box.kill()
