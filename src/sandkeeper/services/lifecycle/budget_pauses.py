"""Pause what is idle while its tenant's budget is spent, by the same steps as the idle sweep."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Final

import structlog

from sandkeeper.domain.costs.budgets import SPENT_IDLE_S, decide_budget_pause
from sandkeeper.domain.errors import SandkeeperError
from sandkeeper.domain.sandbox import ClaimKind, Sandbox
from sandkeeper.domain.states import State
from sandkeeper.services.costs.budgets import Budgets
from sandkeeper.services.deps import Deps
from sandkeeper.services.lifecycle.claims import Claims
from sandkeeper.services.lifecycle.lifecycle import Lifecycle

log = structlog.get_logger(__name__)

ROWS_MAX: Final = 200
"""Sandboxes of one run; the next run goes on. Higher lets other tasks wait."""
AT_ONCE: Final = 8
"""Pauses at once. Higher leaves users fewer of the requests to the provider."""


class BudgetPauses:
    """Pauses idle sandboxes of tenants whose budget is spent and says so."""

    def __init__(self, deps: Deps, claims: Claims, lifecycle: Lifecycle, budgets: Budgets) -> None:
        self._store = deps.store
        self._clock = deps.clock
        self._claims = claims
        self._lifecycle = lifecycle
        self._budgets = budgets

    async def run(self) -> int:
        """Pause what is idle, and return how many were paused."""
        tenants = self._budgets.pausing
        if not tenants:
            return 0
        now = self._clock()
        idle_since = now - timedelta(seconds=SPENT_IDLE_S)
        found = await self._store.budgets.list_idle(
            tenants, idle_since=idle_since, now=now, limit=ROWS_MAX
        )
        places = asyncio.Semaphore(AT_ONCE)

        async def pause(sandbox: Sandbox) -> bool:
            async with places:
                return await self._pause(sandbox)

        return sum(await asyncio.gather(*(pause(one) for one in found)))

    async def _pause(self, known: Sandbox) -> bool:
        try:
            async with self._claims.hold(known.id, ClaimKind.PAUSE, wait_s=0) as held:
                if decide_budget_pause(held, now=self._clock()) is None:
                    return False
                checked = await self._lifecycle.check_work(held)
                decision = decide_budget_pause(checked, now=self._clock())
                if decision is None:
                    return False
                paused = await self._lifecycle.pause_idle(checked, decision)
                return paused is not None and paused.state is State.PAUSED
        except SandkeeperError as error:
            log.info("not_paused_for_budget", sandbox_id=known.id, error=str(error))
            return False
