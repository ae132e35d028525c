"""`runtime` is started on a folder of its own; `sandbox` is one booted in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from leftovers import end_all
from sandboxing import Sandbox, plan
from sandkeeper.engine.runtime.bubblewrap import BubblewrapRuntime

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def ended(tmp_path: Path) -> Iterator[None]:
    """Ends what a test booted, also when it failed halfway."""
    yield
    end_all(tmp_path / "data")


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[BubblewrapRuntime]:
    made = BubblewrapRuntime(tmp_path / "data")
    await made.start()
    yield made
    await made.close()


@pytest.fixture
async def sandbox(runtime: BubblewrapRuntime, tmp_path: Path) -> Sandbox:
    await runtime.boot(plan(tmp_path, "one"))
    return Sandbox(runtime, "one")
