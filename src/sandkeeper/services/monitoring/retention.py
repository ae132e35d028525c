"""Delete what ended long ago, in small steps that may stop at any point."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Final

import structlog

from sandkeeper.services.deps import Deps
from sandkeeper.store import Pruned

DETAILS_KEPT: Final = timedelta(days=35)
"""How long costs are kept for each sandbox and owner. Sums of tenants and templates are kept for
good. Longer takes more room: 100 000 sandboxes are as many rows each day.
"""

log = structlog.get_logger(__name__)


class RecordRetention:
    """Remove ended records and old log entries after their retention time, and expired tokens."""

    def __init__(self, deps: Deps) -> None:
        self._store = deps.store
        self._clock = deps.clock
        self._retention_ended = timedelta(seconds=deps.settings.retention_ended_s)
        self._retention_events = timedelta(seconds=deps.settings.retention_events_s)

    async def prune(self) -> Pruned:
        now = self._clock()
        pruned = await self._store.prune(
            ended_before=now - self._retention_ended,
            before=now - self._retention_events,
            now=now,
        )
        costs = await self._store.costs.prune(
            details_before=(now - DETAILS_KEPT).date(), ended_before=now - self._retention_ended
        )
        costs += await self._store.activity_history.prune(before=(now - DETAILS_KEPT).date())
        pruned = replace(pruned, others=pruned.others + costs)
        log.info("pruned", sandboxes=pruned.sandboxes, events=pruned.events, others=pruned.others)
        return pruned
