"""What lies in the data folder can be opened by its owner only, whatever the umask was."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandkeeper.domain.errors import InvalidSettingsError
from sandkeeper.hosting.data_dir import create_data_dir
from sandkeeper.services.files.blobs import open_blobs
from sandkeeper.store import open_store
from support.keeper_process import Keeper, keeping
from support.ordinary_user import run_unprivileged

SYSTEM_FILES = ("base-", "sandboxes", "layers")
"""Below these lie the files of sandboxes, with the modes that they have inside."""


@pytest.fixture
def careless_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def list_open(data: Path) -> list[str]:
    """Return every path that another user could open, if the folder above let them through."""
    found = [str(data)] if stat.S_IMODE(data.stat().st_mode) != 0o700 else []
    for where, folders, files in os.walk(data):
        for name in (*folders, *files):
            mode = os.lstat(f"{where}/{name}").st_mode
            if not name.startswith("base-") and mode & 0o077:
                found.append(f"{where}/{name} {stat.filemode(mode)}")
        folders[:] = [
            one
            for one in folders
            if not (one.startswith(SYSTEM_FILES) and where.endswith("engine"))
        ]
    return found


def use(keeper: Keeper) -> None:
    with keeper.client() as client:
        assert client.put("/api/sandboxes/safe", json={"env": {"TOKEN": "x"}}).is_success
        assert client.put("/api/sandboxes/safe/files/a.txt", content=b"kept").is_success
        assert client.post("/api/sandboxes/safe/pause").is_success


@pytest.mark.usefixtures("careless_umask")
def test_after_real_use_everything_is_private(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o755)
    with keeping(data) as keeper:
        use(keeper)
        assert list_open(data) == []
        assert (data / "sandkeeper.db-wal").exists()


@pytest.mark.usefixtures("careless_umask")
async def test_files_of_an_older_version_are_closed(tmp_path: Path) -> None:
    data = tmp_path / "data"
    pack = data / "files" / "packs" / "ab" / "abcd"
    pack.parent.mkdir(parents=True)
    for path in (pack, data / "sandkeeper.db", data / "operator.key", data / "keeper.url"):
        path.touch()
    create_data_dir(data)
    open_blobs("", data / "files")
    async with open_store(f"sqlite:///{data}/sandkeeper.db"):
        assert list_open(data) == []


@pytest.mark.usefixtures("careless_umask")
def test_a_folder_with_other_files_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "site.html").touch()
    tmp_path.chmod(0o755)
    with pytest.raises(InvalidSettingsError, match=r"site\.html.*chmod 700"):
        create_data_dir(tmp_path)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


def test_a_shared_temporary_folder_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    with pytest.raises(InvalidSettingsError, match="sticky"):
        create_data_dir(tmp_path)


def test_the_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may close any folder")
    with pytest.raises(InvalidSettingsError, match="Other users"):
        create_data_dir(Path("/usr"))


@pytest.mark.timeout(300)
@pytest.mark.skipif(os.geteuid() != 0, reason="already an ordinary user")
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is not installed")
def test_the_same_holds_for_an_ordinary_user() -> None:
    assert run_unprivileged(__file__) >= 5
