"""One reconciler for each region, however many replicas there are.

Before a pass a replica takes the region's lease, and the others leave that region alone: while it
is under way, and until their own period is over since it began. A pass that failed does not count,
so a replica that cannot reach the provider hands over to the next one. So does one that dies: the
lease is over with its heartbeat.

A holder that stood still must not go on with what it knew. Its heartbeat cancels the pass before
the others may begin theirs, and before it writes or acts it checks that no later pass has begun.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import structlog

from sandkeeper.common.elapsed import now_s
from sandkeeper.domain.errors import RegionBusyError, StoreError
from sandkeeper.providers.base import Provider
from sandkeeper.services.deps import Deps
from sandkeeper.store.replicas.region_leases import PASS_S_MAX, RegionPass

log = structlog.get_logger(__name__)

Guard = Callable[[float | None], AbstractAsyncContextManager[asyncio.Timeout]]
"""Cancels a block when this process may no longer act, or after so many seconds."""

MARGIN_S: Final = 60.0
"""A pass is cancelled this long before the others take it for over."""
POLL_S: Final = 1.0
"""How often a replica asks whether a pass that it waits for is over. Lower asks more often for
nothing; higher starts later."""
WAIT_S: Final = 20.0
"""How long a person who asked for a pass waits for another one. Higher than it takes until a dead
replica's lease is over, about 15 s."""
CHECKED_S: Final = 1.0
"""How long a check of the lease counts. Lower asks the database more often; higher lets a holder
whose term is over write for longer."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What came of asking for a region: the lease, or the pass of another replica."""

    lease: RegionLease | None
    other: RegionPass | None = None


class RegionLease:
    """The right to make one pass over one region."""

    def __init__(self, deps: Deps, region: str, term: int) -> None:
        self._store = deps.store.region_leases
        self._region = region
        self.term = term
        self._checked_at = now_s()

    async def check(self) -> None:
        """Raise RegionBusyError if a later pass has begun."""
        if now_s() - self._checked_at < CHECKED_S:
            return
        if not await self._store.is_held(self._region, self.term):
            raise RegionBusyError(region=self._region)
        self._checked_at = now_s()


class RegionLeases:
    """The leases of this replica."""

    def __init__(self, deps: Deps, guard: Guard) -> None:
        self._deps = deps
        self._store = deps.store.region_leases
        self._clock = deps.clock
        self._guard = guard
        self._own: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    @asynccontextmanager
    async def take_turn(self, provider: Provider, *, period_s: float) -> AsyncIterator[Turn]:
        """Make a pass in the block if one is due: no other replica began one in this period."""
        before = self._clock() - timedelta(seconds=period_s)
        region = name_region(provider)
        async with self._own[region]:
            term = await self._take(provider, before)
            if term is None:
                yield Turn(None, await self._store.find(region))
            else:
                async with self._holding(region, term) as lease:
                    yield Turn(lease)

    @asynccontextmanager
    async def wait_for_turn(
        self, provider: Provider, *, unless_after: datetime | None = None
    ) -> AsyncIterator[Turn]:
        """Make a pass in the block, after the one that is under way.

        If one that began after `unless_after` has succeeded by then, there is no need for another.
        Raise RegionBusyError if the one that is under way takes too long.
        """
        region = name_region(provider)
        ends_at = now_s() + WAIT_S
        async with self._own[region]:
            while (term := await self._take(provider, unless_after or self._clock())) is None:
                other = await self._store.find(region)
                if other is not None and unless_after is not None and _is_news(other, unless_after):
                    yield Turn(None, other)
                    return
                if now_s() > ends_at:
                    raise RegionBusyError(region=region)
                await asyncio.sleep(POLL_S)
            async with self._holding(region, term) as lease:
                yield Turn(lease)

    async def _take(self, provider: Provider, others_before: datetime) -> int | None:
        region, holder = name_region(provider), self._deps.replica
        term = await self._store.take(
            region, holder=holder, now=self._clock(), others_before=others_before
        )
        is_holder = term is not None
        self._deps.metrics.reconciler.labels(provider.name, provider.region).set(is_holder)
        return term

    @asynccontextmanager
    async def _holding(self, region: str, term: int) -> AsyncIterator[RegionLease]:
        succeeded = False
        try:
            async with self._guard(PASS_S_MAX - MARGIN_S):
                yield RegionLease(self._deps, region, term)
            succeeded = True
        except TimeoutError as error:
            raise RegionBusyError("The pass was cancelled.", region=region) from error
        finally:
            # If this fails, too, the lease is over with the next pass of this replica.
            with contextlib.suppress(StoreError):
                now = self._clock()
                await self._store.finish(region, term, now=now, succeeded=succeeded)


def name_region(provider: Provider) -> str:
    """Return the name under which a region's lease is stored."""
    return f"{provider.name}/{provider.region}"


def _is_news(other: RegionPass, since: datetime) -> bool:
    return other.finished_at is not None and other.started_at >= since
