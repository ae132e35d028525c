"""What a read of a status causes: it is recorded as passive, an old record is verified in the
background, and nothing wakes.
"""

from __future__ import annotations

from sandkeeper.api.status.cache import CachedStatus, StatusCache
from sandkeeper.domain.activity import ActivityClass
from sandkeeper.domain.events import MismatchReported
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.services.composition import Services
from sandkeeper.services.monitoring.feature_flags import FeatureFlag


class StatusReads:
    """Records reads and page views, and verifies old records that are read."""

    def __init__(self, services: Services, statuses: StatusCache) -> None:
        self._store = services.deps.store
        self._statuses = statuses
        self._activities = services.activities
        self._verification = services.verification
        self._feature_flags = services.feature_flags
        self._health = services.health
        self._metrics = services.deps.metrics

    async def record_read(self, entry: CachedStatus, *, source: str) -> CachedStatus:
        """Record the read and return the entry to show.

        Only with the switch `legacy_verify` it waits for the provider, and the entry is a new one.
        """
        sandbox = entry.sandbox
        self._activities.record(sandbox.id, kind=ActivityClass.PASSIVE, source=source)
        if self._feature_flags.is_on(FeatureFlag.LEGACY_VERIFY):
            return self._statuses.put(await self._verification.verify(sandbox.id))
        self._verification.refresh(sandbox)
        return entry

    def count_page_view(self) -> None:
        self._metrics.page_views.inc()
        self._health.record_page_view()

    async def report_mismatch(self, sandbox: Sandbox, event: MismatchReported) -> None:
        """Record that a page had shown something wrong."""
        self._metrics.mismatches.inc()
        self._health.record_mismatch()
        await self._store.sandboxes.append_events(sandbox, [event], now=event.at)
