"""Fleet metrics over time, for charts, and the fleet's gauges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from sandkeeper.domain.states import State
from sandkeeper.services.deps import Deps
from sandkeeper.services.monitoring.health import Staleness
from sandkeeper.services.monitoring.provider_health import ProviderHealth
from sandkeeper.store.metrics_history import MetricSample
from sandkeeper.store.sandboxes.counts import COUNTED_MAX

STATES = "fleet.states"

# Records that were not confirmed for this long count as stale in metrics and health.
STALE_S = 600.0

# More than ten thousand stale records are counted again after this time. Shorter costs each scrape
# and summary what the count costs; longer shows late that the keeper has caught up.
MANY_COUNT_FOR = timedelta(seconds=10)


class MetricsHistory:
    """Sample the fleet at intervals, and list the samples."""

    def __init__(self, deps: Deps, provider_health: ProviderHealth) -> None:
        self._store = deps.store
        self._provider_health = provider_health
        self._metrics = deps.metrics
        self._clock = deps.clock
        self._many_stale: tuple[datetime, int] | None = None
        """When more than ten thousand were counted, and how many."""

    async def sample(self) -> None:
        """Measure the fleet and save the sample for charts.

        Several replicas sample the same fleet; while a recent sample exists, no other is saved.
        """
        counts = await self.measure()
        now = self._clock()
        recent = await self._store.metrics_history.list(
            STATES, since=now - timedelta(seconds=30), limit=1
        )
        if not recent:
            await self._store.counts.fold()
            data = {state.value: count for state, count in counts.items()}
            await self._store.metrics_history.add(MetricSample(kind=STATES, at=now, data=data))

    async def measure(self) -> dict[State, int]:
        """Set the gauges to what is so now; return how many sandboxes are in each state."""
        now = self._clock()
        counts = await self.count_states()
        for state, count in counts.items():
            self._metrics.sandboxes.labels(state.value).set(count)
        staleness = await self.count_stale(now, counts)
        self._metrics.sandboxes_stale.set(staleness.stale)
        self._metrics.idle_overdue.set(await self._store.counts.due(now=now))
        return counts

    async def count_stale(
        self, now: datetime, counts: Mapping[State, int] | None = None
    ) -> Staleness:
        """Return how many live records there are, and how many are stale."""
        if counts is None:
            counts = await self._store.counts.by_state()
        live = sum(count for state, count in counts.items() if state.is_live)
        if self._many_stale is not None and now - self._many_stale[0] < MANY_COUNT_FOR:
            return Staleness(live=live, stale=min(live, self._many_stale[1]))
        stale = await self._store.counts.stale(before=now - timedelta(seconds=STALE_S), of=live)
        self._many_stale = (now, stale) if stale >= COUNTED_MAX else None
        return Staleness(live=live, stale=stale)

    async def count_states(self) -> dict[State, int]:
        """Return how many sandboxes are shown in each state."""
        silent = self._provider_health.list_silent_places()
        return await self._store.counts.by_state(silent=silent)

    async def list_states(self, *, since: datetime, limit: int = 2000) -> Sequence[MetricSample]:
        """Return the fleet's states over time, oldest first."""
        return await self._store.metrics_history.list(STATES, since=since, limit=limit)
