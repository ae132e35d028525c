"""Open connections to a sandbox that is paused or killed, over the engine as it is composed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2b import AsyncSandbox
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from sandkeeper.engine.http import active_requests
from sandkeeper.engine.server import Options, open_engine
from sandkeeper.engine.storage.data_dir import DataDir
from support.base_cache import lend_base
from support.eventually import eventually
from support.process_leaks import end_all
from support.runtime_server import bind, serve

NEVER_S = 3600.0
END_WITHIN_S = 30.0


@pytest.fixture
async def options(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[dict[str, Any]]:
    """The SDK's options of an engine whose poll for stopped sandboxes never comes.

    So a connection can end only because the lifecycle ended it.
    """
    monkeypatch.setattr(active_requests, "POLL_INTERVAL_S", NEVER_S)
    data = DataDir(lend_base(tmp_path_factory, tmp_path / "engine"))
    data.create()
    bound = bind()
    port = bound.getsockname()[1]
    try:
        async with open_engine(Options(data=data.data), port) as engine, serve(engine, bound):
            url = f"http://127.0.0.1:{port}"
            key = (data.data / "engine.key").read_text().strip()
            yield {"api_url": url, "sandbox_url": url, "api_key": key}
    finally:
        end_all(data.data)


@pytest.mark.parametrize("change", ["pause", "kill"])
async def test_a_pause_or_kill_ends_open_port_connections_at_once(
    options: dict[str, Any], server_code: str, change: str
) -> None:
    sandbox = await AsyncSandbox.create(timeout=300, **options)
    await sandbox.files.write("server.py", server_code)
    await sandbox.commands.run("setsid python3 server.py >/dev/null 2>&1 &")
    headers = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": "3000"}
    async with httpx.AsyncClient(
        base_url=options["api_url"], headers=headers, timeout=NEVER_S
    ) as client:

        async def is_up() -> bool:
            return (await client.get("/")).status_code == 200

        await eventually(is_up)
        url = options["api_url"].replace("http", "ws")
        async with (
            connect(url, additional_headers=headers, ping_interval=None) as socket,
            client.stream("GET", "/drip") as response,
        ):
            await socket.send("hello")
            assert await socket.recv() == "hello"
            lines = response.aiter_lines()
            assert await anext(lines) == "drip"
            await (sandbox.pause() if change == "pause" else sandbox.kill())
            async with asyncio.timeout(END_WITHIN_S):
                with pytest.raises(httpx.RemoteProtocolError):
                    [line async for line in lines]
                with pytest.raises(ConnectionClosed):
                    await socket.recv()
    await AsyncSandbox.kill(sandbox.sandbox_id, **options)
