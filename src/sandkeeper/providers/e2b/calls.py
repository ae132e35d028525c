"""How every call to a provider is made: bounded, paced, timed out, classified and counted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import TypeVar

import httpx
import structlog
from e2b import exceptions as sdk

from sandkeeper.common.cancellation import count_cancellations
from sandkeeper.common.tracing import TRACING
from sandkeeper.domain.breaker import Breaker
from sandkeeper.domain.errors import ProviderRateLimitedError, SandkeeperError
from sandkeeper.providers.acting_claim import check_deadline
from sandkeeper.providers.e2b.mapping import ERRORS, Verdict, judge, read_limit, read_words
from sandkeeper.providers.rate_limit import RateLimiter

T = TypeVar("T")

log = structlog.get_logger(__name__)

#: Quiet time after "too many requests" that named none. Lower meets the limit again; higher makes
#: the fleet wait for nothing.
QUIET_S = 2.0

#: How often a rate-limited call is sent again before the caller gets the error.
RATE_LIMITED_RETRIES = 2

#: Verdicts that say something is wrong with the provider and not with the request.
FAILURES = frozenset({Verdict.UNREACHABLE, Verdict.AMBIGUOUS})

#: The request was sent, and no answer came in time.
TIMEOUTS = (TimeoutError, httpx.ReadTimeout, sdk.TimeoutException)


class Calls:
    """Make calls to one provider in one region.

    `on_call` is called after each one with the operation, outcome (`ok` or an error's code) and
    seconds.
    """

    def __init__(
        self,
        *,
        provider: str,
        rate_limiter: RateLimiter,
        breaker: Breaker,
        clock: Callable[[], datetime],
        on_call: Callable[[str, str, float], None] | None = None,
    ) -> None:
        self._provider = provider
        self._rate_limiter = rate_limiter
        self._breaker = breaker
        self._clock = clock
        self._on_call = on_call

    async def perform(
        self,
        operation: str,
        act: Callable[[], Awaitable[T]],
        *,
        timeout_s: float,
        instance_id: str | None = None,
    ) -> T:
        """Return the call's result, or raise one of our own errors.

        Only "too many requests" is retried here, because then nothing was done. For any other
        failure the caller retries in its next period.
        """
        with TRACING.span(
            f"provider {operation}",
            sandkeeper__provider=self._provider,
            sandkeeper__instance_id=instance_id,
        ):
            for retry in range(RATE_LIMITED_RETRIES + 1):
                try:
                    return await self._attempt(operation, act, timeout_s, instance_id)
                except ProviderRateLimitedError:
                    is_last = retry == RATE_LIMITED_RETRIES
                    if is_last or self._rate_limiter.quiet_s > self._rate_limiter.patience_s:
                        raise
            raise AssertionError("the last attempt returns or raises")

    async def _attempt(
        self,
        operation: str,
        act: Callable[[], Awaitable[T]],
        timeout_s: float,
        instance_id: str | None,
    ) -> T:
        async with self._rate_limiter.slot():
            self._check_quiet()
            self._breaker.check(self._clock())
            check_deadline()
            started = time.monotonic()
            outcome = "cancelled"
            try:
                result = await _act(act, timeout_s)
            except BaseException as error:
                if _is_ours_to_pass_on(error):
                    raise
                verdict, translated = self.translate(error, operation, instance_id)
                outcome = translated.code
                if verdict in FAILURES:
                    self._breaker.fail(self._clock())
                else:
                    self._breaker.succeed()
                raise translated from error
            else:
                outcome = "ok"
                self._breaker.succeed()
                return result
            finally:
                self.count(operation, outcome, time.monotonic() - started)

    def count(self, operation: str, outcome: str, duration_s: float) -> None:
        """Report one call to `on_call`, if it is set."""
        if self._on_call is not None:
            self._on_call(operation, outcome, duration_s)

    def translate(
        self, error: BaseException, operation: str, instance_id: str | None
    ) -> tuple[Verdict, SandkeeperError]:
        """Return what an error means, as our own error. A quiet time that it names begins now.

        Never raise, whatever the error is: the breaker and the caller must hear of it.
        """
        if isinstance(error, SandkeeperError):
            return Verdict.REFUSED, error
        verdict, reply = judge(error)
        words = read_words(error)
        detail = f"{type(error).__name__}: {words}" if words else type(error).__name__
        fields: dict[str, object] = {"provider": self._provider, "operation": operation}
        if instance_id is not None:
            fields["instance_id"] = instance_id
        if reply is not None:
            fields["status"] = reply.status
        if isinstance(error, TIMEOUTS):
            fields["timed_out"] = True
        if verdict is Verdict.RATE_LIMITED:
            seconds = QUIET_S if reply is None else reply.retry_after_s or QUIET_S
            self._rate_limiter.keep_quiet(seconds)
            fields["retry_after_s"] = seconds
        if verdict is Verdict.FULL:
            fields["limit"] = read_limit(words)
        if verdict is Verdict.AMBIGUOUS:
            text = "" if reply is None else reply.text[:500]
            log.warning("provider_answer_not_understood", error=detail, text=text, **fields)
        # Only the provider knows what is wrong with a request; the caller has to correct it.
        is_explained = verdict is Verdict.REFUSED and bool(words)
        message = f"The provider rejected the request: {words}"[:300] if is_explained else None
        return verdict, ERRORS[verdict](message, detail=detail[:300], **fields)

    def _check_quiet(self) -> None:
        quiet_s = self._rate_limiter.quiet_s
        if quiet_s > 0:
            raise ProviderRateLimitedError(provider=self._provider, retry_after_s=quiet_s)


async def _act(act: Callable[[], Awaitable[T]], timeout_s: float) -> T:
    cancellations = count_cancellations()
    try:
        async with asyncio.timeout(timeout_s):
            return await act()
    finally:
        if count_cancellations() > cancellations:
            raise asyncio.CancelledError


def _is_ours_to_pass_on(error: BaseException) -> bool:
    """Return True for an end of this task or process, which no provider caused.

    A library may raise `CancelledError` although this task was not cancelled; that is a failed call
    like any other.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is None or task.cancelling() > 0
    return isinstance(error, GeneratorExit | KeyboardInterrupt | SystemExit)
