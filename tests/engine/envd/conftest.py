"""`lodging` (a runtime with envd on a port, one for each test file) and `sandbox` (a fresh one)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from e2b import AsyncSandbox

from support.base_cache import lend_base
from support.runtime_server import Lodging, lodging_at


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lodging(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Lodging]:
    data = lend_base(tmp_path_factory, tmp_path_factory.mktemp("lodging"))
    async with lodging_at(data) as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="module")
async def sandbox(lodging: Lodging) -> AsyncIterator[AsyncSandbox]:
    guest = await lodging.add()
    yield lodging.sdk(guest)
    await lodging.end(guest)
