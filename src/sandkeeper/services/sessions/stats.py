"""Session counts, by kind and in total, the same on every replica."""

from __future__ import annotations

from sandkeeper.domain.sessions.session import SessionKind
from sandkeeper.services.deps import Deps

CREATED = "created"
REUSED = "reused"
COUNTED = {
    "total_created": CREATED,
    "total_cleaned": "cleaned",
    "total_reused": REUSED,
    "health_check_failures": "health_check_failures",
}
TOTALS = "totals"


class SessionStats:
    """Counts in the database, which all replicas share, and also for Prometheus."""

    def __init__(self, deps: Deps) -> None:
        self._store = deps.store
        self._metrics = deps.metrics
        self._leased = {
            CREATED: deps.metrics.sessions_created,
            REUSED: deps.metrics.sessions_reused,
        }

    def record_leased(self, kind: SessionKind, name: str) -> None:
        """Record a healthy sandbox as `created` or `reused`; its lease was counted so."""
        self._leased[name].labels(kind.value).inc()

    async def uncount_leased(self, kind: SessionKind, name: str) -> None:
        """Undo a count made with a lease whose sandbox does not work and is replaced."""
        await self._store.sessions.count(kind, name, by=-1)

    async def count_failure(self, kind: SessionKind) -> None:
        """Count a failed health check."""
        self._metrics.sessions_health_failures.labels(kind.value).inc()
        await self._store.sessions.count(kind, "health_check_failures")

    def record_closed(self, kind: SessionKind) -> None:
        """Record a closed session; the store has counted it with the row that it removed."""
        self._metrics.sessions_cleaned.labels(kind.value).inc()

    async def measure(self) -> dict[str, dict[str, int]]:
        """Return all counts at this moment: those of each kind, and the totals."""
        active = await self._store.sessions.count_open()
        counted = await self._store.sessions.read_counts()
        found: dict[str, dict[str, int]] = {}
        for kind in SessionKind:
            self._metrics.sessions_active.labels(kind.value).set(active[kind])
            found[kind.value] = {"active_sessions": active[kind]} | {
                shown: counted.get((kind.value, name), 0) for shown, name in COUNTED.items()
            }
        names = ("active_sessions", *COUNTED)
        totals = {name: sum(one[name] for one in found.values()) for name in names}
        return found | {TOTALS: totals}
