"""Why a sandbox is awake or asleep: the record and what is not yet written of it, told in full."""

from __future__ import annotations

from sandkeeper.domain.explain import Explanation, explain
from sandkeeper.services.activity.buffer import ActivityBuffer
from sandkeeper.services.deps import Deps


class Explanations:
    """Answers `explain`. Asking is looking: nothing is woken or kept awake by it."""

    def __init__(self, deps: Deps, activities: ActivityBuffer) -> None:
        self._store = deps.store
        self._activities = activities
        self._clock = deps.clock

    async def explain(self, sandbox_id: str) -> Explanation:
        """State, cause, activity, what was ignored, what acts next and what would prevent it."""
        if self._activities.is_waiting(sandbox_id):
            await self._activities.flush()
        return explain(await self._store.sandboxes.get(sandbox_id), now=self._clock())
