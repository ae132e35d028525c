"""The tools as an agent uses them, over stdio and over HTTP: the official client, a real keeper."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import httpx
import httpx2
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from support.keeper_process import COMMAND, Keeper


@asynccontextmanager
async def talking(keeper: Keeper, task: str) -> AsyncIterator[Client]:
    command, *arguments = COMMAND
    server = StdioServerParameters(
        command=command,
        args=[*arguments, "mcp", "--user", "ada", "--task", task],
        env=keeper.environment,
    )
    async with Client(stdio_client(server)) as client:
        yield client


@asynccontextmanager
async def talking_http(keeper: Keeper, task: str, key: str | None = None) -> AsyncIterator[Client]:
    headers = {"Authorization": f"Bearer {key or keeper.key}"}
    url = f"{keeper.url}/mcp?user=ada&task={task}"
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60) as http,
        Client(streamable_http_client(url, http_client=http)) as client,
    ):
        yield client


async def call(client: Client, tool: str, **arguments: Any) -> str:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    return "\n".join(getattr(part, "text", part.type) for part in result.content)


async def test_an_agent_runs_code_and_finds_its_files_again(keeper: Keeper, project: str) -> None:
    async with talking(keeper, project) as client:
        tools = {tool.name for tool in (await client.list_tools()).tools}
        assert tools >= {"run_code", "run_command", "read_file", "write_file", "list_files"}
        await call(client, "run_code", code="total = 40")
        assert await call(client, "run_code", code="print('adding')\ntotal + 2") == "adding\n\n42"
        failed = await client.call_tool("run_code", {"code": "1 / 0"})
        assert failed.is_error
        assert "ZeroDivisionError" in failed.content[0].text
        await call(client, "write_file", path="notes/a.txt", content="kept\n")
        failed = await client.call_tool("run_command", {"command": "cat notes/a.txt; ls nowhere"})
        assert failed.is_error
        assert failed.content[0].text.startswith("exit code 2\nkept\n")
    with keeper.client() as api:
        session = next(
            one for one in api.get("/api/sessions").json()["items"] if one["taskId"] == project
        )
        assert (
            api.post(
                f"/api/sandboxes/{quote(session['sandbox']['project'], safe='')}/pause"
            ).status_code
            == 200
        )
    async with talking(keeper, project) as client:
        assert await call(client, "read_file", path="notes/a.txt") == "kept\n"
        assert "file\t5\ta.txt" in await call(client, "list_files", path="notes")


async def test_a_server_in_the_sandbox_has_an_address(keeper: Keeper, project: str) -> None:
    async with talking(keeper, project) as client:
        await call(client, "write_file", path="index.html", content="hello from inside")
        started = await call(
            client, "run_command", command="python3 -m http.server 8000", background=True
        )
        assert started.startswith("running as process ")
        waits = "for i in $(seq 100); do curl -sf localhost:8000 && break; sleep 0.1; done"
        assert "hello from inside" in await call(client, "run_command", command=waits)
        address = await call(client, "get_address", port=8000)
        assert f"8000\t{address}" in (await call(client, "list_ports")).splitlines()
        host = address.removeprefix("http://")
        answer = httpx.get(keeper.engine_url, headers={"Host": host})
        assert answer.text == "hello from inside"


async def test_errors_are_explained_and_long_output_is_cut(keeper: Keeper, project: str) -> None:
    async with talking(keeper, project) as client:
        missing = await client.call_tool("read_file", {"path": "nowhere.txt"})
        assert missing.is_error
        assert "nowhere.txt" in missing.content[0].text
        wrong = await client.call_tool("run_code", {"code": "1", "language": "cobol"})
        assert wrong.is_error
        slow = await client.call_tool("run_command", {"command": "sleep 30", "timeout_s": 0.5})
        assert slow.is_error
        printed = await call(client, "run_code", code="print('x' * 200_000)")
        assert "characters omitted" in printed
        assert len(printed) < 60_000


async def test_over_http_the_same_conversation_is_served_with_a_key_of_the_keeper(
    keeper: Keeper, project: str
) -> None:
    async with talking_http(keeper, project) as client:
        await call(client, "write_file", path="a.txt", content="first")
        saved = await call(client, "save_checkpoint")
        number = int(saved.removeprefix("checkpoint ").partition(":")[0])
        await call(client, "write_file", path="a.txt", content="second")
        await call(client, "save_checkpoint")
        listed = [
            line.split("\t")[0] for line in (await call(client, "list_checkpoints")).split("\n")
        ]
        assert listed[:2] == [str(number + 1), str(number)]
        await call(client, "restore_file", path="a.txt", checkpoint=number)
        assert await call(client, "read_file", path="a.txt") == "first"
        failed = await client.call_tool("run_code", {"code": "1 / 0"})
        assert failed.is_error
        missing = await client.call_tool("restore_file", {"path": "a.txt", "checkpoint": 9999})
        assert missing.is_error
    async with talking(keeper, project) as client:
        assert await call(client, "read_file", path="a.txt") == "first"


async def test_over_http_others_are_refused_before_any_tool_is_named(
    keeper: Keeper, project: str
) -> None:
    asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    accept = {"Accept": "application/json, text/event-stream"}
    with httpx.Client(base_url=keeper.url, headers=accept) as stranger:
        answer = stranger.post("/mcp?user=ada&task=x", json=asked)
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
        assert answer.headers["www-authenticate"] == "Bearer"
        wrong = {"Authorization": "Bearer sk_wrong"}
        assert stranger.post("/mcp?user=ada&task=x", json=asked, headers=wrong).status_code == 401
        known = {"Authorization": f"Bearer {keeper.key}"}
        unnamed = stranger.post("/mcp?user=ada", json=asked, headers=known)
        assert (unnamed.status_code, unnamed.json()["code"]) == (422, "invalid_request")
        with keeper.client() as api:
            api.put(f"/api/sandboxes/{project}", json={})
            token = api.post("/api/client-tokens", json={"project": project}).json()["token"]
    async with talking_http(keeper, project, token) as client:
        refused = await client.call_tool("run_command", {"command": "id"})
        assert refused.is_error
        assert "own sandbox only" in refused.content[0].text
