"""Delete what ended long ago, in small steps that may stop at any point."""

from __future__ import annotations

from datetime import timedelta

import structlog

from sandkeeper.services.deps import Deps
from sandkeeper.store import Pruned

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
        log.info("pruned", sandboxes=pruned.sandboxes, events=pruned.events, others=pruned.others)
        return pruned
