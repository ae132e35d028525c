"""What every request passes, with an application behind it that breaks."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from sandkeeper.api.app import make_api
from sandkeeper.api.middleware import RequestMiddleware
from sandkeeper.domain.errors import ProviderRateLimitedError
from sandkeeper.telemetry import Metrics


async def break_down() -> None:
    """Not an error of ours: a bug."""
    raise RuntimeError("the secret inside is sk_1234")


async def slow_down() -> None:
    """An error of ours that names a time."""
    raise ProviderRateLimitedError(retry_after_s=7.2)


async def greet(name: str) -> str:
    """Answer as asked."""
    return name


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
async def client(metrics: Metrics) -> AsyncIterator[httpx.AsyncClient]:
    api = make_api()
    api.add_api_route("/break", break_down)
    api.add_api_route("/slow", slow_down)
    api.add_api_route("/greet/{name}", greet)
    front = RequestMiddleware(api, metrics=metrics, origins=["https://app.example"])
    transport = httpx.ASGITransport(app=front)
    async with httpx.AsyncClient(transport=transport, base_url="http://here") as found:
        yield found


async def test_a_bug_is_answered_with_a_request_id_and_nothing_else(
    client: httpx.AsyncClient,
) -> None:
    answer = await client.get("/break")
    assert answer.status_code == 500
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["code"] == "internal"
    assert answer.json()["requestId"] == answer.headers["x-request-id"]
    assert "sk_1234" not in answer.text


async def test_a_limit_of_the_provider_says_when_to_come_back(client: httpx.AsyncClient) -> None:
    answer = await client.get("/slow")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "8")
    assert answer.json()["retryable"] is True


async def test_only_allowed_origins_may_read(client: httpx.AsyncClient) -> None:
    ask = {"Access-Control-Request-Method": "POST"}
    allowed = await client.options("/slow", headers={"Origin": "https://app.example", **ask})
    assert allowed.status_code == 204
    assert allowed.headers["access-control-allow-origin"] == "https://app.example"
    assert "access-control-allow-credentials" not in allowed.headers
    refused = await client.get("/slow", headers={"Origin": "https://evil.example"})
    assert "access-control-allow-origin" not in refused.headers


async def test_a_body_that_turns_out_too_large_is_refused(client: httpx.AsyncClient) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(64):
            yield b" " * 65536

    answer = await client.post("/api/login", content=endless())
    assert (answer.status_code, answer.json()["code"]) == (413, "payload_too_large")


async def test_answers_are_timed_by_the_pattern_of_their_route_and_never_by_their_address(
    client: httpx.AsyncClient, metrics: Metrics
) -> None:
    for path in ("/greet/ada", "/greet/grace", "/nowhere/at/all"):
        await client.get(path)
    count = "sandkeeper_http_request_duration_seconds_count"
    assert metrics.registry.get_sample_value(count, {"route": "/greet/{name}"}) == 2
    assert metrics.registry.get_sample_value(count, {"route": "none"}) == 1
    assert b"ada" not in metrics.render()
