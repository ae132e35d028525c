"""The clock of the process: one time for all replicas, and no jumps.

Claims, deadlines and the order of observations are times in the database, written by one replica
and compared by another. So all replicas work by the database's time: PostgreSQL is asked at start
and then regularly, and between two readings the time that has passed since counts. SQLite has no
clock of its own; there the machine's clock is read once, at start. A jump of the machine's clock
changes nothing in either case.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

from sandkeeper.common.elapsed import now_s


def read_wall() -> datetime:
    """Return the machine's time, which may be wrong and may jump."""
    return datetime.now(UTC)


class ProcessClock:
    """Return the time by which this process works. Call it like a function."""

    def __init__(
        self,
        *,
        wall: Callable[[], datetime] = read_wall,
        elapsed_s: Callable[[], float] = now_s,
    ) -> None:
        self._wall = wall
        self._elapsed_s = elapsed_s
        self._zero = wall() - timedelta(seconds=elapsed_s())

    def __call__(self) -> datetime:
        return self._zero + timedelta(seconds=self._elapsed_s())

    @property
    def machine_ahead(self) -> timedelta:
        """Return how far the machine's clock is ahead of this one now."""
        return self._wall() - self()

    async def follow(self, read: Callable[[], Awaitable[datetime]]) -> None:
        """Move to the time that `read` returns, but no further than that reading is certain.

        Their time was read at some moment during the call. If this clock is within that span it
        stays as it is, so a slow answer moves nothing, and readings do not make the time tremble.
        """
        asked_at = self()
        theirs = await read()
        now = self()
        latest = theirs + (now - asked_at)
        self._zero += min(max(now, theirs), latest) - now
