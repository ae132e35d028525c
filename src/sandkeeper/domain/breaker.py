"""A circuit breaker: it stops calls after too many failures in a row, then lets one probe through.

There is one per provider and region. Time is an argument. A probe that never reports back (its
process died) loses its place after the same pause, so the breaker cannot stay half open forever.
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
    """Count transient failures in a row. Call ``check`` first, then ``succeed`` or ``fail``."""

    def __init__(self, *, failures_max: int = FAILURES_MAX, open_s: float = OPEN_S) -> None:
        self.failures_max = failures_max
        self.open_s = open_s
        self.failures = 0
        self.answers = 0
        """How often the provider has answered."""
        self._opened_at: datetime | None = None
        self._probe_at: datetime | None = None

    def state(self, now: datetime) -> BreakerState:
        """Return the state of the breaker."""
        if self._opened_at is None:
            return BreakerState.CLOSED
        if (now - self._opened_at).total_seconds() < self.open_s:
            return BreakerState.OPEN
        return BreakerState.HALF_OPEN

    def admits(self, now: datetime) -> bool:
        """Return True if a call may be made now; when half open, this uses up the only probe."""
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
        """Raise ProviderUnavailableError if ``admits`` returns False."""
        if not self.admits(now):
            raise ProviderUnavailableError(
                "The provider failed too often and is not asked for a while.",
                retry_after_s=self.retry_after_s(now),
            )

    def retry_after_s(self, now: datetime) -> float:
        """Return the seconds until a call may be admitted again."""
        since = self._probe_at or self._opened_at
        if since is None:
            return 0.0
        return max(0.0, self.open_s - (now - since).total_seconds())

    def succeed(self) -> None:
        """Record a response of the provider. Any response counts: the provider is reachable."""
        self.failures = 0
        self.answers += 1
        self._opened_at = None
        self._probe_at = None

    def fail(self, now: datetime) -> None:
        """Record a call without a response. A failed probe opens the breaker again."""
        self.failures += 1
        if self._opened_at is not None or self.failures >= self.failures_max:
            self._opened_at = now
            self._probe_at = None
