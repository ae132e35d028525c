"""A full disk under the database: it is said, nothing is lost, and all goes on with room again."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from support.engine_process import Engine
from support.eventually import eventually_sync
from support.keeper_process import Keeper
from support.own_postgres import serving_postgres

DISK_MB = 192
KEY = "sk_shared"
USED = {"policy": {"idleTimeoutMs": 3_600_000}}


class SmallDisk:
    """A file system of its own, which can be filled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextmanager
    def filled(self) -> Iterator[None]:
        filler = self.folder / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            for size in (1024 * 1024, 4096, 1):
                with contextlib.suppress(OSError):
                    while file.write(bytes(size)):
                        pass
        try:
            yield
        finally:
            filler.unlink()


@pytest.fixture
def disk() -> Iterator[SmallDisk]:
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small file system")
    folder = Path(tempfile.mkdtemp(prefix="sandkeeper-disk-"))
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "sandkeeper", str(folder)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        folder.rmdir()
        pytest.skip("no file system can be mounted here")
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
        folder.rmdir()


@pytest.fixture(params=["sqlite", "postgresql"])
def keeper(
    request: pytest.FixtureRequest, engine: Engine, disk: SmallDisk, tmp_path: Path
) -> Iterator[Keeper]:
    """A keeper whose database lies on the small disk, and nothing else."""
    with ExitStack() as stack:
        flags: tuple[str, ...] = ("--database", f"sqlite:///{disk.folder}/keeper.db")
        if request.param == "postgresql":
            server = stack.enter_context(serving_postgres(disk.folder))
            flags = ("--database", server.url)
        one = Keeper(
            tmp_path / "data",
            *flags,
            engine=engine,
            operator_key=KEY,
            files_url=(tmp_path / "files").as_uri(),
        )
        stack.callback(one.stop)
        yield one.start()


def ask(api: httpx.Client, path: str) -> int:
    """Make a write that needs room, and return its status."""
    return api.post(f"{path}/wake", headers={"Idempotency-Key": uuid.uuid4().hex}).status_code


def is_said(api: httpx.Client) -> bool:
    answer = api.get("/readyz")
    assert answer.status_code in (200, 503)
    return answer.status_code == 503 and "disk of the database is full" in answer.text


@pytest.mark.timeout(240)
def test_a_full_disk_is_said_and_costs_nothing(
    keeper: Keeper, disk: SmallDisk, project: str
) -> None:
    path = f"/api/sandboxes/{project}"
    with keeper.client(KEY) as api:
        made = api.put(path, json=USED).json()
        statuses: set[int] = set()
        with disk.filled():

            def refused() -> bool:
                statuses.add(ask(api, path))
                return 503 in statuses

            eventually_sync(refused, within_s=90)
            eventually_sync(lambda: ask(api, path) and is_said(api), within_s=60)
            shown = api.get(f"{path}/status").json()
            assert (shown["status"], shown["instanceId"]) == ("RUNNING", made["instanceId"])
            assert api.post(f"{path}/activity", json={}).status_code == 202
            statuses |= {ask(api, path) for _ in range(20)}
            statuses.add(api.post(f"{path}/pause").status_code)
        assert statuses <= {200, 202, 503}
        eventually_sync(lambda: api.get("/readyz").status_code == 200, within_s=60)
        assert api.post(f"{path}/wake?wait=60").json()["status"] == "succeeded"
        assert api.get(f"{path}/status").json()["instanceId"] == made["instanceId"]
        assert api.delete(path).json()["status"] == "KILLED"


@pytest.mark.timeout(240)
def test_no_request_fails_for_a_log_line_that_cannot_be_written(
    engine: Engine, disk: SmallDisk, tmp_path: Path, project: str
) -> None:
    keeper = Keeper(
        disk.folder / "keeper",
        "--database",
        f"sqlite:///{tmp_path}/keeper.db",
        engine=engine,
        files_url=(tmp_path / "files").as_uri(),
    )
    path = f"/api/sandboxes/{project}"
    try:
        with keeper.start().client() as api:
            assert api.put(path, json=USED).status_code == 201
            with disk.filled():
                # The last page of the log has room for some lines.
                asked = ("capture", "pause", *["capture"] * 40, "wake?wait=60")
                answers = [api.post(f"{path}/{verb}").status_code for verb in asked]
                assert answers == [200, 200, *[409] * 40, 200]
            assert api.delete(path).json()["status"] == "KILLED"
        eventually_sync(lambda: "lines_not_written" in keeper.output, within_s=30)
    finally:
        keeper.stop()


@pytest.mark.timeout(240)
def test_a_keeper_starts_on_a_full_disk(engine: Engine, disk: SmallDisk, tmp_path: Path) -> None:
    folder = disk.folder / "keeper"
    flags = ("--database", f"sqlite:///{tmp_path}/keeper.db")
    keeper = Keeper(folder, *flags, engine=engine, files_url=(tmp_path / "files").as_uri())
    keeper.log = tmp_path / "keeper.log"
    try:
        keeper.start().kill9()
        (folder / "keeper.url").unlink()
        with disk.filled(), keeper.start().client() as api:
            assert "url_file_not_written" in keeper.output
            assert api.get("/readyz").status_code == 200
            assert keeper.interrupt() == 0
    finally:
        keeper.stop()


@pytest.mark.timeout(240)
def test_a_keeper_that_cannot_write_its_keys_says_so_and_ends(
    engine: Engine, disk: SmallDisk, tmp_path: Path
) -> None:
    folder = disk.folder / "keeper"
    folder.mkdir(mode=0o700)
    keeper = Keeper(folder, "--database", f"sqlite:///{tmp_path}/keeper.db", engine=engine)
    keeper.log = tmp_path / "keeper.log"
    with disk.filled(), pytest.raises(AssertionError, match=r"The keeper cannot run: .*No space"):
        keeper.start()
