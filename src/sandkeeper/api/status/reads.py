"""What a look at a sandbox causes: it is counted, an old record is verified behind it, and nothing
wakes.
"""

from __future__ import annotations

from sandkeeper.api.status.cache import CachedStatus, StatusCache
from sandkeeper.domain.activity import ActivityClass
from sandkeeper.domain.events import MismatchReported
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.services.activity.buffer import ActivityBuffer
from sandkeeper.services.lifecycle.verification import Verification
from sandkeeper.services.monitoring.feature_flags import FeatureFlag, FeatureFlags
from sandkeeper.services.monitoring.health import HealthMonitor
from sandkeeper.store import Store
from sandkeeper.telemetry import Metrics


class StatusReads:
    """Counts looks, and refreshes what they find to be old."""

    def __init__(
        self,
        *,
        store: Store,
        statuses: StatusCache,
        activities: ActivityBuffer,
        verification: Verification,
        switches: FeatureFlags,
        health: HealthMonitor,
        metrics: Metrics,
    ) -> None:
        self._store = store
        self._statuses = statuses
        self._activities = activities
        self._verification = verification
        self._switches = switches
        self._health = health
        self._metrics = metrics

    async def on_read(self, entry: CachedStatus, *, source: str) -> CachedStatus:
        """The entry to show. Only the legacy mode waits for the provider here."""
        sandbox = entry.sandbox
        self._activities.record(sandbox.id, kind=ActivityClass.PASSIVE, source=source)
        if self._switches.is_on(FeatureFlag.LEGACY_VERIFY):
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
