"""A disk that fills while files come back: told by its name, nothing kept is lost, and a wake with
room again brings everything. The disk is a real one, of a few megabytes.
"""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from sandkeeper.domain.decisions.wake import Wake, WakeStatus
from sandkeeper.domain.policy import FilesOnResume
from sandkeeper.domain.receipt import WakeMethod
from sandkeeper.domain.states import State
from sandkeeper.store import open_store
from sandkeeper.testing.providers import ForgetfulProvider
from support.base_cache import lend_base
from support.engine_process import Engine
from support.eventually import eventually
from support.wake_replica import STAY, WORKDIR, Waker, browse, connect

DISK_BYTES = 128 * 2**20
FILES = 24
FILE_BYTES = 2**20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none", str(folder)]
    mounted = subprocess.run(["mount", *options], capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"no disk of its own can be had here: {mounted.stderr}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def small_engine(small_disk: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    running = Engine(lend_base(tmp_path_factory, small_disk / "engine"))
    try:
        yield running.start()
    finally:
        running.stop()


@pytest.fixture
async def waker(small_engine: Engine, database: str, tmp_path: Path) -> AsyncIterator[Waker]:
    keeper = f"full-{uuid.uuid4().hex[:8]}"
    provider = connect(small_engine.url, small_engine.key, keeper)
    async with open_store(database, migrate=False) as store:
        yield Waker.over(store, ForgetfulProvider(provider), tmp_path / "kept")
    await provider.close()


def fill(disk: Path, *, leaving: int) -> Path:
    """Something else takes the room on the disk."""
    ballast = disk / "ballast"
    room = os.statvfs(disk)
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, room.f_bavail * room.f_frsize - leaving)
    return ballast


async def test_a_new_instance_that_has_no_room_for_the_files_is_ended_and_made_again(
    waker: Waker, small_engine: Engine, small_disk: Path
) -> None:
    sandbox = await waker.create("shop")
    native = await waker.enter(sandbox)
    await native.commands.run(
        f"cd {WORKDIR} && echo whole > index.html && for i in $(seq {FILES}); do"
        f" head -c {FILE_BYTES} /dev/urandom > f$i; done && sha256sum f* > sums"
    )
    await waker.capture(sandbox)
    await waker.provider.kill(sandbox.instance_id or "")
    kept = await waker.replica.store.files.list_versions(sandbox.owner)
    # The engine removes what it had in the background; the room counts only then.
    gone = [small_engine.data / name for name in ("sandboxes", "trash")]
    await eventually(lambda: not any(list(folder.iterdir()) for folder in gone))
    ballast = fill(small_disk, leaving=FILES * FILE_BYTES // 2)

    wake = await waker.wake(sandbox)
    assert (wake.status, wake.error_code) == (WakeStatus.FAILED, "sandbox_disk_full"), wake.error
    assert wake.attempt == 1, "another attempt would fill the same disk"
    assert (await waker.get(sandbox)).state is State.KILLED
    assert await waker.instances(sandbox) == []
    assert await waker.replica.store.files.list_versions(sandbox.owner) == kept

    ballast.unlink()
    wake = await waker.wake(sandbox)
    assert (wake.status, wake.method) == (WakeStatus.SUCCEEDED, WakeMethod.RECREATE), wake.error
    assert wake.receipt is not None
    assert (wake.receipt.restored, wake.receipt.lost_count) == (FILES + 2, 0)
    back = await waker.get(sandbox)
    assert await browse(small_engine.url, back) == "whole\n"
    native = await waker.enter(back)
    await native.commands.run(f"cd {WORKDIR} && sha256sum --quiet -c sums")
    left = await native.commands.run("find / -name '*sandkeeper-part' -o -name '.sandkeeper-*' ||:")
    # The number of the last claim stays, so that nothing older is carried out.
    assert [Path(one).name[:17] for one in left.stdout.split()] == [".sandkeeper-fence"]
    await waker.provider.kill(back.instance_id or "")


@pytest.mark.parametrize("when", FilesOnResume)
async def test_a_sleeper_without_room_for_what_it_lost_gets_it_with_the_next_wake(
    waker: Waker, small_engine: Engine, small_disk: Path, when: FilesOnResume
) -> None:
    sandbox = await waker.create("shop", policy=replace(STAY, files_on_resume=when))
    native = await waker.enter(sandbox)
    await native.commands.run(
        f"cd {WORKDIR} && echo whole > index.html && head -c 9000000 /dev/urandom > large"
    )
    await waker.replica.lifecycle.pause(sandbox.id, actor="test")
    provider = cast("ForgetfulProvider", waker.provider)
    provider.forgotten = f"rm {WORKDIR}/large && head -c 9000000 /dev/zero > /home/user/ballast"
    ballast = fill(small_disk, leaving=2**20)

    first = wake = await waker.wake(sandbox)
    if when is FilesOnResume.BEFORE:
        assert (wake.status, wake.error_code) == (WakeStatus.FAILED, "sandbox_disk_full")
    else:
        assert (wake.status, wake.receipt and wake.receipt.files_pending) == ("succeeded", True)
        assert "could not be restored yet" in ((wake.receipt and wake.receipt.reason) or "")
    there = await waker.get(sandbox)
    assert (there.state, there.instance_id) == (State.RUNNING, sandbox.instance_id)
    assert await waker.instances(sandbox) == [sandbox.instance_id]

    ballast.unlink()
    wake = await waker.wake(sandbox)
    assert (wake.status, wake.method) == (WakeStatus.SUCCEEDED, WakeMethod.NOTHING), wake.error
    if when is FilesOnResume.AFTER:
        wake = cast("Wake", await waker.replica.store.wakes.find(first.id))
    assert wake.receipt is not None
    assert wake.receipt.restored_paths == ("large",)
    assert await browse(small_engine.url, await waker.get(sandbox)) == "whole\n"
    await waker.provider.kill(sandbox.instance_id or "")
