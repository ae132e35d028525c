"""Connections whose request does not arrive: they are closed, and others are served."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from sandkeeper.common.http_protocol import (
    HEAD_BYTES_MAX,
    BoundedBodyProtocol,
    BoundedHttpProtocol,
)
from support.eventually import eventually


class ImpatientProtocol(BoundedBodyProtocol):
    """The same with short times."""

    head_timeout_s = 0.2
    body_idle_s = 0.2
    unread_body_s = 0.2


class PatientWithBodies(BoundedHttpProtocol):
    """The engine's, with short times."""

    head_timeout_s = 0.2
    unread_body_s = 0.2


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the size of the body; `/early` answers before it reads one."""
    size = 0
    more = scope["path"] != "/early"
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        size += len(message.get("body", b""))
        more = message.get("more_body", False)
    body = str(size).encode()
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@pytest.fixture
async def port() -> AsyncIterator[int]:
    async with serving(ImpatientProtocol) as port:
        yield port


@contextlib.asynccontextmanager
async def serving(protocol: type[BoundedHttpProtocol]) -> AsyncIterator[int]:
    config = uvicorn.Config(
        echo, port=0, http=protocol, lifespan="off", log_config=None, timeout_keep_alive=30
    )
    server = uvicorn.Server(config)
    running = asyncio.create_task(server.serve())
    await eventually(lambda: server.started)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    await running


async def test_half_a_head_is_closed(port: int) -> None:
    for sent in (b"", b"GET / HTTP/1.1\r\nHost: here\r\n"):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()


async def test_a_head_that_drips_in_is_closed_all_the_same(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\r\n")
    ended = asyncio.create_task(reader.read())
    for number in range(1000):
        if ended.done():
            break
        writer.write(b"X-%d: y\r\n" % number)
        await asyncio.sleep(0.02)
    # What was still on its way when the server closed may reset the connection.
    with contextlib.suppress(ConnectionResetError):
        assert await asyncio.wait_for(ended, 1) == b""
    assert ended.done()
    writer.close()


async def test_a_second_half_head_on_a_kept_connection_is_closed(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
    assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
    writer.write(b"GET / HT")
    assert not (await asyncio.wait_for(reader.read(), 10)).count(b"200 OK")
    writer.close()


@pytest.mark.parametrize("path", ["/", "/early"])
async def test_half_a_body_is_closed(port: int, path: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST {path} HTTP/1.1\r\nHost: here\r\nContent-Length: 100\r\n\r\nabc"
    writer.write(head.encode())
    got = await asyncio.wait_for(reader.read(), 10)
    assert (b"200 OK" in got) == (path == "/early")
    writer.close()


async def test_a_body_that_drips_in_after_the_answer_is_closed() -> None:
    async with serving(PatientWithBodies) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /early HTTP/1.1\r\nHost: here\r\nContent-Length: 100000\r\n\r\na")
        ended = asyncio.create_task(reader.read())
        for _ in range(1000):
            if ended.done():
                break
            writer.write(b"a")
            await asyncio.sleep(0.02)
        with contextlib.suppress(ConnectionResetError):
            assert b"200 OK" in await asyncio.wait_for(ended, 1)
        assert ended.done()
        writer.close()


async def test_the_engine_waits_for_a_body_that_an_app_still_reads() -> None:
    async with serving(PatientWithBodies) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 2\r\n\r\na")
        await asyncio.sleep(0.5)
        writer.write(b"b")
        assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        writer.close()


async def test_a_slow_body_that_keeps_coming_is_read(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 10\r\n\r\n")
    for _ in range(10):
        writer.write(b"a")
        await asyncio.sleep(0.05)
    assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
    writer.close()


async def test_an_endless_head_is_refused(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\r\nX-Much: " + b"a" * (HEAD_BYTES_MAX + 10))
    assert (await asyncio.wait_for(reader.read(), 10)).startswith(b"HTTP/1.1 400")
    writer.close()
