"""Random input at the two doors that strangers reach: the webhook, and the proxy's request head."""

from __future__ import annotations

import contextlib
import json
import re
import socket
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sandkeeper.domain.errors import InvalidRequestError, InvalidSignatureError
from sandkeeper.providers.e2b.webhooks import SIGNATURE_HEADER, parse_delivery
from support.hostile_app import Hostile
from support.signed_webhooks import make_event, sign

SECRET = "a secret"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=12,
)
FIELDS = ("version", "id", "type", "timestamp", "sandbox_id", "event_data", "sandboxId")


@example(b'{"id":' + b"[" * 100_000)
@example(b'{"id":' + b"1" * 10_000 + b"}")
@example(b"\xff\xfe")
@example(json.dumps({"timestamp": "9" * 5000}).encode())
@given(
    st.binary(max_size=200)
    | JSON.map(lambda value: json.dumps(value).encode())
    | st.dictionaries(st.sampled_from(FIELDS), JSON).map(lambda odd: make_event("i-1", **odd))
)
def test_a_signed_body_is_an_event_or_an_invalid_request(body: bytes) -> None:
    with contextlib.suppress(InvalidRequestError):
        parse_delivery(body, {SIGNATURE_HEADER: sign(SECRET, body)}, secret=SECRET)


@given(st.binary(max_size=100), st.text(max_size=100))
def test_no_other_signature_is_believed(body: bytes, signature: str) -> None:
    if signature.rstrip("=") in {sign(SECRET, body), sign(SECRET, body, url_safe=True)}:
        return
    try:
        parse_delivery(body, {SIGNATURE_HEADER: signature}, secret=SECRET)
    except InvalidSignatureError:
        return
    raise AssertionError("it was believed")


LINES = st.sampled_from(
    [
        b"Content-Length: 5",
        b"Content-Length: 0",
        b"Content-Length: +5",
        b"Content-Length: 5, 6",
        b"Content-Length: 0x5",
        b"Content-Length : 5",
        b"Transfer-Encoding: chunked",
        b"Transfer-Encoding: identity",
        b"Transfer-Encoding: chunked, identity",
        b"Transfer-Encoding: xchunked",
        b"Transfer-Encoding:\tchunked",
        b"Connection: Content-Length",
        b"Connection: Host, Cookie",
        b"Connection: Upgrade, HTTP2-Settings",
        b"Upgrade: h2c",
        b"Upgrade: websocket",
        b"HTTP2-Settings: AAMAAABkAAQAAP__",
        b"Expect: 100-continue",
        b"X-A: b\x00c",
        b"X-A: b\rc",
        b" folded: yes",
        b"\tfolded: yes",
        b"X-A",
        b": nothing",
        b"X-\xff: y",
        b"Host: other.example",
    ]
) | st.binary(max_size=30).map(lambda raw: b"X-Raw: " + raw)
TARGETS = st.sampled_from(
    [b"/", b"http://other.example/", b"*", b"//x", b"/a b", b"/\xff", b"/?a\x00b", b"other:443"]
)
BODIES = st.sampled_from(
    [
        b"",
        b"hello",
        b"5\r\nhello\r\n0\r\n\r\n",
        b"0\r\n\r\nGET /smuggled HTTP/1.1\r\n\r\n",
        b"x" * 9,
    ]
)
ENDS = st.sampled_from([b"\r\n", b"\n"])
STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(TARGETS, st.lists(LINES, max_size=5), BODIES, ENDS)
def test_no_head_breaks_the_proxy_or_smuggles_a_request(
    hostile: Hostile, target: bytes, lines: list[bytes], body: bytes, end: bytes
) -> None:
    host = b"Host: " + hostile.host.encode()
    head = end.join([b"GET " + target + b" HTTP/1.1", host, *lines, b"Connection: close", b"", b""])
    for status in exchange(hostile, head + body):
        assert status < 500 or status == 502, head
    assert b"/smuggled" not in list_seen(hostile)


def exchange(hostile: Hostile, request: bytes) -> list[int]:
    """Send bytes and give the statuses of what is answered until the connection ends."""
    answered = b""
    with socket.create_connection(("127.0.0.1", hostile.engine.port), timeout=1) as client:
        client.sendall(request)
        try:
            while piece := client.recv(65536):
                answered += piece
        except (TimeoutError, ConnectionError):
            pass
    return [int(found) for found in STATUS.findall(answered)]


def list_seen(hostile: Hostile) -> bytes:
    """Every path that reached the app inside."""
    seen: Any = hostile.sandbox.files.read("seen.jsonl", format="bytes")
    return b"\n".join(line.partition(b" ")[0] for line in bytes(seen).splitlines())
