"""Explain why a sandbox is awake or asleep, from its record and its activity not yet written."""

from __future__ import annotations

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
        """Return state, cause, activity, what was ignored, the next act and what prevents it."""
        if self._activities.is_waiting(sandbox_id):
            await self._activities.flush()
        now = self._clock()
        leases = await self._store.leases.list(sandbox_id, now=now, limit=LEASES_NAMED_MAX)
        return explain(await self._store.sandboxes.get(sandbox_id), leases, now=now)
