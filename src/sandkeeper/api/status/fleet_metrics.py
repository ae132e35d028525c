"""What is measured on request: the fleet's gauges, and when each reading was last in its limit."""

from __future__ import annotations

from datetime import datetime

from sandkeeper.api.status.checkup import Checkup
from sandkeeper.api.status.serializers import render_reading
from sandkeeper.domain.breaker import BreakerState
from sandkeeper.services.composition import Services
from sandkeeper.services.monitoring.health import Staleness

BREAKER_GAUGE = {BreakerState.CLOSED: 0, BreakerState.HALF_OPEN: 1, BreakerState.OPEN: 2}


class FleetMetrics:
    """Counts the fleet for `/metrics` and for the summary, and remembers good moments."""

    def __init__(self, services: Services, checkup: Checkup) -> None:
        self._checkup = checkup
        self._deps = services.deps
        self._history = services.metrics_history
        self._health = services.health
        self._last_ok_at: dict[str, datetime] = {}

    async def refresh_gauges(self) -> None:
        """Set the gauges to what is so now."""
        await self._history.measure()

    def find_open_breakers(self) -> list[str]:
        """Return the providers whose breaker is open, and set the breakers' gauge."""
        states = self._deps.providers.breaker_states()
        for provider, state in states.items():
            gauge = self._deps.metrics.breaker_state.labels(provider.name, provider.region)
            gauge.set(BREAKER_GAUGE[state])
        return [
            f"{provider.name}/{provider.region}"
            for provider, state in states.items()
            if state is BreakerState.OPEN
        ]

    async def summarize(self) -> dict[str, object]:
        """Return the numbers of the fleet and the readings of its health."""
        now = self._deps.clock()
        counts = await self._history.count_states()
        staleness = await self._history.count_stale(now, counts)
        return {
            "total": sum(counts.values()),
            "states": {state.value: count for state, count in counts.items()},
            "stale": staleness.stale,
            "overdue": await self._deps.store.counts.due(now=now),
            "asOf": now,
            "health": await self.describe_health(staleness),
        }

    async def describe_health(self, staleness: Staleness | None = None) -> dict[str, object]:
        """Return every reading, and when this process last saw each within its limit."""
        report = await self._health.report(staleness)
        for reading in report.readings:
            if not reading.red:
                self._last_ok_at[reading.name] = report.as_of
        parts = await self._checkup.list_parts(report)
        return {
            "ok": report.is_well,
            "parts": [part.render() for part in parts],
            "items": [
                render_reading(one, last_ok_at=self._last_ok_at.get(one.name))
                for one in report.readings
            ],
        }
