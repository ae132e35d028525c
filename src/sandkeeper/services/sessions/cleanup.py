"""Close sessions, either on request or because they were idle for too long.

The session's row is deleted first, on condition that the session was not used since it was read. A
caller that acquires at the same moment either saves the session or gets a new one. Then the sandbox
is ended, unless another conversation shares it. If a crash or an absent provider leaves something
behind, the next clean-up ends it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from sandkeeper.domain.clock import to_ms
from sandkeeper.domain.decisions.idle import find_idle_due_at
from sandkeeper.domain.errors import SandkeeperError
from sandkeeper.domain.observe.observation import ObservedStatus
from sandkeeper.domain.policy import IdleAction
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.sessions.session import Session
from sandkeeper.domain.states import State
from sandkeeper.services.deps import Deps
from sandkeeper.services.lifecycle.lifecycle import Lifecycle
from sandkeeper.services.sessions.stats import SessionStats
from sandkeeper.services.sessions.usage_history import UsageHistories

log = structlog.get_logger(__name__)

ACTOR = "session-cleanup"
PAGE = 200

# What a closed session left is ended after this time. Until then, its closer is about to end it.
ORPHAN_S = 30.0


@dataclass(frozen=True, slots=True)
class CleanupReport:
    """Counts of what one clean-up did."""

    checked: int
    closed: int
    kept: int


class SessionCleaner:
    """Close sessions, and save what they have learned."""

    def __init__(
        self,
        deps: Deps,
        lifecycle: Lifecycle,
        counts: SessionStats,
        usage_histories: UsageHistories,
    ) -> None:
        self._store = deps.store
        self._lifecycle = lifecycle
        self._counts = counts
        self._usage_histories = usage_histories
        self._clock = deps.clock

    async def close(
        self,
        session: Session,
        *,
        actor: str,
        reason: str = "the session was closed",
        idle_before: datetime | None = None,
    ) -> bool:
        """End the session and its sandbox; return False if it was closed elsewhere or is in use.

        The session is over even if the provider cannot be reached. The next clean-up that reaches
        the provider then ends the sandbox.
        """
        began_at = to_ms(self._clock())
        if not await self._store.sessions.close(session, idle_before=idle_before):
            return False
        self._counts.record_closed(session.kind)
        log.info("session_closed", session_id=session.id, reason=reason, actor=actor)
        if await self._store.sessions.count_home(session.home):
            return True
        sandbox = await self._store.sandboxes.find_by_owner(session.owner)
        if sandbox is None:
            return True
        await self._usage_histories.save(session, sandbox)
        if sandbox.state.is_ended:
            return True
        await self._end(sandbox, actor=actor, reason=reason, began_at=began_at)
        return True

    async def _end(self, sandbox: Sandbox, *, actor: str, reason: str, began_at: datetime) -> None:
        try:
            await self._lifecycle.kill(
                sandbox.id,
                actor=actor,
                reason=reason,
                seen=ObservedStatus.TERMINATED,
                # Another conversation may share it since they were counted.
                unless=lambda held: held.active_at >= began_at,
            )
        except SandkeeperError as error:
            log.warning("session_sandbox_not_ended", sandbox_id=sandbox.id, code=error.code)

    async def clean_up(self) -> CleanupReport:
        """Run one pass: close exactly the sessions that are idle, and delete expired leases."""
        now = to_ms(self._clock())
        await self._store.leases.prune(now=now)
        checked = closed = 0
        after: tuple[datetime, str] | None = None
        while True:
            page = await self._store.sessions.list_idle(now=now, after=after, limit=PAGE)
            for session in page:
                checked += 1
                if await self._close_if_idle(session, now):
                    closed += 1
            if len(page) < PAGE:
                await self._end_orphans(now)
                await self._counts.measure()
                return CleanupReport(checked, closed, kept=checked - closed)
            after = (page[-1].idle_at, page[-1].id)

    async def _end_orphans(self, now: datetime) -> None:
        """End what a closed session left because its provider was away or this process died."""
        before = now - timedelta(seconds=ORPHAN_S)
        for sandbox in await self._store.sessions.list_orphans(before=before, limit=PAGE):
            await self._end(sandbox, actor=ACTOR, reason="its session is closed", began_at=now)

    async def _close_if_idle(self, session: Session, now: datetime) -> bool:
        sandbox = await self._store.sandboxes.find_by_owner(session.owner)
        is_live = sandbox is not None and not sandbox.state.is_ended
        if sandbox is not None and is_live and await self._is_needed(session, sandbox, now):
            return False
        reason = f"idle for more than {session.idle_timeout_s:.0f} s"
        return await self.close(session, actor=ACTOR, reason=reason, idle_before=now)

    async def _is_needed(self, session: Session, sandbox: Sandbox, now: datetime) -> bool:
        """Return True while the sandbox is used otherwise, sleeps by policy, or is in doubt."""
        if sandbox.policy.on_idle is IdleAction.PAUSE or sandbox.state is not State.RUNNING:
            return True
        due_at = find_idle_due_at(sandbox)
        if session.is_shared or due_at is None or due_at <= now:
            return False
        await self._store.sessions.postpone(session.id, idle_at=due_at)
        return True
