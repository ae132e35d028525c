"""The HTTP connection to a keeper: requests with retries, and live streams."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import httpx

from sandkeeper.client.errors import (
    KeeperUnreachableError,
    UnrecognizedAnswerError,
    read_problem,
)
from sandkeeper.domain.errors import InvalidRequestError, SandkeeperError

if TYPE_CHECKING:
    from pydantic import BaseModel

M = TypeVar("M", bound="BaseModel")

BACKOFF_S = (0.1, 0.4, 1.6, 5.0)
# The keeper pings every stream each 15 s by default: one that is silent this long is dead.
SILENCE_MAX_S = 60.0
# A wake or a cold acquire responds only when it is done.
RESPONSE_TIMEOUT_S = 180.0


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how long a request is retried. `attempts_max=1` disables retries.

    `wait_max_s` bounds the waiting time of one call. Higher hides an outage from the caller; lower
    gives up on a keeper that is only restarting.
    """

    attempts_max: int = 4
    wait_max_s: float = 30.0


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """An event of a live stream; `seq` is its number in the event log, if it has one."""

    name: str
    seq: int | None
    data: dict[str, Any]


class HttpConnection:
    """Sends requests and retries them.

    It retries errors that the keeper marks as retryable, after the delay that it names, and
    requests or responses lost on the way. Every route is safe to retry: those that create or end
    something carry an `Idempotency-Key`, the same in every attempt.
    """

    def __init__(
        self,
        *,
        url: str,
        key: str | None,
        retry: RetryPolicy | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.url = url
        self._retry = retry or RetryPolicy()
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._http = httpx.AsyncClient(
            base_url=url,
            headers=headers,
            timeout=httpx.Timeout(RESPONSE_TIMEOUT_S, connect=10),
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
        idempotent: bool = False,
        retry_errors: bool = True,
    ) -> M:
        """Send a request and return its parsed response.

        `idempotent` adds an idempotency key. Without `retry_errors` an error response is final,
        even if it is marked as retryable.
        """
        response = await self.send(
            method, path, body=body, query=query, idempotent=idempotent, retry_errors=retry_errors
        )
        from pydantic import ValidationError  # noqa: PLC0415  It came with the model.

        try:
            return model.model_validate_json(response.content)
        except ValidationError as error:
            raise UnrecognizedAnswerError(
                f"The response to {method} {path} is not a valid {model.__name__}.",
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
        idempotent: bool = False,
        retry_errors: bool = True,
    ) -> httpx.Response:
        """Return a successful response. Raise the keeper's error, or KeeperUnreachableError."""
        request = {
            "params": _drop_empty(query),
            "headers": {"Idempotency-Key": secrets.token_hex(16)} if idempotent else {},
            "json": _json(body),
            "content": content,
        }
        deadline = time.monotonic() + self._retry.wait_max_s
        for attempt in range(self._retry.attempts_max):
            outcome = await self._try(method, path, request)
            if isinstance(outcome, httpx.Response):
                return outcome
            wait_s = _compute_delay_s(outcome, attempt)
            is_final = attempt == self._retry.attempts_max - 1 or not _is_retryable(outcome)
            is_error_response = not isinstance(outcome, KeeperUnreachableError)
            if is_error_response and not retry_errors:
                is_final = True
            if is_final or time.monotonic() + wait_s > deadline:
                raise outcome
            await asyncio.sleep(wait_s)
        raise AssertionError("RetryPolicy.attempts_max must be at least 1.")

    async def _try(
        self, method: str, path: str, request: Mapping[str, Any]
    ) -> httpx.Response | SandkeeperError:
        try:
            response = await self._http.request(method, path, **request)
        except httpx.TimeoutException as error:
            # A read timeout may mean that the keeper is still working on the request.
            is_retryable = not isinstance(error, httpx.ReadTimeout)
            return KeeperUnreachableError(
                f"{self.url} did not respond in time.", repeat=is_retryable
            )
        except httpx.TransportError as error:
            return KeeperUnreachableError(
                f"No keeper responds at {self.url} ({error}).", repeat=True
            )
        return response if response.is_success else read_problem(response)

    async def download(
        self, path: str, *, query: Mapping[str, object] | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Yield a large response in chunks. It is not retried: the caller already has a part."""
        try:
            async with self._http.stream("GET", path, params=_drop_empty(query)) as response:
                if not response.is_success:
                    await response.aread()
                    raise read_problem(response)
                async for chunk in response.aiter_bytes():
                    yield chunk
        except httpx.TransportError as error:
            raise KeeperUnreachableError(f"The download was interrupted ({error}).") from error

    async def stream(
        self, path: str, *, query: Mapping[str, object] | None = None, after: int | None = None
    ) -> AsyncGenerator[StreamEvent, None]:
        """Yield the events of an endless live stream. Resume it where it was interrupted.

        Raise the keeper's error if it refuses the stream, and KeeperUnreachableError when the
        retries of the policy are used up.
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
                failure = KeeperUnreachableError(
                    f"The stream was interrupted ({error}).", repeat=True
                )
            except _StreamRefused as refused:
                failure = refused.error
            failures += 1
            if failures >= self._retry.attempts_max or not _is_retryable(failure):
                raise failure
            await asyncio.sleep(_compute_delay_s(failure, failures - 1))

    async def _read(
        self, path: str, query: Mapping[str, object] | None, headers: Mapping[str, str]
    ) -> AsyncGenerator[StreamEvent, None]:
        timeout = httpx.Timeout(SILENCE_MAX_S, connect=10)
        async with self._http.stream(
            "GET", path, params=_drop_empty(query), headers=headers, timeout=timeout
        ) as response:
            if response.status_code != 200:
                await response.aread()
                raise _StreamRefused(read_problem(response))
            async with contextlib.aclosing(_parse_events(response.aiter_lines())) as events:
                async for event in events:
                    yield event


def build_body(model: type[M], /, **given: object) -> M:
    """Build a request body. Raise InvalidRequestError for invalid values, as the keeper would."""
    from pydantic import ValidationError  # noqa: PLC0415  It came with the model.

    try:
        return model.model_validate(given)
    except ValidationError as error:
        problems = [
            f"{'.'.join(str(part) for part in one['loc'])}: {one['msg']}"
            for one in error.errors(include_url=False, include_input=False)[:5]
        ]
        raise InvalidRequestError("; ".join(problems)) from None


class _StreamRefused(Exception):  # noqa: N818  Never leaves this module.
    """The response to a stream request is an error."""

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


def _is_retryable(failure: SandkeeperError) -> bool:
    """Return whether the same request may succeed soon. A slow response is not retried."""
    return failure.retryable and bool(failure.fields.get("repeat", True))


def _compute_delay_s(failure: SandkeeperError, attempt: int) -> float:
    """Return the delay that the keeper named, or an exponential backoff with jitter."""
    if failure.retry_after_s is not None:
        return failure.retry_after_s
    base = BACKOFF_S[min(attempt, len(BACKOFF_S) - 1)]
    return base * random.uniform(0.75, 1.25)  # noqa: S311  Jitter, not a secret.


def _drop_empty(query: Mapping[str, object] | None) -> dict[str, Any]:
    return {name: value for name, value in (query or {}).items() if value not in (None, "")}


def _json(body: BaseModel | Mapping[str, Any] | None) -> Any:
    if body is None or isinstance(body, Mapping):
        return body
    return body.model_dump(mode="json", by_alias=True, exclude_none=True)
