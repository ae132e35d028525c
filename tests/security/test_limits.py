"""What one caller may use of a keeper, seen from outside."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.engine_process import Engine
from support.keeper_process import Keeper, keeping

HANDSHAKE = (
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
)
DEEP = b'{"metadata":' + b"[" * 50_000 + b"]" * 50_000 + b"}"


@pytest.fixture(scope="module")
def limited(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keeper]:
    data: Path = tmp_path_factory.mktemp("limited")
    with keeping(
        data,
        "--host",
        "0.0.0.0",
        engine=engine,
        failed_logins_max=5,
        client_requests_per_s=5,
        client_streams_max=1,
    ) as running:
        yield running


def test_wrong_keys_are_refused_after_a_while_and_the_right_one_never(limited: Keeper) -> None:
    with limited.client("sk_wrong") as guesser:
        answers = [guesser.get("/api/me") for _ in range(20)]
    assert {one.status_code for one in answers} == {401, 429}
    assert int(answers[-1].headers["retry-after"]) >= 1
    with limited.client() as api:
        assert api.get("/api/me").status_code == 200
    with limited.browser() as browser:
        answers = [browser.post("/api/login", json={"key": "sk_wrong"}) for _ in range(20)]
    assert {one.status_code for one in answers} <= {401, 429}
    assert answers[-1].status_code == 429
    assert httpx.get(f"{limited.url}/api/me").status_code == 401


def test_a_client_token_has_its_own_rate_and_streams(limited: Keeper) -> None:
    with limited.client() as api:
        api.put("/api/sandboxes/rated", json={}).raise_for_status()
        made = api.post("/api/client-tokens", json={"project": "rated"}).json()
    with limited.client(made["token"]) as client:
        with client.stream("GET", "/api/sandboxes/rated/events") as held:
            assert held.status_code == 200
            assert client.get("/api/sandboxes/rated/events").status_code == 429
        answers = [client.get("/api/sandboxes/rated/status") for _ in range(40)]
    assert [one.status_code for one in answers[:3]] == [200] * 3
    refused = next(one for one in answers if one.status_code == 429)
    assert refused.headers["retry-after"] == "1"
    assert refused.json()["retryable"] is True
    with limited.client() as api:
        assert api.get("/api/sandboxes/rated/status").status_code == 200
        api.delete("/api/sandboxes/rated")


def test_a_body_is_not_read_before_its_sender_is_known(limited: Keeper) -> None:
    host, _, port = limited.url.removeprefix("http://").partition(":")
    head = (
        f"POST /api/fleet/bulk HTTP/1.1\r\nHost: {host}\r\n"
        "Content-Type: application/json\r\nContent-Length: 1000000\r\n\r\n"
    )
    with socket.create_connection((host, int(port)), timeout=30) as sender:
        sender.sendall(head.encode())
        assert sender.recv(4096).startswith(b"HTTP/1.1 401")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/login"),
        ("PUT", "/api/sandboxes/deep"),
        ("POST", "/api/sandboxes/deep/activity"),
        ("POST", "/api/fleet/bulk"),
        ("POST", "/api/jobs"),
        ("POST", "/api/sessions/acquire"),
    ],
)
def test_json_of_any_depth_is_refused(limited: Keeper, method: str, path: str) -> None:
    headers = {"Content-Type": "application/json"}
    with limited.client() as api:
        answer = api.request(method, path, content=DEEP, headers=headers)
    assert answer.status_code in {400, 422}
    assert answer.headers["content-type"] == "application/problem+json"


def test_metrics_and_details_need_a_key_on_an_open_address(limited: Keeper) -> None:
    assert httpx.get(f"{limited.url}/metrics").status_code == 401
    assert httpx.get(f"{limited.url}/readyz").json() == {"status": "ready"}
    with limited.client() as api:
        assert "sandkeeper_sandboxes" in api.get("/metrics").text
        assert api.get("/readyz").json()["tasks"]


def test_a_long_delivery_id_is_stored_cut(limited: Keeper) -> None:
    headers = {"e2b-delivery-id": "x" * 20_000, "e2b-signature": "wrong"}
    refused = httpx.post(f"{limited.url}/api/webhooks/e2b", content=b"{}", headers=headers)
    assert refused.status_code == 401
    with limited.client() as api:
        stored = api.get("/api/fleet/deliveries").json()["items"][0]
    assert stored["deliveryId"] == "x" * 128


def test_two_hosts_in_one_request_are_refused(limited: Keeper) -> None:
    host, _, port = limited.url.removeprefix("http://").partition(":")
    head = f"GET /healthz HTTP/1.1\r\nHost: {host}\r\nHost: other\r\n\r\n"
    with socket.create_connection((host, int(port)), timeout=30) as sender:
        sender.sendall(head.encode())
        answer = sender.recv(4096)
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"application/problem+json" in answer


@pytest.mark.parametrize(
    "path", ["/static/x/none.js", "/embed/none.js", "/static/x/%2e%2e/%2e%2e/etc/passwd", "/none"]
)
def test_what_is_not_there_is_told_in_the_one_shape_of_errors(limited: Keeper, path: str) -> None:
    answer = httpx.get(limited.url + path)
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("path", ["/api/login", "/api/webhooks/e2b"])
def test_a_stranger_cannot_hold_a_request_open_byte_by_byte(limited: Keeper, path: str) -> None:
    host, _, port = limited.url.removeprefix("http://").partition(":")
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        "Content-Length: 1000\r\n\r\n"
    )
    with socket.create_connection((host, int(port)), timeout=0.5) as sender:
        sender.sendall(head.encode())
        for _ in range(120):
            sender.sendall(b" ")
            with suppress(TimeoutError):
                answer = sender.recv(4096)
                break
        else:
            pytest.fail("no answer after a minute of single bytes")
    assert answer.startswith(b"HTTP/1.1 400")


def test_a_wrong_method_is_told_for_every_address(limited: Keeper) -> None:
    answer = httpx.post(f"{limited.url}/openapi.json")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")


def test_no_one_is_believed_about_who_asks_unless_a_proxy_is_trusted(limited: Keeper) -> None:
    with limited.client("sk_wrong") as guesser:
        headers = [{"X-Forwarded-For": f"203.0.113.{number}"} for number in range(20)]
        answers = [guesser.get("/api/me", headers=one).status_code for one in headers]
    assert 429 in answers
    with limited.browser() as browser:
        forged = {"X-Forwarded-Proto": "https"}
        signed_in = browser.post("/api/login", json={"key": limited.key}, headers=forged)
    assert signed_in.headers["set-cookie"].startswith("sandkeeper_login=")
    assert "secure" not in signed_in.headers["set-cookie"].lower()


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("BREW /api/me HTTP/1.1", 501),
        ("get /api/me HTTP/1.1", 501),
        ("PROPFIND /api/me HTTP/1.1", 405),
        ("GET /api/me HTTP/9.9", 400),
        ("GET  HTTP/1.1", 400),
        (f"GET /api/me HTTP/1.1\r\nX: {'x' * 100_000}", 400),
        (f"GET /api/me HTTP/1.1\r\n{HANDSHAKE}", 400),
    ],
)
def test_what_is_no_request_of_ours_is_told_so_in_the_one_shape_of_errors(
    limited: Keeper, head: str, status: int
) -> None:
    answer, body = send_head(limited.url, head)
    assert answer.startswith(f"HTTP/1.1 {status} ")
    assert "content-type: application/problem+json" in answer
    assert body["status"] == status
    assert body["requestId"]
    assert body["hint"]


def test_the_engine_tells_it_in_the_shape_of_e2b(engine: Engine) -> None:
    for head, status in (
        ("BREW /sandboxes HTTP/1.1", 501),
        ("GET / HTTP/9.9", 400),
        (f"GET / HTTP/1.1\r\nX: {'x' * 100_000}", 400),
        (f"GET / HTTP/1.1\r\n{HANDSHAKE}", 400),
    ):
        answer, body = send_head(engine.url, head)
        assert answer.startswith(f"HTTP/1.1 {status} ")
        assert "content-type: application/json" in answer
        assert set(body) == {"code", "message"}
        assert body["code"] == status


def send_head(url: str, head: str) -> tuple[str, dict[str, Any]]:
    """Send one request as it is; return the head and the JSON of its answer."""
    host, _, port = url.removeprefix("http://").partition(":")
    closing = "" if "Connection:" in head else "Connection: close\r\n"
    answer = b""
    with socket.create_connection((host, int(port)), timeout=30) as sender:
        sender.sendall(f"{head}\r\nHost: {host}\r\n{closing}\r\n".encode())
        with suppress(ConnectionResetError):
            while piece := sender.recv(65536):
                answer += piece
    lines, _, body = answer.decode().partition("\r\n\r\n")
    return lines.lower().replace("http/1.1", "HTTP/1.1"), json.loads(body)
