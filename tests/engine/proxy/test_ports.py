"""A sandbox's own servers, reached from outside."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import httpx
import pytest
import pytest_asyncio
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from sandkeeper.engine.sandboxes.routing import RunningSandbox
from support.runtime_server import RuntimeServer

pytestmark = pytest.mark.asyncio(loop_scope="module")

BROWSER = {"User-Agent": "Mozilla/5.0", "Accept": "text/html,*/*"}


@pytest_asyncio.fixture(loop_scope="module")
async def client(
    runtime_server: RuntimeServer, served: RunningSandbox
) -> AsyncIterator[httpx.AsyncClient]:
    headers = runtime_server.headers(served, 3000)
    async with httpx.AsyncClient(
        base_url=runtime_server.url, headers=headers, timeout=60
    ) as opened:
        yield opened


async def test_a_request_arrives_as_it_was_sent(client: httpx.AsyncClient) -> None:
    answer = await client.get(
        "/some%20path/%2Fx?q=a%26b&q=2",
        headers={"Host": "3000-x.localhost:1", "X-MiNe": "yes", "E2B-Traffic-Access-Token": "t"},
    )

    seen = answer.json()
    assert seen["path"] == "/some%20path/%2Fx?q=a%26b&q=2"
    assert seen["headers"]["host"] == "3000-x.localhost:1"
    assert seen["headers"]["X-MiNe"] == "yes"
    assert seen["headers"]["x-forwarded-host"] == "3000-x.localhost:1"
    assert "e2b-traffic-access-token" not in seen["headers"]
    assert answer.headers.get_list("set-cookie") == ["a=1", "b=2"]


async def test_a_head_has_no_body(client: httpx.AsyncClient) -> None:
    answer = await client.head("/")

    assert answer.status_code == 200
    assert int(answer.headers["content-length"]) > 0
    assert answer.content == b""


async def test_bodies_go_in_whole_and_in_pieces(client: httpx.AsyncClient) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(50):
            yield b"x" * 40_000

    whole = await client.post("/", content=b"x" * 2_000_000)
    assert (whole.status_code, whole.text) == (201, "2000000")
    assert (await client.post("/", content=pieces())).text == "2000000"


async def test_an_answer_comes_out_as_it_is_made(client: httpx.AsyncClient) -> None:
    async with client.stream("GET", "/drip") as answer:
        lines = answer.aiter_lines()
        assert [await anext(lines) for _ in range(3)] == ["drip"] * 3


async def test_a_server_that_hangs_up_is_told_from_a_closed_port(
    runtime_server: RuntimeServer, served: RunningSandbox, client: httpx.AsyncClient
) -> None:
    silent = await client.get("/hang-up")
    assert silent.status_code == 502
    assert "without an answer" in silent.json()["message"]
    with pytest.raises(httpx.RemoteProtocolError):
        await client.get("/break")
    closed = await client.get("/", headers=runtime_server.headers(served, 3999))
    assert (closed.status_code, closed.json()) == (
        502,
        {
            "sandboxId": served.sandbox_id,
            "message": "The sandbox is running but port is not open",
            "port": 3999,
            "code": 502,
        },
    )


async def test_a_person_sees_a_page_that_says_what_is_the_matter(
    runtime_server: RuntimeServer, served: RunningSandbox, client: httpx.AsyncClient
) -> None:
    closed = await client.get("/", headers=runtime_server.headers(served, 3999) | BROWSER)
    assert closed.status_code == 502
    assert closed.headers["content-type"] == "text/html; charset=utf-8"
    assert "Nothing listens on port 3999 yet" in closed.text
    gone = await client.get("/", headers=BROWSER | {"E2b-Sandbox-Id": "igone"})
    assert gone.status_code == 502
    assert "This sandbox is not running" in gone.text


async def test_an_unknown_sandbox_is_not_found(client: httpx.AsyncClient) -> None:
    answer = await client.get("/", headers={"E2b-Sandbox-Id": "igone"})

    assert answer.status_code == 502
    assert answer.json() == {
        "sandboxId": "igone",
        "message": "The sandbox was not found",
        "code": 502,
    }


async def test_messages_pass_a_websocket_both_ways(
    runtime_server: RuntimeServer, served: RunningSandbox
) -> None:
    url = runtime_server.url.replace("http", "ws") + "/socket?x=1"
    headers = runtime_server.headers(served, 3000)
    async with connect(url, additional_headers=headers, subprotocols=["chat"]) as socket:
        assert socket.subprotocol == "chat"
        for message in ("text", b"bytes", "x" * 3000):
            await socket.send(message)
            assert await socket.recv() == message
        await socket.send("please close")
        with pytest.raises(ConnectionClosed):
            await socket.recv()
        assert (socket.close_code, socket.close_reason) == (4321, "bye")
    with pytest.raises(InvalidHandshake):
        await connect(url, additional_headers=runtime_server.headers(served, 3999))


async def test_a_private_port_asks_for_its_token(runtime_server: RuntimeServer) -> None:
    running = await runtime_server.add(traffic_token="open-sesame", mask_host="localhost:${PORT}")
    async with httpx.AsyncClient(
        base_url=runtime_server.url, headers=runtime_server.headers(running, 3998), timeout=60
    ) as client:
        for token in ({}, {"E2B-Traffic-Access-Token": "wrong"}):
            refused = await client.get("/", headers=token)
            assert (refused.status_code, refused.json()["code"]) == (403, 403)
        right = await client.get("/", headers={"E2B-Traffic-Access-Token": "open-sesame"})
        assert right.json()["port"] == 3998
    await runtime_server.end(running)


async def test_a_sandbox_that_leaves_drops_its_connections(
    runtime_server: RuntimeServer, start_server: Callable[[RunningSandbox], Awaitable[None]]
) -> None:
    running = await runtime_server.add()
    await start_server(running)
    async with (
        httpx.AsyncClient(
            base_url=runtime_server.url, headers=runtime_server.headers(running, 3000), timeout=60
        ) as client,
        client.stream("GET", "/drip") as answer,
    ):
        lines = answer.aiter_lines()
        await anext(lines)
        await runtime_server.end(running)
        with pytest.raises(httpx.RemoteProtocolError):
            [line async for line in lines]
