"""How the client behaves when its keeper does not: repeats, waits, gives up, takes up."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from sandkeeper.client import (
    AsyncSandkeeper,
    KeeperUnreachableError,
    RetryPolicy,
    UnrecognizedAnswerError,
)
from sandkeeper.client.in_process import InProcessTransport
from sandkeeper.domain.errors import InvalidSettingsError, SandboxBusyError, SandkeeperError

SUMMARY = {
    "total": 3,
    "states": {},
    "stale": 0,
    "overdue": 0,
    "health": {"ok": True, "parts": [], "items": []},
    "asOf": "2026-01-01T00:00:00Z",
}


def problem(code: str, status: int, *, retry_after: str | None = None) -> Response:
    body = {
        "code": code,
        "detail": "Not now.",
        "retryable": retry_after is not None,
        "hint": "Later.",
        "requestId": "r-1",
    }
    headers = {} if retry_after is None else {"Retry-After": retry_after}
    return JSONResponse(body, status, headers, media_type="application/problem+json")


class MisbehavingKeeper:
    """Answers with what it was given, in order, and remembers what came and when.

    None is a reply that is lost: the connection ends instead.
    """

    def __init__(self, *answers: Response | None) -> None:
        self._answers = list(answers)
        self.requests: list[Request] = []
        self.at: list[float] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.requests.append(Request(scope, receive))
        self.at.append(time.monotonic())
        answer = self._answers.pop(0)
        if answer is not None:
            await answer(scope, receive, send)

    def client(self, patience: RetryPolicy | None = None) -> AsyncSandkeeper:
        transport = InProcessTransport(self)
        return AsyncSandkeeper("http://keeper", "key", retry=patience, transport=transport)


async def test_a_busy_keeper_is_asked_again_when_it_said() -> None:
    keeper = MisbehavingKeeper(problem("sandbox_busy", 409, retry_after="1"), JSONResponse(SUMMARY))
    async with keeper.client() as client:
        assert (await client.summary()).total == 3
    assert keeper.at[1] - keeper.at[0] >= 1


async def test_a_wait_beyond_the_patience_is_told_at_once() -> None:
    keeper = MisbehavingKeeper(problem("sandbox_busy", 409, retry_after="3600"))
    async with keeper.client() as client:
        with pytest.raises(SandboxBusyError) as busy:
            await client.summary()
    assert busy.value.retry_after_s == 3600
    assert len(keeper.requests) == 1


async def test_a_lost_reply_is_asked_for_again_with_the_same_idempotency_key() -> None:
    keeper = MisbehavingKeeper(
        None,
        problem("idempotency_in_flight", 409, retry_after="0"),
        problem("policy_refused", 403),
    )
    async with keeper.client() as client:
        with pytest.raises(SandkeeperError) as refused:
            await client.project("p").create()
    assert refused.value.code == "policy_refused"
    keys = {request.headers["idempotency-key"] for request in keeper.requests}
    assert (len(keeper.requests), len(keys)) == (3, 1)


async def test_what_cannot_succeed_is_not_repeated() -> None:
    keeper = MisbehavingKeeper(problem("wrong_state", 409))
    async with keeper.client() as client:
        with pytest.raises(SandkeeperError, match="Not now"):
            await client.project("p").pause()
    assert len(keeper.requests) == 1


async def test_a_keeper_that_stays_busy_is_given_up() -> None:
    keeper = MisbehavingKeeper(*[problem("sandbox_busy", 409, retry_after="0")] * 3)
    async with keeper.client(RetryPolicy(attempts_max=3)) as client:
        with pytest.raises(SandboxBusyError):
            await client.summary()
    assert len(keeper.requests) == 3


async def test_a_code_from_the_future_says_of_itself_what_holds() -> None:
    keeper = MisbehavingKeeper(problem("sandbox_on_mars", 503, retry_after="0"))
    async with keeper.client(RetryPolicy(attempts_max=1)) as client:
        with pytest.raises(UnrecognizedAnswerError) as unknown:
            await client.summary()
    error = unknown.value
    assert (error.code, error.hint, error.retryable) == ("sandbox_on_mars", "Later.", True)


@pytest.mark.parametrize(
    "answer",
    [
        Response("<html>Welcome</html>", 200),
        JSONResponse({"another": "program"}),
        JSONResponse(["no", "object"], 500),
    ],
)
async def test_an_answer_that_is_not_a_keepers_is_told_as_such(answer: Response) -> None:
    keeper = MisbehavingKeeper(answer)
    async with keeper.client() as client:
        with pytest.raises(UnrecognizedAnswerError):
            await client.summary()


async def test_a_proxy_without_a_keeper_behind_it_is_asked_again() -> None:
    keeper = MisbehavingKeeper(Response("<html>Bad gateway</html>", 502), JSONResponse(SUMMARY))
    async with keeper.client() as client:
        assert (await client.summary()).total == 3


async def test_an_unreachable_keeper_is_an_error_of_the_same_tree() -> None:
    async with AsyncSandkeeper("http://127.0.0.1:9", "key", retry=RetryPolicy(2)) as client:
        with pytest.raises(KeeperUnreachableError) as unreachable:
            await client.summary()
    assert unreachable.value.retryable
    with pytest.raises(InvalidSettingsError):
        AsyncSandkeeper("localhost:7420", "key")


def change(seq: int) -> str:
    data = (
        f'{{"seq":{seq},"at":"2026-01-01T00:00:00Z","type":"state_changed","project":"p",'
        '"owner":{"kind":"project","id":"p"},"version":1,"fromState":null,"toState":null,'
        '"cause":"","reason":"","actor":"","detail":{}}'
    )
    return f"id: {seq}\nevent: change\ndata: {data}\n\n"


async def test_a_broken_stream_is_taken_up_where_it_stopped(
    serving: Callable[[ASGIApp], AbstractAsyncContextManager[str]],
) -> None:
    async def stream(*parts: str) -> AsyncIterator[str]:
        for part in parts:
            yield part

    keeper = MisbehavingKeeper(
        StreamingResponse(stream("retry: 2000\n\n", ": ping\n\n", change(7), change(8))),
        problem("feature_disabled", 503, retry_after="0"),
        StreamingResponse(stream(change(9))),
    )
    async with serving(keeper) as url, AsyncSandkeeper(url, "key") as client:
        seen: list[int] = []
        async with aclosing(client.project("p").events()) as events:
            async for event in events:
                seen.append(event.seq)  # type: ignore[union-attr]
                if len(seen) == 3:
                    break
    assert seen == [7, 8, 9]
    asked = [request.headers.get("last-event-id") for request in keeper.requests]
    assert asked == [None, "8", "8"]
