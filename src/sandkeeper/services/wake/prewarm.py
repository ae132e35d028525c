"""Warm-ups: started within the budget, marked in the record, and finished by what is true later.

The budget is spent first, then the record is marked, then the wake starts. A crash between these
leaves an open warm-up whose sandbox still sleeps. The next pass finishes it as failed and the
budget is free again. A caller that wakes the sandbox during a warm-up joins the same wake and owns
it from then on.
"""

from __future__ import annotations

import secrets
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

import structlog

from sandkeeper.domain.clock import to_ms
from sandkeeper.domain.decisions.prewarm import (
    PREWARM_ACTOR,
    Prewarm,
    PrewarmBudget,
    PrewarmOutcome,
    find_excess,
    find_outcome,
    find_refusal,
)
from sandkeeper.domain.errors import VersionConflictError
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import State
from sandkeeper.services.deps import Deps
from sandkeeper.services.wake.wakes import Wakes

log = structlog.get_logger(__name__)

RACES_MAX = 10
# Open warm-ups that one pass finishes. There are never more than the budget allows at once.
SETTLED_MAX = 500


class PrewarmAnswer(StrEnum):
    """The result of a warm-up request. None is an error: a page asks in passing."""

    STARTED = "started"
    UNDER_WAY = "under_way"
    AWAKE = "awake"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class PrewarmResult:
    """The answer and, if nothing was started, the reason."""

    answer: PrewarmAnswer
    reason: str


class PrewarmService:
    """Start warm-ups and find out how they ended."""

    def __init__(self, deps: Deps, wakes: Wakes) -> None:
        self._store = deps.store
        self._wakes = wakes
        self._providers = deps.providers
        self._budget = PrewarmBudget(
            at_once=deps.settings.warm_ups_at_once,
            per_hour=deps.settings.warm_ups_per_hour,
            per_owner_hour=deps.settings.warm_ups_per_owner_hour,
        )
        self._metrics = deps.metrics
        self._clock = deps.clock

    async def start(self, sandbox: Sandbox, *, actor: str) -> PrewarmResult:
        """Resume a sleeping sandbox ahead of its user, if the budget allows; never wait for it."""
        now = to_ms(self._clock())
        if sandbox.is_waking(now):
            return PrewarmResult(PrewarmAnswer.UNDER_WAY, "it is being woken")
        if sandbox.state is State.RUNNING:
            return PrewarmResult(PrewarmAnswer.AWAKE, "it runs already")
        refusal = find_refusal(sandbox)
        if refusal is None and self._providers.is_unavailable(sandbox):
            refusal = "its provider failed too often and is left alone for a while"
        if refusal is not None:
            return self._refuse(sandbox, refusal)
        warm_up = Prewarm(f"wu-{secrets.token_hex(8)}", sandbox.id, actor, now)
        spent = await self._store.prewarms.begin(
            warm_up, lambda spent: not spent.is_open and find_excess(spent, self._budget) is None
        )
        if spent.is_open:
            return PrewarmResult(PrewarmAnswer.UNDER_WAY, "it is being warmed up")
        excess = find_excess(spent, self._budget)
        if excess is not None:
            return self._refuse(sandbox, excess)
        await self._mark(sandbox, now)
        await self._wakes.start(sandbox.id, actor=PREWARM_ACTOR, may_recreate=False)
        log.info("warm_up_started", sandbox_id=sandbox.id, actor=actor)
        return PrewarmResult(PrewarmAnswer.STARTED, "it is being warmed up")

    async def finish_due(self) -> dict[str, int]:
        """Find out how the open warm-ups ended, and count the outcomes."""
        now = to_ms(self._clock())
        counts: Counter[str] = Counter()
        for warm_up in await self._store.prewarms.list_open(limit=SETTLED_MAX):
            sandbox = await self._store.sandboxes.find(warm_up.sandbox_id)
            is_waking = await self._store.wakes.find_open(warm_up.sandbox_id) is not None
            outcome = find_outcome(warm_up, sandbox, is_waking=is_waking, now=now)
            if outcome is not None and await self._store.prewarms.finish(warm_up, outcome, now=now):
                self._metrics.warmups.labels(outcome.value).inc()
                counts[outcome.value] += 1
        return {outcome.value: counts[outcome.value] for outcome in PrewarmOutcome}

    async def _mark(self, sandbox: Sandbox, now: datetime) -> Sandbox:
        """Write when it was warmed up, so that its run gets only the grace time of a warm-up."""
        for _ in range(RACES_MAX):
            if sandbox.state is not State.PAUSED:
                return sandbox
            try:
                return await self._store.sandboxes.save(
                    sandbox.evolve(warmed_at=now), expect_version=sandbox.version, now=now
                )
            except VersionConflictError:
                sandbox = await self._store.sandboxes.get(sandbox.id)
        raise VersionConflictError(sandbox_id=sandbox.id)

    def _refuse(self, sandbox: Sandbox, reason: str) -> PrewarmResult:
        self._metrics.warmups.labels("refused").inc()
        log.info("warm_up_refused", sandbox_id=sandbox.id, reason=reason)
        return PrewarmResult(PrewarmAnswer.REFUSED, reason)
