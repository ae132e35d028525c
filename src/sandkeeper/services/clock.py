"""The clock of the process: one time for all replicas, and no jumps.

Claims, deadlines and the order of observations are times in the database, written by one replica
and compared by another. So all replicas work by one time: PostgreSQL's, which is asked at start
and then regularly; between two readings the time that has passed since counts. SQLite has no
clock of its own; there the machine's clock is read once, at start. A jump of the machine's clock
changes nothing in either case.

Nor does a jump of PostgreSQL's clock (a failover, a correction). The time that passes does not
jump, so a replica that runs notices it, stays at its time, and remembers by how much the database
is ahead. It says so with every heartbeat, and a replica that starts takes the difference from the
oldest one that lives.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from sandkeeper.common.elapsed import now_s
from sandkeeper.domain.clock import SKEW_MAX
from sandkeeper.store import Store
from sandkeeper.store.replicas.repository import LastBeat

RECENT: Final = timedelta(seconds=5)
"""A replica whose last heartbeat is older is not asked for the time. Heartbeats come every two
seconds. Higher trusts a difference from before a jump; lower misses a busy replica.
"""


@dataclass(frozen=True, slots=True)
class DatabaseTime:
    """The database's time, and how far an older replica finds it ahead of the replicas' time."""

    at: datetime
    ahead: timedelta | None = None


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
        self._follows = False
        self.database_ahead = timedelta()
        """How far the database's clock is ahead of this one, because it jumped."""

    def __call__(self) -> datetime:
        return self._zero + timedelta(seconds=self._elapsed_s())

    @property
    def machine_ahead(self) -> timedelta:
        """Return how far the machine's clock is ahead of this one now."""
        return self._wall() - self()

    async def follow(self, read: Callable[[], Awaitable[DatabaseTime]]) -> timedelta:
        """Move to the time that `read` returns, but no further than that reading is certain.

        Return how far this clock moved.

        Their time was read at some moment during the call. If this clock is within that span it
        stays as it is, so a slow answer moves nothing, and readings do not make the time tremble.
        """
        asked_at = self()
        found = await read()
        now = self()
        if found.ahead is not None:
            self.database_ahead = found.ahead
        elif self._follows:
            self._absorb_jump(found.at, asked_at, now)
        self._follows = True
        theirs = found.at - self.database_ahead
        latest = theirs + (now - asked_at)
        moved = min(max(now, theirs), latest) - now
        self._zero += moved
        return moved

    def _absorb_jump(self, read: datetime, asked_at: datetime, now: datetime) -> None:
        """Stay at this time if the database's clock jumped, unless it jumped to the right time."""
        theirs = read - self.database_ahead
        if asked_at - SKEW_MAX <= theirs <= now + SKEW_MAX:
            return
        is_right = abs(self._wall() - read) <= SKEW_MAX + (now - asked_at)
        self.database_ahead = timedelta() if is_right else read - now


async def read_database_time(store: Store, replica: str) -> DatabaseTime:
    """Return the database's time as `replica` has to understand it."""
    beats = await store.replicas.list()
    at = await store.read_time()
    return DatabaseTime(at, find_ahead(beats, replica, at))


def find_ahead(beats: Mapping[str, LastBeat], replica: str, at: datetime) -> timedelta | None:
    """Return how far the oldest living replica finds the database ahead, if it is to be believed.

    A replica that lives itself believes only an older one that knows of another jump. One that
    starts, or stood still with its machine, believes any.
    """
    living = {
        name: beat
        for name, beat in beats.items()
        if -SKEW_MAX <= at - beat.beat_at - beat.database_ahead <= RECENT
    }
    own = living.pop(replica, None)
    elders = [
        (beat.started_at, name, beat.database_ahead)
        for name, beat in living.items()
        if own is None
        or (
            (beat.started_at, name) < (own.started_at, replica)
            and abs(beat.database_ahead - own.database_ahead) > SKEW_MAX
        )
    ]
    return min(elders)[2] if elders else None
