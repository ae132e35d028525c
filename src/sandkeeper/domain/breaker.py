"""A circuit breaker: after too many failures in a row it stops asking, then lets one probe through.

One per provider and region. Time is an argument. A probe that never reports back (its process died)
gives its place away after the same pause, so that the breaker cannot stay half open for ever.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Final

from sandkeeper.domain.errors import ProviderUnavailableError

FAILURES_MAX: Final = 5
OPEN_S: Final = 30.0


class BreakerState(StrEnum):
    """CLOSED: calls pass. OPEN: none does. HALF_OPEN: one probe does."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Breaker:
    """Counts transient failures in a row. ``check`` before a call, then ``succeed`` or ``fail``."""

    def __init__(self, *, failures_max: int = FAILURES_MAX, open_s: float = OPEN_S) -> None:
        self.failures_max = failures_max
        self.open_s = open_s
        self.failures = 0
        self._opened_at: datetime | None = None
        self._probe_at: datetime | None = None

    def state(self, now: datetime) -> BreakerState:
        """Where the breaker stands."""
        if self._opened_at is None:
            return BreakerState.CLOSED
        if (now - self._opened_at).total_seconds() < self.open_s:
            return BreakerState.OPEN
        return BreakerState.HALF_OPEN

    def admits(self, now: datetime) -> bool:
        """True if a call may be made now; when half open this takes the only probe's place."""
        state = self.state(now)
        if state is BreakerState.CLOSED:
            return True
        if state is BreakerState.OPEN:
            return False
        if self._probe_at is not None and (now - self._probe_at).total_seconds() < self.open_s:
            return False
        self._probe_at = now
        return True

    def check(self, now: datetime) -> None:
        """Raises ProviderUnavailableError where ``admits`` says no."""
        if not self.admits(now):
            raise ProviderUnavailableError(
                "The provider failed too often and is not asked for a while.",
                retry_after_s=self.retry_after_s(now),
            )

    def retry_after_s(self, now: datetime) -> float:
        """Seconds until a call may be admitted again."""
        since = self._probe_at or self._opened_at
        if since is None:
            return 0.0
        return max(0.0, self.open_s - (now - since).total_seconds())

    def succeed(self) -> None:
        """The provider answered, whatever it said: it is there."""
        self.failures = 0
        self._opened_at = None
        self._probe_at = None

    def fail(self, now: datetime) -> None:
        """The provider did not answer. The failure of a probe opens the breaker anew."""
        self.failures += 1
        if self._opened_at is not None or self.failures >= self.failures_max:
            self._opened_at = now
            self._probe_at = None
