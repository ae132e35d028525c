"""A registry on loopback, which all tests of a worker share."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandkeeper.engine.images.store import ImageStore
from sandkeeper.engine.runtime.bubblewrap.binaries import find_uid_base
from sandkeeper.engine.storage.data_dir import DataDir
from support.images import RunningRegistry, run_registry


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningRegistry]:
    if shutil.which("docker-registry") is None:
        pytest.skip("needs the package docker-registry")
    with run_registry(tmp_path_factory.mktemp("registry")) as running:
        yield running


@pytest.fixture(scope="session")
def private_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningRegistry]:
    """Give one that asks for a password."""
    if shutil.which("docker-registry") is None:
        pytest.skip("needs the package docker-registry")
    with run_registry(tmp_path_factory.mktemp("registry"), "password") as running:
        yield running


@pytest.fixture
def data_dir(tmp_path: Path) -> DataDir:
    made = DataDir(tmp_path / "data")
    made.create()
    return made


@pytest.fixture
def store(data_dir: DataDir) -> ImageStore:
    return ImageStore(data_dir, find_uid_base())


@pytest.fixture
def quiet() -> Callable[[str], None]:
    return lambda _said: None
