"""Limits per caller: requests, live streams, and attempts with a wrong key.

They are per process and in memory: they protect this process, and a replica more raises them.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sandkeeper.api.auth import Caller, Role
from sandkeeper.api.wire_errors import TooManyRequestsError
from sandkeeper.settings import Settings

# How much of its rate a caller may use at once after a quiet time, in seconds of that rate.
BURST_S = 2.0
# Attempts with a wrong key or token from one address, beyond those that may be made at once.
FAILURES_PER_S = 1.0
# Callers and addresses that are remembered. Beyond it those that used nothing lately are dropped.
ENTRIES_MAX = 20_000


class RateLimit:
    """A rate for each of many callers: `rate` a second, and `burst` at once."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._free_at: dict[str, float] = {}

    def spend(self, name: str, *, rate: float, burst: float) -> float:
        """Count one use; return 0, or the seconds to wait if the rate is used up."""
        now = self._clock()
        free_at = max(self._free_at.get(name, now), now)
        wait_s = free_at - now - (burst - 1) / rate
        if wait_s > 1e-9:
            return wait_s
        if len(self._free_at) >= ENTRIES_MAX:
            self._drop_unused(now)
        self._free_at[name] = free_at + 1 / rate
        return 0.0

    def _drop_unused(self, now: float) -> None:
        used = sorted(
            ((name, at) for name, at in self._free_at.items() if at > now), key=lambda one: one[1]
        )
        self._free_at = dict(used[-ENTRIES_MAX // 2 :])


class CallerLimits:
    """The limits of this process for each key, login, token and address."""

    def __init__(self, settings: Settings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._requests = RateLimit(clock=clock)
        self._failures = RateLimit(clock=clock)
        self._streams: Counter[str] = Counter()

    def count_request(self, caller: Caller) -> None:
        """Count a request; raise TooManyRequestsError above the caller's rate."""
        is_client = caller.role is Role.CLIENT
        rate = (
            self._settings.client_requests_per_s if is_client else self._settings.key_requests_per_s
        )
        wait_s = self._requests.spend(_name(caller), rate=rate, burst=rate * BURST_S)
        if wait_s:
            raise TooManyRequestsError(
                f"This key or token may make {rate} requests a second.",
                retry_after_s=max(1, math.ceil(wait_s)),
            )

    def count_failure(self, address: str) -> None:
        """Count a wrong key or token; raise TooManyRequestsError after too many of an address.

        A right one is always accepted, so guessing behind a shared address locks no one out.
        """
        burst = self._settings.failed_logins_max
        wait_s = self._failures.spend(address, rate=FAILURES_PER_S, burst=burst)
        if wait_s:
            raise TooManyRequestsError(
                "There were too many attempts with a wrong key or token from this address.",
                retry_after_s=max(1, math.ceil(wait_s)),
            )

    @contextmanager
    def stream(self, caller: Caller) -> Iterator[None]:
        """Hold one of the caller's live streams, or raise TooManyRequestsError."""
        is_client = caller.role is Role.CLIENT
        # One key may take half of what this process can hold.
        half = max(1, self._settings.sse_connections_max // 2)
        limit = self._settings.client_streams_max if is_client else half
        name = _name(caller)
        if self._streams[name] >= limit:
            raise TooManyRequestsError(
                f"This key or token may hold {limit} live streams.", retry_after_s=30
            )
        self._streams[name] += 1
        try:
            yield
        finally:
            self._streams[name] -= 1
            if not self._streams[name]:
                del self._streams[name]


def _name(caller: Caller) -> str:
    """Return what the limits of a caller are counted under: its token, or its key's role."""
    return caller.token_id or caller.actor
