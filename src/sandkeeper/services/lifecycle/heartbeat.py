"""The heartbeat: other replicas see that this process lives, and it knows until when they do.

A replica whose heartbeat has stopped for `EXPIRES_S` is dead to the others, which then free its
claims. It may be alive all the same: suspended, or cut off from the database. So it counts too, by
its own clock, from the moment at which it sent its last successful heartbeat, and stops
acting before the others may act.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog

from sandkeeper.common.elapsed import now_s
from sandkeeper.domain.errors import SandkeeperError
from sandkeeper.services.activity.buffer import ActivityBuffer
from sandkeeper.services.deps import Deps

log = structlog.get_logger(__name__)

# Shorter writes more often; longer leaves fewer attempts before the heartbeat expires.
BEAT_PERIOD_S = 2.0

# A replica without a heartbeat for this long is dead. Longer makes people wait for what a crash
# interrupted; shorter takes a busy replica for a dead one.
EXPIRES_S = 10.0

# How long an operation waits for one that another process has under way: longer than a dead process
# can hold it. Lower refuses callers after a crash; higher makes them wait for a slow provider.
CLAIM_WAIT_S = EXPIRES_S + 5.0

# This process stops acting this long before the others may free its claims.
MARGIN_S = 2.0

# With less than this left, the last sign of life failed: one in two seconds is never so old.
LEFT_S_MIN = EXPIRES_S - MARGIN_S - 2 * BEAT_PERIOD_S


class Heartbeat:
    """The heartbeat of this process. Before `start` nothing expires."""

    def __init__(self, deps: Deps, activities: ActivityBuffer) -> None:
        self._activities = activities
        self._replicas = deps.store.replicas
        self._replica = deps.replica
        self._clock = deps.clock
        self._ends_at: float | None = None
        self._beating = asyncio.Lock()
        self._end: asyncio.TimerHandle | None = None
        self._guards: set[asyncio.Timeout] = set()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Give the first sign of life, and one every two seconds from then on."""
        await self.beat()
        self._task = asyncio.create_task(self._beat_forever(), name="heartbeat")

    async def stop(self) -> None:
        """Give no more signs of life. From now on nothing expires."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._stop_timer()
        self._ends_at = None

    @property
    def left_s(self) -> float | None:
        """Return for how many seconds this process may still act; None if nothing expires."""
        if self._ends_at is None:
            return None
        return self._ends_at - now_s()

    async def beat(self) -> None:
        """Give a sign of life, which says that all activity received before it is written.

        If the others took this process for dead, its acts are cancelled. One is given at a time: an
        earlier one that the database answers late would shorten the life that a later one gave.
        """
        async with self._beating:
            await self._beat()

    async def ensure(self) -> None:
        """Give a sign of life if the last ones failed: the act that follows has a full life."""
        left_s = self.left_s
        if left_s is not None and left_s < LEFT_S_MIN:
            await self.beat()

    async def _beat(self) -> None:
        sent_at, now = now_s(), self._clock()
        await self._activities.flush(passive=False)
        was_known = await self._replicas.beat(
            self._replica, now=now, database_ahead=self._clock.database_ahead
        )
        if not was_known and self._ends_at is not None:
            self._lose()
        self._ends_at = sent_at + EXPIRES_S - MARGIN_S
        self._stop_timer()
        loop = asyncio.get_running_loop()
        self._end = loop.call_later(self._ends_at - now_s(), self._lose)

    @asynccontextmanager
    async def guard(self, within_s: float | None = None) -> AsyncIterator[asyncio.Timeout]:
        """Cancel the block after `within_s`, or as soon as this process may no longer act.

        Raise TimeoutError then.
        """
        async with asyncio.timeout(within_s) as limit:
            self._guards.add(limit)
            try:
                yield limit
            finally:
                self._guards.discard(limit)

    async def _beat_forever(self) -> None:
        while True:
            await asyncio.sleep(BEAT_PERIOD_S)
            try:
                await self.beat()
            except SandkeeperError as error:
                log.warning("heartbeat_failed", replica=self._replica, error=str(error))

    def _lose(self) -> None:
        log.warning("heartbeat_lost", replica=self._replica, acts=len(self._guards))
        now = asyncio.get_running_loop().time()
        for limit in tuple(self._guards):
            if not limit.expired():
                limit.reschedule(now)

    def _stop_timer(self) -> None:
        if self._end is not None:
            self._end.cancel()
            self._end = None
