"""One keeper's HTTP API: requests that are repeated when that may help, and live streams."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from sandkeeper.client.errors import (
    KeeperUnreachableError,
    UnrecognizedAnswerError,
    read_problem,
)
from sandkeeper.domain.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping

    from sandkeeper.domain.errors import SandkeeperError

M = TypeVar("M", bound=BaseModel)

BACKOFF_S = (0.1, 0.4, 1.6, 5.0)
# The keeper pings each stream every 15 s by default: one that is silent for so long is dead.
SILENCE_MAX_S = 60.0
# A wake or a cold acquire is answered when it is done.
ANSWER_S = 180.0


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how long a request is repeated. `attempts_max=1` repeats nothing.

    `wait_max_s` bounds the waiting of one call. Higher hides an outage from the caller; lower gives
    up on a keeper that merely restarts.
    """

    attempts_max: int = 4
    wait_max_s: float = 30.0


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One event of a live stream; `seq` is its number in the event log, if it has one."""

    name: str
    seq: int | None
    data: dict[str, Any]


class HttpConnection:
    """Asks, waits and asks again.

    Repeated is what the keeper calls retryable, after the time that it names, and what never
    reached it or whose answer was lost on the way: every route is safe to repeat, and those that
    create or end something carry an `Idempotency-Key`, the same in each attempt.
    """

    def __init__(
        self,
        *,
        url: str,
        key: str | None,
        patience: RetryPolicy | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.url = url
        self._patience = patience or RetryPolicy()
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._http = httpx.AsyncClient(
            base_url=url,
            headers=headers,
            timeout=httpx.Timeout(ANSWER_S, connect=10),
            transport=transport,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=20),
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def request(
        self,
        model: type[M],
        method: str,
        path: str,
        *,
        body: BaseModel | Mapping[str, Any] | None = None,
        query: Mapping[str, object] | None = None,
        once: bool = False,
        repeat_told: bool = True,
    ) -> M:
        """The answer, as what it is. With `once` repeats of the request do nothing twice.

        Without `repeat_told` an error that the keeper tells is final, whatever it says of itself.
        """
        answer = await self.send(
            method, path, body=body, query=query, once=once, repeat_told=repeat_told
        )
        try:
            return model.model_validate_json(answer.content)
        except ValidationError as error:
            raise UnrecognizedAnswerError(
                f"The answer to {method} {path} is no {model.__name__}.",
                problems=error.error_count(),
            ) from error

    async def send(
        self,
        method: str,
        path: str,
        *,
        body: BaseModel | Mapping[str, Any] | None = None,
        content: bytes | None = None,
        query: Mapping[str, object] | None = None,
        once: bool = False,
        repeat_told: bool = True,
    ) -> httpx.Response:
        """A successful answer. Raises the keeper's own error, or KeeperUnreachableError."""
        request = {
            "params": _plain(query),
            "headers": {"Idempotency-Key": secrets.token_hex(16)} if once else {},
            "json": _json(body),
            "content": content,
        }
        deadline = time.monotonic() + self._patience.wait_max_s
        for attempt in range(self._patience.attempts_max):
            failure = await self._try(method, path, request)
            if isinstance(failure, httpx.Response):
                return failure
            wait_s = _wait_s(failure, attempt)
            is_final = attempt == self._patience.attempts_max - 1 or not _may_repeat(failure)
            is_told = not isinstance(failure, KeeperUnreachableError)
            if is_final or (is_told and not repeat_told) or time.monotonic() + wait_s > deadline:
                raise failure
            await asyncio.sleep(wait_s)
        raise AssertionError("A connection without an attempt cannot ask.")

    async def _try(
        self, method: str, path: str, request: Mapping[str, Any]
    ) -> httpx.Response | SandkeeperError:
        try:
            answer = await self._http.request(method, path, **request)
        except httpx.TimeoutException as error:
            lasts = not isinstance(error, httpx.ReadTimeout)
            return KeeperUnreachableError(f"{self.url} did not answer in time.", repeat=lasts)
        except httpx.TransportError as error:
            return KeeperUnreachableError(f"Nobody answers at {self.url} ({error}).", repeat=True)
        return answer if answer.is_success else read_problem(answer)

    async def download(
        self, path: str, *, query: Mapping[str, object] | None = None
    ) -> AsyncGenerator[bytes, None]:
        """A large answer, piece by piece. It is not repeated: the caller has a part of it."""
        try:
            async with self._http.stream("GET", path, params=_plain(query)) as answer:
                if not answer.is_success:
                    await answer.aread()
                    raise read_problem(answer)
                async for piece in answer.aiter_bytes():
                    yield piece
        except httpx.TransportError as error:
            raise KeeperUnreachableError(f"The download broke ({error}).") from error

    async def stream(
        self, path: str, *, query: Mapping[str, object] | None = None, after: int | None = None
    ) -> AsyncGenerator[StreamEvent, None]:
        """A live stream without end. A broken one is taken up where it stopped.

        Raises what the keeper refuses, and KeeperUnreachableError when it stays away for longer
        than the patience of a request.
        """
        last, failures = after, 0
        while True:
            failure: SandkeeperError
            try:
                headers = {} if last is None else {"Last-Event-ID": str(last)}
                async with contextlib.aclosing(self._read(path, query, headers)) as events:
                    async for event in events:
                        failures = 0
                        last = last if event.seq is None else event.seq
                        yield event
                failure = KeeperUnreachableError("The stream ended.", repeat=True)
            except httpx.TransportError as error:
                failure = KeeperUnreachableError(f"The stream broke ({error}).", repeat=True)
            except Refused as refused:
                failure = refused.error
            failures += 1
            if failures >= self._patience.attempts_max or not _may_repeat(failure):
                raise failure
            await asyncio.sleep(_wait_s(failure, failures - 1))

    async def _read(
        self, path: str, query: Mapping[str, object] | None, headers: Mapping[str, str]
    ) -> AsyncGenerator[StreamEvent, None]:
        timeout = httpx.Timeout(SILENCE_MAX_S, connect=10)
        async with self._http.stream(
            "GET", path, params=_plain(query), headers=headers, timeout=timeout
        ) as answer:
            if answer.status_code != 200:
                await answer.aread()
                raise Refused(read_problem(answer))
            async with contextlib.aclosing(_parse_events(answer.aiter_lines())) as events:
                async for event in events:
                    yield event


def build_body(model: type[M], /, **given: object) -> M:
    """A request's body; what cannot be asked is refused here, in the keeper's own way."""
    try:
        return model.model_validate(given)
    except ValidationError as error:
        problems = [
            f"{'.'.join(str(part) for part in one['loc'])}: {one['msg']}"
            for one in error.errors(include_url=False, include_input=False)[:5]
        ]
        raise InvalidRequestError("; ".join(problems)) from None


class Refused(Exception):  # noqa: N818  Never leaves this module.
    """A stream was answered with an error."""

    def __init__(self, error: SandkeeperError) -> None:
        super().__init__(str(error))
        self.error = error


async def _parse_events(lines: AsyncIterator[str]) -> AsyncGenerator[StreamEvent, None]:
    seq, name = None, "message"
    data: list[str] = []
    async for line in lines:
        if not line:
            if data:
                yield StreamEvent(name, seq, json.loads("\n".join(data)))
            seq, name, data = None, "message", []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "id" and value.isdecimal():
            seq = int(value)
        elif field == "event":
            name = value
        elif field == "data":
            data.append(value)


def _may_repeat(failure: SandkeeperError) -> bool:
    """True if the same request may succeed soon. A slow answer is the caller's to judge."""
    return failure.retryable and bool(failure.fields.get("repeat", True))


def _wait_s(failure: SandkeeperError, attempt: int) -> float:
    """What the keeper named, or a growing time with a little chance in it."""
    if failure.retry_after_s is not None:
        return failure.retry_after_s
    base = BACKOFF_S[min(attempt, len(BACKOFF_S) - 1)]
    return base * random.uniform(0.75, 1.25)  # noqa: S311  Spreads callers; guards nothing.


def _plain(query: Mapping[str, object] | None) -> dict[str, Any]:
    return {name: value for name, value in (query or {}).items() if value not in (None, "")}


def _json(body: BaseModel | Mapping[str, Any] | None) -> Any:
    if isinstance(body, BaseModel):
        return body.model_dump(mode="json", by_alias=True, exclude_none=True)
    return body
