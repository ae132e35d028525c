"""`runtime` is started on a folder of its own; `sandbox` is one booted in it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from sandkeeper.engine.runtime.bubblewrap.runtime import BubblewrapRuntime
from support.base_cache import lend_base
from support.process_leaks import end_all
from support.runtime_helpers import Sandbox, plan


@pytest.fixture(autouse=True)
def data(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Each test's own data folder; what was booted in it is ended, also after a failure."""
    yield lend_base(tmp_path_factory, tmp_path / "data")
    end_all(tmp_path / "data")


@pytest.fixture
async def runtime(data: Path) -> AsyncIterator[BubblewrapRuntime]:
    made = BubblewrapRuntime(data)
    await made.start()
    yield made
    await made.close()


@pytest.fixture
async def sandbox(runtime: BubblewrapRuntime, tmp_path: Path) -> Sandbox:
    await runtime.boot(plan(tmp_path, "one"))
    return Sandbox(runtime, "one")
