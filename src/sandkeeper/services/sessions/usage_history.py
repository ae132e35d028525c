"""Usage history: what a user's sessions have learned outlives them.

A session that ends when idle takes its sandbox with it, and would never see the gap that ended it.
So its gaps are saved when it closes, and loaded into the same user's next session together with the
gap from then to now.
"""

from __future__ import annotations

from sandkeeper.domain.decisions.adaptive_timeout import UsageHistory, add_gap
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.sessions.session import Session
from sandkeeper.services.deps import Deps


class UsageHistories:
    """Save and load gaps, where a policy learns from them."""

    def __init__(self, deps: Deps) -> None:
        self._store = deps.store
        self._clock = deps.clock

    async def save(self, session: Session, sandbox: Sandbox) -> None:
        """Save what the sandbox of a closing session has learned."""
        if sandbox.policy.is_adaptive and sandbox.activity.last_active_at is not None:
            history = UsageHistory(
                _find_key(session), sandbox.activity.gaps, sandbox.activity.last_active_at
            )
            await self._store.usage_history.save(history)

    async def load(self, session: Session, sandbox: Sandbox) -> Sandbox:
        """Return the new sandbox with what the user's earlier sessions have learned."""
        if not sandbox.policy.is_adaptive:
            return sandbox
        history = await self._store.usage_history.find(_find_key(session))
        if history is None:
            return sandbox
        gap_s = (self._clock() - history.last_active_at).total_seconds()
        gaps = add_gap(history.gaps, gap_s)
        await self._store.usage_history.load(sandbox.id, gaps)
        return sandbox.evolve(gaps=gaps)


def _find_key(session: Session) -> str:
    return f"{session.kind.value}:{session.user_id}"
