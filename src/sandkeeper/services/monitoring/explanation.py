"""Explain why a sandbox is awake or asleep, from its record and its activity not yet written."""

from __future__ import annotations

from dataclasses import replace

from sandkeeper.domain.events import OperationFailed, StateChanged
from sandkeeper.domain.texts.explain import Explanation, explain
from sandkeeper.services.activity.buffer import ActivityBuffer
from sandkeeper.services.deps import Deps

LEASES_NAMED_MAX = 10


class Explanations:
    """Answer `explain`. Asking is passive: it wakes nothing and keeps nothing awake."""

    def __init__(self, deps: Deps, activities: ActivityBuffer) -> None:
        self._store = deps.store
        self._activities = activities
        self._clock = deps.clock

    async def explain(self, sandbox_id: str) -> Explanation:
        """Return state, cause, activity, the next act, what prevents it, and what failed last."""
        if self._activities.is_waiting(sandbox_id):
            await self._activities.flush()
        now = self._clock()
        leases = await self._store.leases.list(sandbox_id, now=now, limit=LEASES_NAMED_MAX)
        sandbox = await self._store.sandboxes.get(sandbox_id)
        found = explain(sandbox, leases, now=now)
        failed = await self._store.events.find_last(sandbox_id, OperationFailed.type)
        moved = await self._store.events.find_last(sandbox_id, StateChanged.type)
        if failed is None or (moved is not None and moved.seq > failed.seq):
            return found
        return replace(found, last_failure=failed.reason, last_failure_at=failed.at)
