"""What a look at a sandbox causes: it is counted, an old record is verified behind it, and nothing
wakes.
"""

from __future__ import annotations

from sandkeeper.api.status.cache import CachedStatus, StatusCache
from sandkeeper.domain.activity import ActivityClass
from sandkeeper.domain.events import MismatchReported
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.services.composition import Services
from sandkeeper.services.monitoring.feature_flags import FeatureFlag


class StatusReads:
    """Counts looks, and refreshes what they find to be old."""

    def __init__(self, services: Services, statuses: StatusCache) -> None:
        self._store = services.deps.store
        self._statuses = statuses
        self._activities = services.activities
        self._verification = services.verification
        self._feature_flags = services.feature_flags
        self._health = services.health
        self._metrics = services.deps.metrics

    async def on_read(self, entry: CachedStatus, *, source: str) -> CachedStatus:
        """The entry to show. Only the legacy mode waits for the provider here."""
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
        """Write down that a page had shown something wrong."""
        self._metrics.mismatches.inc()
        self._health.record_mismatch()
        await self._store.sandboxes.append_events(sandbox, [event], now=event.at)
