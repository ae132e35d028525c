"""Whatever the SDK or its transport raises becomes one of our errors, and the breaker hears it."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import sys
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandkeeper.domain.breaker import Breaker
from sandkeeper.domain.errors import (
    InstanceGoneError,
    ProviderAmbiguousError,
    SandkeeperError,
)
from sandkeeper.providers.e2b.calls import FAILURES, Calls
from sandkeeper.providers.e2b.mapping import judge
from sandkeeper.providers.e2b.replies import (
    RETRY_AFTER_MAX_S,
    HttpReply,
    find_reply,
    parse_retry_after,
)
from sandkeeper.providers.rate_limit import RateLimiter
from sandkeeper.services.clock import read_wall

LIBRARIES = (
    "asyncio",
    "builtins",
    "connectrpc",
    "e2b",
    "h2",
    "hpack",
    "httpcore",
    "httpx",
    "hyperframe",
    "json",
    "protobuf",
    "pyqwest",
    "socket",
    "ssl",
    "zlib",
)
ENDS = (KeyboardInterrupt, SystemExit, GeneratorExit)


class UnreadableError(Exception):
    """An error that cannot even say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class Hostile:
    """A local variable that fails when it is looked at."""

    @property
    def __class__(self) -> type:
        raise RuntimeError("not to be looked at")


def list_modules(library: str) -> list[object]:
    """Return the library and every part of it that it, or the SDK, has loaded."""
    importlib.import_module(library)
    names = [name for name in sys.modules if f"{name}.".startswith(f"{library}.")]
    return [sys.modules[name] for name in sorted(names)]


def list_exceptions(library: str) -> list[type[BaseException]]:
    kinds = {
        kind
        for module in list_modules(library)
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, BaseException) and not issubclass(kind, ENDS)
    }
    return sorted(kinds, key=lambda kind: (kind.__module__, kind.__qualname__))


def make_error(kind: type[BaseException]) -> BaseException:
    """Return an error of this class; half made if its constructor asks for more than words."""
    for arguments in ((), ("words",), ("words", [ValueError("inner")]), (None, "words")):
        try:
            return kind(*arguments)
        except Exception:  # noqa: BLE001
            continue
    return kind.__new__(kind)


def make_replies() -> list[httpx.Response | None]:
    unread = httpx.Response(503, stream=httpx.ByteStream(b"never read"))
    closed = httpx.Response(200, stream=httpx.ByteStream(b"never read"))
    closed.close()
    hostile = httpx.Response(429, headers={"Retry-After": "9" * 400}, content=b"\xff\x00")
    return [None, unread, closed, hostile]


async def fail_behind(reply: httpx.Response | None, error: BaseException) -> None:
    """Raise in a frame that holds a reply, as the SDK's frames do."""
    hostile = Hostile()
    held = (reply, hostile)
    assert len(held) == 2
    raise error


def raise_behind(held: httpx.Response) -> None:
    assert held.status_code is not None
    raise httpx.ReadError("cut")


def make_calls() -> tuple[Calls, Breaker]:
    breaker = Breaker()
    return Calls(
        provider="e2b", rate_limiter=RateLimiter(patience_s=0), breaker=breaker, clock=read_wall
    ), breaker


@pytest.mark.parametrize("library", LIBRARIES)
async def test_every_exception_of_a_library_becomes_one_of_ours(library: str) -> None:
    for kind in list_exceptions(library):
        for reply in make_replies():
            error = make_error(kind)
            calls, breaker = make_calls()
            with pytest.raises(SandkeeperError) as caught:
                await calls.perform("get", lambda e=error, r=reply: fail_behind(r, e), timeout_s=5)
            assert caught.value.code, kind
            assert not isinstance(caught.value, InstanceGoneError) or "NotFound" in kind.__name__
            heard = judge(error)[0] in FAILURES
            assert breaker.failures == int(heard), kind


async def test_an_error_without_words_is_ambiguous() -> None:
    calls, breaker = make_calls()
    with pytest.raises(ProviderAmbiguousError, match="UnreadableError"):
        await calls.perform("get", lambda: fail_behind(None, UnreadableError()), timeout_s=5)
    assert breaker.failures == 1


@pytest.mark.parametrize("end", ENDS)
async def test_the_end_of_the_process_is_not_a_failure_of_the_provider(
    end: type[BaseException],
) -> None:
    calls, breaker = make_calls()

    async def perform() -> BaseException | None:
        # Inside the task: outside, asyncio stops its loop for these.
        try:
            await calls.perform("get", lambda: fail_behind(None, end()), timeout_s=5)
        except BaseException as error:  # noqa: BLE001
            return error
        return None

    assert isinstance(await perform(), end)
    assert breaker.failures == 0


async def test_a_cancelled_task_stays_cancelled() -> None:
    calls, breaker = make_calls()
    waiting = asyncio.create_task(
        calls.perform("get", lambda: asyncio.Event().wait(), timeout_s=60)
    )
    await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert breaker.failures == 0


@pytest.mark.parametrize("end", ["a result", "an error"])
async def test_a_task_stays_cancelled_when_a_library_loses_the_cancellation(end: str) -> None:
    calls, breaker = make_calls()
    begun = asyncio.Event()

    async def lose_the_cancellation() -> str:
        begun.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        if end == "an error":
            raise httpx.ConnectError(end)
        return end

    waiting = asyncio.create_task(calls.perform("list", lose_the_cancellation, timeout_s=60))
    await begun.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert breaker.failures == 0


@given(
    st.integers(min_value=0, max_value=999),
    st.text(max_size=40),
    st.binary(max_size=40),
    st.booleans(),
)
def test_no_reply_can_break_the_search_for_it(
    status: int, retry_after: str, body: bytes, is_read: bool
) -> None:
    headers = {"Retry-After": retry_after.encode("utf-8", "replace")}
    reply = httpx.Response(status, headers=headers, stream=httpx.ByteStream(body))
    if is_read:
        reply.read()
    with pytest.raises(httpx.ReadError) as caught:
        raise_behind(reply)
    found = find_reply(caught.value)
    assert found is not None
    assert found.status == status
    assert found.retry_after_s is None or 0 <= found.retry_after_s <= RETRY_AFTER_MAX_S
    assert isinstance(found.has_own_words, bool)


def test_a_reply_without_its_body_keeps_its_status() -> None:
    reply = httpx.Response(404, stream=httpx.ByteStream(b'{"code": 404, "message": "no"}'))
    assert HttpReply.of(reply) == HttpReply(404, "", None)


def test_a_date_to_retry_after_is_read_by_the_providers_own_clock() -> None:
    theirs = datetime(2030, 1, 1, tzinfo=UTC)
    headers = {
        "date": format_datetime(theirs, usegmt=True),
        "retry-after": format_datetime(theirs + timedelta(seconds=30), usegmt=True),
    }
    assert parse_retry_after(headers, now=datetime(2020, 1, 1, tzinfo=UTC)) == 30
