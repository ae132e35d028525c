"""Read the provider's event log from where we stopped, so that a lost webhook is only a late one.

Without a public address there are no webhooks, and changes arrive only this way. Each region has a
bookmark: the time of the newest event that was read. Reading starts a little before it, because
several machines write the provider's log and an entry may appear after a later one. Reading an
event twice changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import structlog

from sandkeeper.domain.errors import ProviderUnsupportedError
from sandkeeper.domain.observe.observation import Source
from sandkeeper.providers.base import Provider
from sandkeeper.providers.features import ProviderFeature
from sandkeeper.services.deps import Deps
from sandkeeper.services.monitoring.provider_features import ProviderFeatures
from sandkeeper.services.observe.observations import Observations, RecordOutcome

log = structlog.get_logger(__name__)

OVERLAP: Final = timedelta(seconds=60)
"""How far before the bookmark reading starts. Too short misses late entries; too long reads much
again on each pass."""

FIRST_READ: Final = timedelta(hours=24)
"""How far back the first pass reads; E2B keeps events for seven days."""

SEEN_BATCH: Final = 500
"""Event ids per database query; SQLite limits the number of bound values."""


@dataclass(frozen=True, slots=True)
class EventPollingReport:
    """The result of one pass over one region."""

    region: str
    read: int = 0
    changed: int = 0
    supported: bool = True


class EventPolling:
    """Read every region's log once per call of `run`."""

    def __init__(self, deps: Deps, observations: Observations, features: ProviderFeatures) -> None:
        self._store = deps.store
        self._providers = deps.providers
        self._observations = observations
        self._features = features
        self._clock = deps.clock

    async def run(self) -> list[EventPollingReport]:
        """Run one pass. A region that cannot be read does not stop the others."""
        reports: list[EventPollingReport] = []
        failures: list[Exception] = []
        for provider in self._providers:
            if self._features.lacks(provider, ProviderFeature.EVENTS):
                reports.append(EventPollingReport(provider.region, supported=False))
                continue
            try:
                reports.append(await self._read(provider))
            except ProviderUnsupportedError:
                reports.append(EventPollingReport(provider.region, supported=False))
            except Exception as error:  # noqa: BLE001 - Raised below, after the other regions.
                log.warning("catch_up_failed", region=provider.region, error=str(error))
                failures.append(error)
        if failures:
            raise failures[0]
        return reports

    async def _read(self, provider: Provider) -> EventPollingReport:
        name = f"catch_up.{provider.name}.{provider.region}"
        text = await self._store.key_values.find(name)
        now = self._clock()
        # An event from the future may have set the bookmark in an older version.
        bookmark = None if text is None else min(now, datetime.fromisoformat(text))
        since = now - FIRST_READ if bookmark is None else bookmark - OVERLAP
        events = await provider.list_events(since=since)
        known = await self._find_seen([event.event_id for event in events])
        fresh = [event for event in events if event.event_id not in known]
        changed = 0
        newest = bookmark
        for event in fresh:
            seen = self._observations.observe(event, source=Source.CATCH_UP)
            newest = seen.at if newest is None else max(newest, seen.at)
            recorded = await self._observations.record(seen)
            changed += recorded.outcome is RecordOutcome.CHANGED
        if fresh:
            now = self._clock()
            await self._store.deliveries.mark_seen([one.event_id for one in fresh], seen_at=now)
        if newest is not None and newest.isoformat() != text:
            await self._store.key_values.put(name, newest.isoformat(), now=now)
        return EventPollingReport(provider.region, read=len(fresh), changed=changed)

    async def _find_seen(self, event_ids: list[str]) -> set[str]:
        known: set[str] = set()
        for start in range(0, len(event_ids), SEEN_BATCH):
            batch = event_ids[start : start + SEEN_BATCH]
            known |= await self._store.deliveries.find_seen(batch)
        return known
