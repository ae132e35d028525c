"""Whatever bytes a client or an app sends, the other side reads at most one message, and the same.

The front is the server's real protocol, the relay is the real one, and both ends are read by h11,
a parser that shares no code with ours. The upstream is a pair of sockets.
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass, field
from typing import Any

import h11
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from uvicorn import Config
from uvicorn.server import ServerState

from sandkeeper.common.http_protocol import BoundedHttpProtocol
from sandkeeper.relay.asgi import Receive, Scope, Send
from sandkeeper.relay.headers import (
    HOP_BY_HOP,
    ROUTING,
    UnsafeHeadError,
    check_fields,
    select_request_fields,
)
from sandkeeper.relay.request import relay
from sandkeeper.relay.upstream import Upstream, UpstreamClosedError

HOST = b"3000-abc.localhost"
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
TURNS = 60
"""Turns of the event loop; each passes on what the one before has written."""


@dataclass
class Exchange:
    """What crossed: the bytes that reached each end, and what the front took for requests."""

    upstreams: list[bytearray] = field(default_factory=list)
    seen: list[tuple[str, bytes]] = field(default_factory=list)
    client: bytearray = field(default_factory=bytearray)


def pair() -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    return ours, theirs


def drain(end: socket.socket, into: bytearray) -> None:
    try:
        while data := end.recv(65536):
            into.extend(data)
    except (BlockingIOError, ConnectionError):
        return


async def exchange(request: bytes, answer: bytes = OK) -> Exchange:
    """Send the request through the front and the relay; the upstream answers every connection."""
    found = Exchange()
    ends: list[socket.socket] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        ours, theirs = pair()
        ends.append(theirs)
        found.upstreams.append(bytearray())
        found.seen.append((scope["method"], scope["raw_path"]))
        theirs.sendall(answer)
        fields = [(b"host", HOST), *select_request_fields(scope)]
        try:
            await relay(Upstream(ours), fields, scope, receive, send)
        except (UpstreamClosedError, UnsafeHeadError):
            head: dict[str, Any] = {"type": "http.response.start", "status": 502, "headers": []}
            await send(head)
            await send({"type": "http.response.body", "body": b""})

    config = Config(app, loop="none", lifespan="off", log_config=None, access_log=False)
    config.load()
    client, server = pair()
    state = ServerState()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_accepted_socket(
        lambda: BoundedHttpProtocol(config=config, server_state=state, app_state={}), server
    )
    try:
        client.sendall(request)
        for _ in range(TURNS):
            await asyncio.sleep(0)
            for end, into in zip(ends, found.upstreams, strict=True):
                drain(end, into)
            drain(client, found.client)
    finally:
        transport.abort()
        for task in list(state.tasks):
            task.cancel()
        await asyncio.gather(*state.tasks, return_exceptions=True)
        for end in (client, *ends):
            end.close()
    return found


def read_one(data: bytes, role: type[h11.SERVER | h11.CLIENT]) -> h11.Request | None:
    """Return the one request in these bytes; fail if h11 sees anything else, or more."""
    reader = h11.Connection(role)
    reader.receive_data(data)
    first: h11.Request | None = None
    while True:
        event = reader.next_event()
        if isinstance(event, h11.Request):
            assert first is None
            first = event
        if event is h11.NEED_DATA:
            return first
        if isinstance(event, h11.EndOfMessage):
            assert reader.trailing_data[0] == b""
            return first


def assert_one_request_each(found: Exchange) -> None:
    for data, (method, target) in zip(found.upstreams, found.seen, strict=True):
        if not data:
            continue
        head = bytes(data).partition(b"\r\n\r\n")[0]
        assert b"\n" not in head.replace(b"\r\n", b"")
        assert b"\r" not in head.replace(b"\r\n", b"")
        request = read_one(bytes(data), h11.SERVER)
        assert request is not None
        assert (request.method.decode(), request.target.partition(b"?")[0]) == (method, target)
        names = [name for name, _ in request.headers]
        assert names.count(b"host") == names.count(b"connection") == 1
        assert dict(request.headers)[b"connection"] == b"close"
        assert names.count(b"content-length") + names.count(b"transfer-encoding") <= 1
        assert not set(names) & (ROUTING | (HOP_BY_HOP - {b"connection", b"transfer-encoding"}))


LINES = st.sampled_from(
    [
        b"Content-Length: 5",
        b"Content-Length: 0",
        b"content-length: +5",
        b"Content-Length: 5, 5",
        b"Content-Length : 5",
        b"Transfer-Encoding: chunked",
        b"Transfer-Encoding: gzip, chunked",
        b"Transfer-Encoding: chunked, identity",
        b"Transfer-Encoding:\x0bchunked",
        b"transfer-encoding: xchunked",
        b"X: a\r\n folded",
        b" Transfer-Encoding: chunked",
        b"X: a\nTransfer-Encoding: chunked",
        b"X: a\rContent-Length: 7",
        b"Connection: content-length, host",
        b"Connection: transfer-encoding",
        b"Connection: upgrade, http2-settings",
        b"Upgrade: h2c",
        b"HTTP2-Settings: AAMAAABkAAQAAP__",
        b"E2b-Sandbox-Id: other",
        b"E2b-Sandbox-Port: 22",
        b"X-Access-Token: mine",
        b"Host: other",
        b"Expect: 100-continue",
        b"TE: trailers",
        b"X-\x00: a",
        b"X: \xff\x80",
        b"X: a\x00b",
        b"Forwarded: for=1.2.3.4",
    ]
)
STARTS = st.sampled_from(
    [
        b"GET / HTTP/1.1",
        b"POST /a?b=c HTTP/1.1",
        b"POST http://other/a HTTP/1.1",
        b"GET //other/a HTTP/1.1",
        b"CONNECT other:22 HTTP/1.1",
        b"OPTIONS * HTTP/1.1",
        b"GET /\tb HTTP/1.1",
        b"GET /a HTTP/1.1 HTTP/1.1",
        b"POST / HTTP/1.0",
        b"PRI * HTTP/2.0",
    ]
)
BODIES = st.sampled_from(
    [
        b"",
        b"hello",
        b"0\r\n\r\n",
        b"5\r\nhello\r\n0\r\n\r\n",
        b"5;a=b\r\nhello\r\n0\r\nX: trailer\r\n\r\n",
        b"5\nhello\n0\n\n",
        b"05\r\nhello\r\n00\r\n\r\n",
        b"0x5\r\nhello\r\n0\r\n\r\n",
        b"-1\r\nhello\r\n0\r\n\r\n",
        b"fffffffffffffffff\r\nhello\r\n0\r\n\r\n",
        b"GET /smuggled HTTP/1.1\r\nHost: other\r\n\r\n",
    ]
)
ENDS = st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b"\n"])
FUZZ = settings(
    max_examples=400,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    lines = [draw(STARTS), b"Host: h", *draw(st.lists(LINES, max_size=5))]
    end = draw(ENDS)
    second = draw(st.sampled_from([b"", b"GET /second HTTP/1.1\r\nHost: h\r\n\r\n"]))
    return end.join(lines) + end + draw(ENDS) + draw(BODIES) + second


@FUZZ
@given(requests())
def test_an_app_reads_each_request_as_one_and_as_the_front_did(request: bytes) -> None:
    assert_one_request_each(asyncio.run(exchange(request)))


ANSWER_LINES = st.sampled_from(
    [
        b"Content-Length: 2",
        b"Content-Length: 9",
        b"Content-Length: 2, 3",
        b"Transfer-Encoding: chunked",
        b"Transfer-Encoding: xchunked",
        b"X: a\r\n folded",
        b"X: a\nSet-Cookie: sandkeeper_login=1",
        b"X: a\rY: b",
        b"Connection: x-secret, content-length",
        b"X-Secret: between neighbours",
        b"Upgrade: h2c",
        b"Keep-Alive: timeout=5",
        b"Set-Cookie: a=1; Domain=localhost",
        b"Set-Cookie: sandkeeper_login=stolen",
        b"Location: /\x00",
    ]
)


@st.composite
def answers(draw: st.DrawFn) -> bytes:
    start = draw(
        st.sampled_from(
            [
                b"HTTP/1.1 200 OK",
                b"HTTP/1.1 204 No",
                b"HTTP/1.1 101 Switch",
                b"HTTP/1.1 103 Hints",
                b"HTTP/1.1 999 Odd",
                b"HTTP/2 200",
                b"ICY 200 OK",
            ]
        )
    )
    lines = [start, *draw(st.lists(ANSWER_LINES, max_size=4))]
    end = draw(ENDS)
    head = end.join(lines) + end + draw(ENDS)
    return head + draw(BODIES) + draw(st.sampled_from([b"", OK]))


@FUZZ
@given(answers())
def test_a_client_reads_an_answer_of_an_app_as_one_and_without_our_cookies(answer: bytes) -> None:
    found = asyncio.run(exchange(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n", answer))
    if not found.client:
        return
    reader = h11.Connection(h11.CLIENT)
    reader.send(h11.Request(method="GET", target="/", headers=[("host", "h")]))
    reader.send(h11.EndOfMessage())
    reader.receive_data(bytes(found.client))
    while True:
        event = reader.next_event()
        if isinstance(event, h11.Response):
            names = {name for name, _ in event.headers}
            assert not names & {b"upgrade", b"keep-alive", b"set-cookie"}
            assert b"x-secret" not in names or b"Connection: x-secret" not in answer
        if event is h11.NEED_DATA or isinstance(event, h11.EndOfMessage):
            break
    assert reader.trailing_data[0] == b""


async def test_a_plain_request_and_its_answer_cross_whole() -> None:
    found = await exchange(b"POST /a?b HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello")
    assert bytes(found.upstreams[0]).endswith(b"\r\n\r\nhello")
    assert bytes(found.client).endswith(b"ok")


async def test_a_length_that_the_client_names_as_its_connections_own_still_ends_the_body() -> None:
    body = b"GET /smuggled HTTP/1.1\r\n\r\n"
    found = await exchange(
        b"POST / HTTP/1.1\r\nHost: h\r\nConnection: content-length\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    )
    assert b"content-length: %d" % len(body) in found.upstreams[0].lower()
    assert_one_request_each(found)


@pytest.mark.parametrize("value", [b"a\r\nb: c", b"a\nb", b"a\rb", b"a\x00b"])
def test_no_line_break_passes_in_anything_that_we_set(value: bytes) -> None:
    with pytest.raises(UnsafeHeadError):
        check_fields([(b"x-forwarded-prefix", value)])
    with pytest.raises(UnsafeHeadError):
        check_fields([(value, b"a")])
