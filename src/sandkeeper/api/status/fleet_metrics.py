"""What is measured when somebody looks: the fleet's gauges, and when each reading was last fine."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from sandkeeper.services.monitoring.health import HealthMonitor, HealthReport
from sandkeeper.services.monitoring.metrics_history import MetricsHistory
from sandkeeper.store import Store


class FleetMetrics:
    """Counts the fleet for `/metrics` and for the summary, and remembers good moments."""

    def __init__(
        self,
        *,
        store: Store,
        trends: MetricsHistory,
        health: HealthMonitor,
        clock: Callable[[], datetime],
    ) -> None:
        self._store = store
        self._trends = trends
        self._health = health
        self._clock = clock
        self._last_ok_at: dict[str, datetime] = {}

    async def refresh_gauges(self) -> None:
        """Set the gauges to what is so now."""
        await self._trends.sample()

    async def summarize(self) -> dict[str, object]:
        """The fleet in numbers."""
        now = self._clock()
        counts = await self._trends.count_states()
        staleness = await self._trends.count_stale(now)
        return {
            "total": sum(counts.values()),
            "states": {state.value: count for state, count in counts.items()},
            "stale": staleness.stale,
            "overdue": await self._store.sandboxes.count_due(now=now),
            "asOf": now,
        }

    async def collect_health(self) -> HealthReport:
        """Every reading now; the good ones are remembered with their time."""
        report = await self._health.report()
        for reading in report.readings:
            if not reading.red:
                self._last_ok_at[reading.name] = report.as_of
        return report

    def last_ok_at(self, name: str) -> datetime | None:
        """When this reading was last seen within its limit, by this process."""
        return self._last_ok_at.get(name)
