"""Fixtures of the security tests.

runtime_server  a runtime with envd on a port, one for each test file
probe           a sandbox in it
keeper   `sandkeeper up`, as people run it: make your own projects in it
own_database  a database of the test's own in the shared PostgreSQL
hostile  a sandbox of the shared engine in which a hostile app listens on port 3000
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
import pytest_asyncio
from e2b import Sandbox

from support.base_cache import lend_base
from support.databases import named, postgres_url, run_statement
from support.engine_process import Engine
from support.eventually import eventually_sync
from support.hostile_app import APP, Hostile
from support.keeper_process import Keeper
from support.runtime_server import RuntimeServer, open_runtime_server
from support.sandbox_probe import SandboxProbe

__all__ = ["postgres_url"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runtime_server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RuntimeServer]:
    data = lend_base(tmp_path_factory, tmp_path_factory.mktemp("server"))
    async with open_runtime_server(data) as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="module")
async def probe(runtime_server: RuntimeServer) -> AsyncIterator[SandboxProbe]:
    sandbox = await runtime_server.add()
    yield SandboxProbe(runtime_server, sandbox)
    await runtime_server.end(sandbox)


@pytest.fixture(scope="session")
def keeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keeper]:
    running = Keeper(tmp_path_factory.mktemp("keeper") / "data", viewer_keys="sk_a_viewer")
    try:
        yield running.start()
    finally:
        running.stop()


@pytest.fixture
async def own_database(postgres_url: str) -> str:
    name = f"security_{uuid.uuid4().hex}"
    await run_statement(postgres_url, f'CREATE DATABASE "{name}"')
    return named(postgres_url, name)


@pytest.fixture(scope="session")
def hostile(engine: Engine) -> Iterator[Hostile]:
    sandbox = Sandbox.create(timeout=3600, **engine.sdk_options())
    sandbox.files.write("app.py", APP)
    sandbox.commands.run("python3 app.py", background=True, timeout=0)
    found = Hostile(sandbox, engine)
    with httpx.Client(base_url=engine.url, headers={"Host": found.host}, timeout=60) as client:
        eventually_sync(lambda: client.get("/").status_code == 200, within_s=60)
    yield found
    sandbox.kill()
