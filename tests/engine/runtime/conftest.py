"""`runtime` is started on a folder of its own; `sandbox` is one booted in it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from sandboxing import Sandbox, plan
from sandkeeper.engine.runtime.bubblewrap import BubblewrapRuntime

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[BubblewrapRuntime]:
    made = BubblewrapRuntime(tmp_path / "data")
    await made.start()
    try:
        yield made
    finally:
        for sandbox_id in made.living():
            with contextlib.suppress(Exception):
                await made.halt(sandbox_id)
        await made.close()


@pytest.fixture
async def sandbox(runtime: BubblewrapRuntime, tmp_path: Path) -> Sandbox:
    await runtime.boot(plan(tmp_path, "one"))
    return Sandbox(runtime, "one")
