"""Fixtures that every test may use.

engine      one running engine for all tests of a worker; make your own sandboxes in it
own_engine  an engine of the test's own, for tests that stop it or look at all that is in it

A worker that leaves an engine or a sandbox of its own behind fails at its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.base_cache import lend_base
from support.engine_process import Engine
from support.process_leaks import end_all, list_living, list_spawned_for


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the long tests, which have a limit of their own: no worker waits for one."""
    items.sort(key=lambda item: item.get_closest_marker("timeout") is None)


@pytest.fixture(scope="session", autouse=True)
def nothing_left_behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Every data folder of a worker lies below its own temporary folder, so this is exact."""
    yield
    own = tmp_path_factory.getbasetemp()
    left = list_living(own)
    for folder in list_spawned_for(own):
        end_all(folder)
    assert left == [], "tests left these processes behind"


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    data = lend_base(tmp_path_factory, tmp_path_factory.mktemp("engine") / "data")
    running = Engine(data, "--webhook-retry-s", "0.2")
    try:
        yield running.start()
    finally:
        running.stop()


@pytest.fixture
def own_engine(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    data = lend_base(tmp_path_factory, tmp_path / "engine")
    running = Engine(data, "--webhook-retry-s", "0.2")
    try:
        yield running.start()
    finally:
        running.stop()
