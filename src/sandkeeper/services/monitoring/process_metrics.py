"""Metrics of this process: how late its event loop runs, and its database connections."""

from __future__ import annotations

import asyncio

from sandkeeper.services.deps import Deps

# Higher misses short stalls; lower costs processor time for nothing.
PERIOD_S = 0.5


class ProcessMetrics:
    """Measure the event loop while it runs, and read the connection pool on each scrape."""

    def __init__(self, deps: Deps) -> None:
        self._lag = deps.metrics.event_loop_lag
        connections = deps.metrics.database_connections
        database = deps.store.database
        connections.labels("in_use").set_function(lambda: database.count_connections()[0])
        connections.labels("idle").set_function(lambda: database.count_connections()[1])

    async def measure_forever(self) -> None:
        """Observe, twice a second, how much later than asked a timer fires."""
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + PERIOD_S
            await asyncio.sleep(PERIOD_S)
            self._lag.observe(max(0.0, loop.time() - due_s))
