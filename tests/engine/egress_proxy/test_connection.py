"""What a program inside and the real host see of each other, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from sandkeeper.engine.egress_proxy.connection import Streams, UnservableError, serve

Host = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
WITHIN_S = 60


@contextlib.asynccontextmanager
async def connected_to(host: Host) -> AsyncIterator[Streams]:
    """Give a program's connection, with such a host at its other end; end all of it."""
    real = await asyncio.start_server(host, "127.0.0.1", 0)

    async def choose(name: str) -> tuple[Streams, dict[str, str]]:
        if name != "example.com":
            raise UnservableError(421, f"no rule for {name}")
        streams = await asyncio.open_connection(*real.sockets[0].getsockname())
        return streams, {"authorization": "Bearer hidden"}

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await serve((reader, writer), choose)

    near = await asyncio.start_server(accept, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*near.sockets[0].getsockname())
    try:
        async with asyncio.timeout(WITHIN_S):
            yield reader, writer
    finally:
        writer.close()
        near.close()
        real.close()


async def read_head(reader: asyncio.StreamReader) -> str:
    return (await reader.readuntil(b"\r\n\r\n")).decode()


async def test_requests_follow_each_other_with_the_header_of_the_rule() -> None:
    heads: list[str] = []

    async def host(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await read_head(reader))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Own: 1\r\n\r\nok")
        writer.close()

    async with connected_to(host) as (reader, writer):
        for _ in range(2):
            writer.write(
                b"GET /path?q HTTP/1.1\r\nHost: example.com\r\nAuthorization: mine\r\n"
                b"Keep-Alive: 5\r\n\r\n"
            )
            answer = await read_head(reader)
            assert answer.startswith("HTTP/1.1 200")
            assert "x-own: 1" in answer.lower()
            assert await reader.readexactly(2) == b"ok"
    for head in heads:
        assert head.startswith("GET /path?q HTTP/1.1\r\n")
        lines = head.lower().splitlines()
        assert [one for one in lines if one.startswith("authorization")] == [
            "authorization: bearer hidden"
        ]
        assert "host: example.com" in lines
        assert not any("keep-alive" in one for one in lines)


async def test_bodies_pass_as_they_come_in_both_directions() -> None:
    async def host(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert "content-length" not in (await read_head(reader)).lower()
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while (size := int(await reader.readline(), 16)) > 0:
            piece = await reader.readexactly(size + 2)
            writer.write(b"%x\r\n%b" % (size, piece.upper()[:-2] + b"\r\n"))
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        writer.close()

    async with connected_to(host) as (reader, writer):
        writer.write(
            b"POST / HTTP/1.1\r\nHost: example.com\r\nTransfer-Encoding: chunked\r\n"
            b"Content-Length: 1\r\nExpect: 100-continue\r\n\r\n"
        )
        assert "100" in await read_head(reader)
        writer.write(b"3\r\nabc\r\n")
        assert (await read_head(reader)).startswith("HTTP/1.1 200")
        assert await reader.readuntil(b"ABC\r\n") == b"3\r\nABC\r\n"
        writer.write(b"2\r\nde\r\n0\r\n\r\n")
        assert await reader.readuntil(b"0\r\n\r\n") == b"2\r\nDE\r\n0\r\n\r\n"


async def test_after_an_upgrade_bytes_pass_as_they_are() -> None:
    async def host(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await read_head(reader)).lower()
        assert "upgrade: websocket" in head
        assert "connection: upgrade" in head
        writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n"
            b"Connection: Upgrade\r\n\r\nfirst"
        )
        assert await reader.readexactly(5) == b"\x00\xffabc"
        writer.write(b"\xff\x00def")
        writer.close()

    async with connected_to(host) as (reader, writer):
        writer.write(
            b"GET / HTTP/1.1\r\nHost: example.com\r\nConnection: Upgrade\r\n"
            b"Upgrade: websocket\r\n\r\n"
        )
        assert "101" in await read_head(reader)
        assert await reader.readexactly(5) == b"first"
        writer.write(b"\x00\xffabc")
        assert await reader.readexactly(5) == b"\xff\x00def"
        assert await reader.read() == b""


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"GET / HTTP/1.1\r\nHost: other.example\r\n\r\n", b'"no rule for other.example"'),
        (b"\x16\x03\x01 no HTTP\r\n\r\n", b""),
        (b"GET / HTTP/1.1\r\nHost: example.com\r\nX: " + b"a" * 100_000, b""),
        (b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n", b""),
    ],
    ids=["another host", "no HTTP", "an endless head", "a host that breaks off"],
)
async def test_what_cannot_be_served_is_refused_or_closed(sent: bytes, answer: bytes) -> None:
    async def host(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_head(reader)
        writer.transport.abort()

    async with connected_to(host) as (reader, writer):
        writer.write(sent)
        with contextlib.suppress(ConnectionError):
            said = await reader.read()
            assert answer in said
            assert bool(said) == bool(answer)
