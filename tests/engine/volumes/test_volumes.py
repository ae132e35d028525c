"""Volumes through the official SDK: files by the API, mounts in sandboxes, and hostile ones."""

from __future__ import annotations

import io
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from e2b import Sandbox, Volume
from e2b.exceptions import SandboxException, VolumeException, VolumePathNotFoundException

from support.engine_process import Engine


@pytest.fixture
def volume(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Volume]:
    for name, value in engine.env.items():
        monkeypatch.setenv(name, value)
    made = Volume.create(f"v-{uuid.uuid4()}")
    yield made
    engine.kill_all()
    Volume.destroy(made.volume_id)


def test_files_are_written_listed_changed_and_removed(volume: Volume) -> None:
    written = volume.write_file("/a/b.txt", "hello")
    large = b"x" * 3_000_000
    volume.write_file("large", io.BytesIO(large))

    assert (written.size, written.uid, written.mode) == (5, 1000, 0o644)
    assert volume.read_file("/a/b.txt") == "hello"
    assert b"".join(volume.read_file("large", format="stream")) == large
    assert volume.make_dir("/d", mode=0o700).mode == 0o700
    with pytest.raises(VolumePathNotFoundException):
        volume.make_dir("/x/y")
    volume.make_dir("/x/y", force=True)
    assert volume.update_metadata("/d", uid=0, gid=7, mode=0o755).gid == 7
    paths = [entry.path for entry in volume.list("/", depth=2)]
    assert paths == ["/a", "/a/b.txt", "/d", "/large", "/x", "/x/y"]
    volume.remove("/a")
    assert not volume.exists("/a/b.txt")
    with pytest.raises(VolumePathNotFoundException):
        volume.remove("/a")
    with pytest.raises(VolumeException):
        volume.remove("/")


def test_sandboxes_share_a_volume_that_outlives_them(engine: Engine, volume: Volume) -> None:
    volume.write_file("seed.txt", "seed")
    first = Sandbox.create(volume_mounts={"/mnt/data": volume})
    second = Sandbox.create(volume_mounts={"/home/user/data": volume.name})

    assert first.commands.run("cat /mnt/data/seed.txt").stdout == "seed"
    first.files.write("/mnt/data/from-first.txt", "1")
    assert second.files.read("data/from-first.txt") == "1"
    assert first.get_info().volume_mounts == [{"name": volume.name, "path": "/mnt/data"}]
    with pytest.raises(VolumeException, match="mounted"):
        Volume.destroy(volume.volume_id)
    with engine.client() as client:
        client.post(f"/sandboxes/{first.sandbox_id}/pause", json={"memory": False})
    first.connect()
    assert first.files.read("/mnt/data/from-first.txt") == "1"
    first.kill()
    second.kill()
    assert volume.read_file("from-first.txt") == "1"


def test_what_a_sandbox_leaves_in_a_volume_leads_nowhere_else(volume: Volume) -> None:
    box = Sandbox.create(volume_mounts={"/mnt/data": volume})
    box.commands.run(
        "cd /mnt/data; ln -s /etc/passwd out; ln -s / root; ln -s ../../../.. up; mkfifo pipe; "
        "ln -s /proc/self/environ environ; mkdir own"
    )

    for path in ("out", "root/etc/passwd", "up/etc/passwd", "environ", "/../../etc/passwd"):
        with pytest.raises(VolumePathNotFoundException):
            volume.read_file(path)
        assert volume.write_file(f"{path}.txt", "inside").path.startswith("/")
    with pytest.raises(VolumeException, match="not a regular file"):
        volume.read_file("pipe")
    assert volume.get_info("out").target == "/etc/passwd"
    with pytest.raises(VolumeException):
        volume.update_metadata("pipe", mode=0o777)


def test_mounts_that_cannot_be_are_refused_with_a_reason(volume: Volume) -> None:
    for path, name, reason in (
        ("/data", "no-such-volume", "there is no volume"),
        ("data", volume.name, "absolute"),
        ("/proc/1", volume.name, "nothing can be mounted"),
        ("/", volume.name, "nothing can be mounted"),
        ("/usr/bin", volume.name, "nothing can be mounted"),
    ):
        with pytest.raises(SandboxException, match=reason):
            Sandbox.create(volume_mounts={path: name})
    with pytest.raises(VolumeException, match="already"):
        Volume.create(volume.name)
    with pytest.raises(VolumeException, match="name"):
        Volume.create("../x")


def test_a_volume_is_never_deleted_under_a_sandbox_that_is_being_created(
    volume: Volume,
) -> None:
    def create(name: str) -> Sandbox | None:
        try:
            return Sandbox.create(volume_mounts={"/mnt/data": name})
        except SandboxException:
            return None

    def destroy(volume_id: str) -> bool:
        try:
            return Volume.destroy(volume_id)
        except VolumeException:
            return False

    with ThreadPoolExecutor(2) as pool:
        for _ in range(5):
            made = Volume.create(f"v-{uuid.uuid4()}")
            creating = pool.submit(create, made.name)
            destroying = pool.submit(destroy, made.volume_id)
            box, is_gone = creating.result(), destroying.result()
            assert (box is None) == is_gone
            if box is not None:
                assert box.commands.run("echo kept > /mnt/data/f").exit_code == 0
                assert made.read_file("f") == "kept\n"
                box.kill()
                assert Volume.destroy(made.volume_id)


def test_only_the_volumes_own_token_opens_its_files(engine: Engine, volume: Volume) -> None:
    other = Volume.create(f"v-{uuid.uuid4()}")
    with engine.client() as client:
        path = f"/volumecontent/{volume.volume_id}/dir?path=/"
        assert client.get(path).status_code == 401
        for token, status in ((other.token, 401), (engine.key, 401), (volume.token, 200)):
            answer = client.get(path, headers={"Authorization": f"Bearer {token}"})
            assert answer.status_code == status
    Volume.destroy(other.volume_id)
