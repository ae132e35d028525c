"""Fixtures of the tests of the base.

runtime_server  a runtime with envd on a port, one for each test file
sandbox         a sandbox in it, one for each test file
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from e2b import AsyncSandbox

from support.base_cache import lend_base
from support.runtime_server import RuntimeServer, open_runtime_server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runtime_server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RuntimeServer]:
    data = lend_base(tmp_path_factory, tmp_path_factory.mktemp("server"))
    async with open_runtime_server(data) as opened:
        yield opened


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox(runtime_server: RuntimeServer) -> AsyncIterator[AsyncSandbox]:
    running = await runtime_server.add()
    yield runtime_server.sdk(running)
    await runtime_server.end(running)
