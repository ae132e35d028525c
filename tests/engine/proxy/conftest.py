"""Fixtures of the port proxy tests.

runtime_server  a runtime with its port proxy, one for each test file
served          a sandbox in it whose small server listens on port 3000
server_code     the program of that server
start_server    starts that server in another sandbox
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import httpx
import pytest
import pytest_asyncio

from sandkeeper.engine.sandboxes.routing import RunningSandbox
from support.base_cache import lend_base
from support.eventually import eventually
from support.port_server import SERVER
from support.runtime_server import RuntimeServer, open_runtime_server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runtime_server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RuntimeServer]:
    data = lend_base(tmp_path_factory, tmp_path_factory.mktemp("server"))
    async with open_runtime_server(data) as opened:
        yield opened


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(runtime_server: RuntimeServer) -> RunningSandbox:
    running = await runtime_server.add()
    await serve(runtime_server, running)
    return running


@pytest.fixture
def server_code() -> str:
    """The small server as a Python program."""
    return SERVER


@pytest.fixture
def start_server(runtime_server: RuntimeServer) -> Callable[[RunningSandbox], Awaitable[None]]:
    """Starts the small server in a sandbox and waits until it answers."""
    return partial(serve, runtime_server)


async def serve(runtime_server: RuntimeServer, running: RunningSandbox) -> None:
    sandbox = runtime_server.sdk(running)
    await sandbox.files.write("server.py", SERVER)
    await sandbox.commands.run("python3 server.py", background=True, timeout=0)
    headers = runtime_server.headers(running, 3000)
    if running.traffic_token is not None:
        headers["E2B-Traffic-Access-Token"] = running.traffic_token
    async with httpx.AsyncClient(
        base_url=runtime_server.url, headers=headers, timeout=60
    ) as client:

        async def is_up() -> bool:
            return (await client.get("/")).status_code == 200

        await eventually(is_up, within_s=60)
