"""Whatever a provider answers, or does not, each call ends and says the right thing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from sandkeeper.domain.breaker import Breaker
from sandkeeper.domain.errors import (
    InstanceGoneError,
    ProviderAmbiguousError,
    ProviderError,
    ProviderRateLimitedError,
    ProviderRefusedError,
    ProviderUnauthorizedError,
    ProviderUnavailableError,
    ProviderUnsupportedError,
    ResumeFailedError,
)
from sandkeeper.providers.base import CreateSpec, OwnershipMetadata
from sandkeeper.providers.e2b.endpoint import E2BConnection
from sandkeeper.providers.e2b.provider import E2BProvider
from sandkeeper.providers.rate_limit import RateLimiter

GONE = '{"code":404,"message":"Sandbox \\"i1\\" doesn\'t exist"}'
SPEC = CreateSpec(OwnershipMetadata("k", "s1", "project", "shop", 1), template="base", timeout_s=60)

DETAIL = (
    '{"templateID":"base","sandboxID":"i1","clientID":"c","startedAt":"2026-01-01T00:00:00Z",'
    '"endAt":"2026-01-01T01:00:00Z","cpuCount":1,"memoryMB":1,"diskSizeMB":1,'
    '"state":"running","envdVersion":"0.6.13"}'
)


class MisbehavingServer:
    """Answers requests with what it was given, the last answer for ever; None hangs."""

    def __init__(self, *answers: bytes | None) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            self.asked.append(head.split(b"\r\n", 1)[0].decode())
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            if answer is None:
                await asyncio.Event().wait()
            else:
                writer.write(answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            writer.close()


def answer(status: int, body: str = "", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body.encode())}", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    if body.startswith(("{", "[")):
        lines.append("Content-Type: application/json")
    return ("\r\n".join(lines) + "\r\n\r\n" + body).encode()


@asynccontextmanager
async def against(
    *answers: bytes | None, timeout_s: float = 20.0
) -> AsyncIterator[tuple[E2BProvider, MisbehavingServer]]:
    bad = MisbehavingServer(*answers)
    server = await asyncio.start_server(bad.serve, "127.0.0.1", 0)
    bad.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    provider = E2BProvider(
        E2BConnection(
            api_key="e2b_00",
            api_url=bad.url,
            sandbox_url=bad.url,
            request_timeout_s=timeout_s,
            boot_timeout_s=timeout_s,
        ),
        keeper="k",
        breaker=Breaker(),
    )
    try:
        yield provider, bad
    finally:
        await provider.close()
        server.close()


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (answer(404, GONE), InstanceGoneError),
        (answer(404, "<html>not found</html>"), ProviderAmbiguousError),
        (answer(404, '{"detail":"Not Found"}'), ProviderAmbiguousError),
        (answer(401, '{"code":401,"message":"no"}'), ProviderUnauthorizedError),
        (answer(401), ProviderUnauthorizedError),
        (answer(403, '{"code":403,"message":"no"}'), ProviderUnauthorizedError),
        (answer(400, '{"code":400,"message":"no"}'), ProviderRefusedError),
        (answer(500, '{"code":500,"message":"no"}'), ProviderUnavailableError),
        (answer(502, "<html>bad gateway</html>"), ProviderUnavailableError),
        (answer(503), ProviderUnavailableError),
        (answer(200, "{}"), ProviderAmbiguousError),
        (answer(200, "<html>welcome</html>"), ProviderAmbiguousError),
        (b"", ProviderUnavailableError),
        (b"not http at all\r\n\r\n", ProviderUnavailableError),
        (None, ProviderUnavailableError),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else repr(value)[:24],
)
async def test_a_look_tells_gone_from_everything_else(
    reply: bytes | None, error: type[ProviderError]
) -> None:
    async with against(reply, timeout_s=1.0 if reply is None else 20.0) as (provider, _):
        with pytest.raises(ProviderError) as caught:
            await provider.get("i1")
        assert type(caught.value) is error


CUT_HEADS = [
    "HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n{body}",
    "HTTP/1.1 {status} X\r\nTransfer-Encoding: chunked\r\n\r\nff\r\n{body}",
    "HTTP/1.1 {status} X\r\nContent-Le",
]
CALLS: dict[str, Callable[[E2BProvider], Awaitable[object]]] = {
    "create": lambda it: it.create(SPEC),
    "connect": lambda it: it.connect("i1", timeout_s=60),
    "pause": lambda it: it.pause("i1"),
    "kill": lambda it: it.kill("i1"),
    "set_timeout": lambda it: it.set_timeout("i1", timeout_s=60),
    "get": lambda it: it.get("i1"),
    "list": lambda it: it.list_instances(),
    "events": lambda it: it.list_events(since=datetime.now(UTC)),
    "webhooks": lambda it: it.list_webhooks(),
    "connection info": lambda it: it.get_connection_info("i1"),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_a_reply_that_is_cut_is_unavailable_and_opens_the_breaker(
    call: Callable[[E2BProvider], Awaitable[object]],
) -> None:
    cut = [
        head.format(status=status, body=GONE[:9]).encode()
        for head in CUT_HEADS
        for status in (200, 404, 429, 500)
    ]
    for reply in cut:
        async with against(reply) as (provider, _):
            with pytest.raises(ProviderUnavailableError):
                await call(provider)
    async with against(cut[0]) as (provider, bad):
        for _ in range(7):
            with pytest.raises(ProviderUnavailableError):
                await provider.get("i1")
        assert len(bad.asked) == 5


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_a_body_that_cannot_be_unpacked_never_means_gone(
    call: Callable[[E2BProvider], Awaitable[object]],
) -> None:
    for status in (200, 404, 500):
        async with against(answer(status, "not gzip", Content_Encoding="gzip")) as (provider, _):
            with pytest.raises(ProviderError) as caught:
                await call(provider)
            assert not isinstance(caught.value, InstanceGoneError)


@pytest.mark.parametrize(
    "change",
    [
        {"state": "dreaming"},
        {"startedAt": "0001-01-01T00:00:00+23:00"},
        {"endAt": "tomorrow"},
        {"sandboxID": None},
    ],
    ids=str,
)
async def test_a_detail_that_makes_no_sense_is_ambiguous(change: dict[str, object]) -> None:
    body = json.dumps(json.loads(DETAIL) | change)
    async with against(answer(200, body)) as (provider, _):
        with pytest.raises(ProviderAmbiguousError):
            await provider.get("i1")
    async with against(answer(200, f"[{body}]")) as (provider, _):
        with pytest.raises(ProviderAmbiguousError):
            await provider.list_instances()


async def test_a_sandbox_without_a_valid_version_cannot_be_opened() -> None:
    body = json.dumps(json.loads(DETAIL) | {"envdVersion": "not a version"})
    async with against(answer(200, body)) as (provider, _):
        with pytest.raises(ProviderAmbiguousError):
            await provider.open_sdk_sandbox("i1")


async def test_a_refused_connection_is_unavailable_and_not_gone() -> None:
    connection = E2BConnection(api_key="e2b_00", api_url="http://127.0.0.1:1", request_timeout_s=5)
    provider = E2BProvider(connection, keeper="k", breaker=Breaker())
    with pytest.raises(ProviderUnavailableError):
        await provider.get("i1")
    await provider.close()


async def test_a_missing_template_is_refused_and_does_not_look_like_a_gone_instance() -> None:
    async with against(answer(404, '{"code":404,"message":"template not found"}')) as (it, _):
        with pytest.raises(ProviderRefusedError):
            await it.create(SPEC)


async def test_a_create_is_never_sent_twice_by_itself() -> None:
    async with against(answer(502, '{"code":502,"message":"x"}')) as (provider, bad):
        with pytest.raises(ProviderUnavailableError):
            await provider.create(SPEC)
        assert len(bad.asked) == 1


async def test_a_short_retry_after_is_waited_for_and_the_call_succeeds() -> None:
    limited = answer(429, '{"code":429,"message":"slow down"}', Retry_After="1")
    async with against(limited, answer(404, GONE)) as (provider, bad):
        started = asyncio.get_running_loop().time()
        with pytest.raises(InstanceGoneError):
            await provider.get("i1")
        assert asyncio.get_running_loop().time() - started >= 0.9
        assert len(bad.asked) == 2


@pytest.mark.parametrize("body", ["", '{"code":429,"message":"slow down"}'])
async def test_a_long_retry_after_stops_every_call_and_is_reported(body: str) -> None:
    async with against(answer(429, body, Retry_After="120")) as (provider, bad):
        with pytest.raises(ProviderRateLimitedError) as caught:
            await provider.get("i1")
        assert caught.value.retry_after_s == 120
        with pytest.raises(ProviderRateLimitedError):
            await provider.list_instances()
        assert len(bad.asked) == 1


async def test_after_five_failures_nothing_is_sent() -> None:
    async with against(answer(503)) as (provider, bad):
        for _ in range(7):
            with pytest.raises(ProviderUnavailableError):
                await provider.get("i1")
        assert len(bad.asked) == 5


async def test_gone_instances_do_not_open_the_breaker() -> None:
    async with against(answer(404, GONE)) as (provider, bad):
        for _ in range(7):
            with pytest.raises(InstanceGoneError):
                await provider.get("i1")
        assert len(bad.asked) == 7


@pytest.mark.parametrize(
    "refusal",
    [
        answer(404, '{"code":404,"message":"no matching route"}'),
        answer(403, '{"code":403,"message":"not in your plan"}'),
    ],
    ids=["no such route", "not in the plan"],
)
async def test_a_provider_that_cannot_pause_is_unsupported_and_not_gone(refusal: bytes) -> None:
    async with against(refusal, answer(200, DETAIL)) as (provider, bad):
        with pytest.raises(ProviderUnsupportedError):
            await provider.pause("i1")
        assert [line.split()[0] for line in bad.asked] == ["POST", "GET"]


async def test_a_server_without_events_is_unsupported_and_stays_in_use() -> None:
    async with against(answer(404, "404 page not found")) as (provider, bad):
        for _ in range(7):
            with pytest.raises(ProviderUnsupportedError):
                await provider.list_events(since=datetime.now(UTC))
        assert len(bad.asked) == 7


async def test_calls_are_counted_by_operation_and_outcome() -> None:
    seen: list[tuple[str, str]] = []
    count: Callable[[str, str, float], None] = lambda op, code, _s: seen.append((op, code))  # noqa: E731
    async with against(answer(404, GONE)) as (_, bad):
        provider = E2BProvider(
            E2BConnection(api_key="e2b_00", api_url=bad.url),
            keeper="k",
            breaker=Breaker(),
            on_call=count,
        )
        with pytest.raises(InstanceGoneError):
            await provider.get("i1")
        await provider.close()
    assert seen == [("get", "instance_gone")]


async def test_creations_keep_their_rate() -> None:
    rate_limiter = RateLimiter(creates_per_s=20)
    started = asyncio.get_running_loop().time()
    await asyncio.gather(*(rate_limiter.wait_to_create() for _ in range(5)))
    assert asyncio.get_running_loop().time() - started >= 0.19


async def test_a_creation_that_would_queue_for_too_long_gets_a_retry_after() -> None:
    rate_limiter = RateLimiter(creates_per_s=0.05)
    await rate_limiter.wait_to_create()
    waiting = asyncio.create_task(rate_limiter.wait_to_create())
    await asyncio.sleep(0)
    with pytest.raises(ProviderRateLimitedError) as caught:
        await rate_limiter.wait_to_create()
    assert caught.value.retry_after_s == pytest.approx(10, abs=2)
    waiting.cancel()


async def test_concurrency_is_bounded() -> None:
    rate_limiter = RateLimiter(concurrency_max=3)
    now = most = 0

    async def call() -> None:
        nonlocal now, most
        async with rate_limiter.slot():
            now += 1
            most = max(most, now)
            await asyncio.sleep(0)
            now -= 1

    await asyncio.gather(*(call() for _ in range(20)))
    assert most == 3


@pytest.mark.parametrize(
    ("status", "body", "is_said"),
    [
        (500, '{"code":500,"message":"Failed to resume sandbox"}', True),
        (500, "<html>Internal Server Error</html>", False),
        (502, '{"code":502,"message":"no server"}', False),
        (503, '{"code":503,"message":"busy"}', False),
    ],
)
async def test_only_the_providers_own_words_say_that_a_resume_failed(
    status: int, body: str, is_said: bool
) -> None:
    async with against(answer(status, body)) as (provider, _):
        with pytest.raises(ProviderUnavailableError) as raised:
            await provider.connect("i1", timeout_s=60)
    assert isinstance(raised.value, ResumeFailedError) is is_said


async def test_a_resume_without_an_answer_is_told_from_one_that_was_hung_up_on() -> None:
    async with against(None, timeout_s=0.1) as (provider, _):
        with pytest.raises(ProviderUnavailableError) as raised:
            await provider.connect("i1", timeout_s=60)
        assert raised.value.fields["timed_out"] is True
    async with against(b"") as (provider, _):
        with pytest.raises(ProviderUnavailableError) as raised:
            await provider.connect("i1", timeout_s=60)
        assert "timed_out" not in raised.value.fields


def dated(ahead: timedelta, body: str = "[]", **headers: str) -> bytes:
    theirs = format_datetime(datetime.now(UTC) + ahead, usegmt=True)
    return answer(200, body, Date=theirs, **headers)


@pytest.mark.parametrize("ahead_s", [0, 1, 5, 3600, -5, -3600])
async def test_the_difference_of_the_clocks_is_read_from_the_date_of_a_reply(ahead_s: int) -> None:
    begun = datetime.now(UTC)
    async with against(dated(timedelta(seconds=ahead_s))) as (provider, _):
        measured = await provider.measure_skew()
    assert measured is not None
    # The date was written when the test began, and has whole seconds.
    took_s = (datetime.now(UTC) - begun).total_seconds()
    assert ahead_s - took_s - 1 <= measured.total_seconds() <= ahead_s + 1


@pytest.mark.parametrize("reply", [answer(200), dated(timedelta(hours=1), Age="3600"), b"", None])
async def test_without_a_fresh_date_the_difference_is_unknown(reply: bytes | None) -> None:
    async with against(reply) as (provider, _):
        assert await provider.measure_skew() is None


@pytest.mark.parametrize("ahead_s", [5, -3600])
async def test_times_of_a_provider_with_another_clock_are_corrected(ahead_s: int) -> None:
    theirs = datetime.now(UTC) + timedelta(seconds=ahead_s)
    detail = json.loads(DETAIL) | {"endAt": (theirs + timedelta(seconds=60)).isoformat()}
    event = {
        "id": "00000000-0000-0000-0000-000000000001",
        "version": "v2",
        "type": "sandbox.lifecycle.paused",
        "timestamp": theirs.isoformat(),
        "sandboxId": "i1",
    }
    replies = [dated(timedelta(seconds=ahead_s)), answer(200, json.dumps(detail))]
    async with against(*replies, answer(200, json.dumps([event]))) as (provider, _):
        await provider.measure_skew()
        found = await provider.get("i1")
        [paused] = await provider.list_events(since=datetime.now(UTC) - timedelta(seconds=30))
    assert found.end_at is not None
    now = datetime.now(UTC)
    # The date of the reply was written when the test began, and has whole seconds.
    took_s = (now - theirs).total_seconds() + ahead_s
    assert (found.end_at - now).total_seconds() == pytest.approx(60, abs=took_s + 1)
    assert (paused.at - now).total_seconds() == pytest.approx(0, abs=took_s + 1)
