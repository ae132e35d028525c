"""Explain why a sandbox is awake or asleep, from its record and its activity not yet written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sandkeeper.domain.events import CaptureFailed, OperationFailed, StateChanged
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import State
from sandkeeper.domain.texts.explain import Explanation, explain
from sandkeeper.services.activity.buffer import ActivityBuffer
from sandkeeper.services.deps import Deps
from sandkeeper.services.monitoring.provider_health import ProviderHealth
from sandkeeper.store import LoggedEvent

LEASES_NAMED_MAX = 10


class Explanations:
    """Answer `explain`. Asking is passive: it wakes nothing and keeps nothing awake."""

    def __init__(
        self,
        deps: Deps,
        activities: ActivityBuffer,
        provider_health: ProviderHealth,
        explain_watch: Callable[[str], str | None],
    ) -> None:
        self._store = deps.store
        self._activities = activities
        self._provider_health = provider_health
        self._explain_watch = explain_watch
        self._clock = deps.clock

    async def explain(self, sandbox_id: str) -> Explanation:
        """Return state, cause, activity, the next act, what prevents it, and what failed last."""
        if self._activities.is_waiting(sandbox_id):
            await self._activities.flush()
        now = self._clock()
        leases = await self._store.leases.list(sandbox_id, now=now, limit=LEASES_NAMED_MAX)
        sandbox = await self._store.sandboxes.get(sandbox_id)
        down_since = self._provider_health.find_down_since(sandbox)
        found = explain(sandbox, leases, now=now, provider_down_since=down_since)
        if sandbox.state is State.RUNNING:
            found = replace(found, files=self._explain_watch(sandbox_id))
        failed = await self._find_failure(sandbox)
        moved = await self._store.events.find_last(sandbox_id, StateChanged.type)
        if failed is None or (moved is not None and moved.seq > failed.seq):
            return found
        return replace(found, last_failure=failed.reason, last_failure_at=failed.at)

    async def _find_failure(self, sandbox: Sandbox) -> LoggedEvent | None:
        """Return the newest failure, of an act or of a capture that none has made good since."""
        failed = await self._store.events.find_last(sandbox.id, OperationFailed.type)
        uncaptured = await self._store.events.find_last(sandbox.id, CaptureFailed.type)
        if uncaptured is None or (failed is not None and failed.seq > uncaptured.seq):
            return failed
        version = await self._store.files.find_latest(sandbox.owner)
        return failed if version is not None and version.seen_at > uncaptured.at else uncaptured
