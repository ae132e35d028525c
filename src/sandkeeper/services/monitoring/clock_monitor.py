"""Compare the clocks: this machine's, the database's and the providers'.

The process works by its own clock (`services.clock`), which follows PostgreSQL's but not its jumps.
A wrong machine clock, or a database whose clock jumped, shows as a difference from it; a difference
from the provider is measured with the `Date` of its replies.

Who is right cannot be told from one difference, but the harm is one-sided: a clock that is ahead
makes sandboxes in use look idle. So a replica sweeps only while a second clock agrees with it: with
PostgreSQL the machine's own, with SQLite the provider's.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import structlog

from sandkeeper.domain.clock import SKEW_MAX
from sandkeeper.services.activity.lost_activity import LostActivity
from sandkeeper.services.clock import read_database_time
from sandkeeper.services.deps import Deps

log = structlog.get_logger(__name__)

MACHINE: Final = "machine"
DATABASE: Final = "database"
PROVIDER: Final = "provider"

ALONE_SKEW_MAX: Final = timedelta(minutes=1)
"""How far a keeper on SQLite may differ from the provider and still sweep. No other replica sweeps
in its place, so lower stops all pauses for a harmless difference; higher pauses that much too early
after a start with a wrong clock.
"""


class ClockMonitor:
    """Keep the process's clock right, and say when one of the clocks is wrong."""

    def __init__(self, deps: Deps) -> None:
        self._clock = deps.clock
        self._replica = deps.replica
        self._lost_activity = LostActivity(deps)
        self._store = deps.store
        self._providers = deps.providers
        self._metrics = deps.metrics
        self._machine_ahead = timedelta()
        self._providers_ahead: dict[str, timedelta] = {}

    async def check(self) -> None:
        """Follow the database's time and compare all clocks; an unknown one keeps its reading."""
        if self._store.is_shared:
            await self._follow_database()
        self._machine_ahead = self._clock.machine_ahead
        self._metrics.clock_skew.labels(MACHINE, "").set(self._machine_ahead.total_seconds())
        for provider in self._providers:
            ahead = await provider.measure_skew()
            if ahead is not None:
                self._providers_ahead[provider.region] = ahead
                gauge = self._metrics.clock_skew.labels(PROVIDER, provider.region)
                gauge.set(ahead.total_seconds())
        for sentence in self.describe():
            log.warning("clocks_differ", detail=sentence)

    async def _follow_database(self) -> None:
        moved = await self._clock.follow(lambda: read_database_time(self._store, self._replica))
        ahead = self._clock.database_ahead
        self._metrics.clock_skew.labels(DATABASE, "").set(ahead.total_seconds())
        if abs(moved) > SKEW_MAX:
            log.warning("clock_corrected", by_s=moved.total_seconds())
            # Activity from before has times of the wrong clock: all may be idle only in appearance.
            await self._lost_activity.note(self._clock())

    async def check_if_unknown(self) -> None:
        """Compare the clocks if no second one is known: no provider answered at the start."""
        if not self._store.is_shared and not self._providers_ahead:
            await self.check()

    @property
    def skew_s(self) -> float:
        """Return the largest difference between our clock and another one."""
        every = (
            self._machine_ahead,
            self._clock.database_ahead,
            *self._providers_ahead.values(),
        )
        return max(abs(ahead).total_seconds() for ahead in every)

    @property
    def may_sweep(self) -> bool:
        """Return False while no second clock agrees with ours."""
        if self._store.is_shared:
            return abs(self._machine_ahead) <= SKEW_MAX
        ahead = self._providers_ahead.values()
        return not ahead or any(abs(one) <= ALONE_SKEW_MAX for one in ahead)

    def describe(self) -> list[str]:
        """Return one sentence for each difference that is not ordinary."""
        own = "the replicas'" if self._store.is_shared else "its time at the keeper's start"
        found = [
            ("This machine's clock", self._machine_ahead, own),
            ("The database's clock", self._clock.database_ahead, own),
        ]
        found += [
            (f"The clock of the provider in region {region}", ahead, "ours")
            for region, ahead in self._providers_ahead.items()
        ]
        sentences = [
            f"{name} is {abs(ahead).total_seconds():.0f} s "
            f"{'ahead of' if ahead > timedelta() else 'behind'} {other}."
            for name, ahead, other in found
            if abs(ahead) > SKEW_MAX
        ]
        if not self.may_sweep:
            sentences.append("Idle sandboxes are not paused here until the clocks agree.")
        return sentences
