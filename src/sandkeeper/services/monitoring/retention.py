"""Pruning: what ended long ago is forgotten, in small steps that may stop at any point."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

import structlog

from sandkeeper.store import Pruned, Store

log = structlog.get_logger(__name__)


class RecordRetention:
    """Removes ended records and old log entries after their retention time, and expired tokens."""

    def __init__(
        self,
        *,
        store: Store,
        clock: Callable[[], datetime],
        retention_ended_s: float,
        retention_events_s: float,
    ) -> None:
        self._store = store
        self._clock = clock
        self._retention_ended = timedelta(seconds=retention_ended_s)
        self._retention_events = timedelta(seconds=retention_events_s)

    async def prune(self) -> Pruned:
        now = self._clock()
        pruned = await self._store.prune(
            ended_before=now - self._retention_ended,
            before=now - self._retention_events,
            now=now,
        )
        log.info("pruned", sandboxes=pruned.sandboxes, events=pruned.events, others=pruned.others)
        return pruned
