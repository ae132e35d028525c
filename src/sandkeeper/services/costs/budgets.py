"""Budgets: read how they stand, give each notice once, and refuse new sandboxes where one is spent.

Every replica reads them each minute, from the same sums. So a budget that is raised, or a month
that begins, takes effect within a minute.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import structlog

from sandkeeper.domain.costs.budgets import (
    FLEET,
    Budget,
    BudgetAction,
    BudgetReading,
    decide_budget,
    find_month,
)
from sandkeeper.domain.costs.prices import format_dollars
from sandkeeper.domain.errors import BudgetNotFoundError, BudgetSpentError, InvalidRequestError
from sandkeeper.domain.tenant import parse_tenant
from sandkeeper.services.costs.reports import CostReports
from sandkeeper.services.deps import Deps
from sandkeeper.store.costs.budgets import NANOS, BudgetNotice

log = structlog.get_logger(__name__)

BUDGETS_MAX: Final = 1000
"""Budgets at most. More make every replica read more each minute."""


@dataclass(frozen=True, slots=True)
class StandingBudget:
    """A budget, how it stands, and the notices that were given this month."""

    reading: BudgetReading
    notices: Sequence[BudgetNotice]


class Budgets:
    """The budgets, as this process last read them."""

    def __init__(self, deps: Deps, reports: CostReports) -> None:
        self._store = deps.store
        self._clock = deps.clock
        self._metrics = deps.metrics
        self._reports = reports
        self._spent: Mapping[str, BudgetAction] = {}

    async def list_all(self) -> list[StandingBudget]:
        """Return how every budget stands."""
        budgets = await self._store.budgets.list_all()
        if not budgets:
            return []
        now = self._clock()
        month, _ = find_month(now)
        spent = await self._reports.sum_by_tenant(month)
        whole = sum(spent.values(), Fraction(0))
        notices = await self._store.budgets.list_notices(month)
        standing = []
        for budget in budgets:
            given = notices.get(budget.tenant, [])
            amount = whole if budget.tenant == FLEET else spent.get(budget.tenant, Fraction(0))
            noted = {one.share for one in given}
            reading = decide_budget(budget, spent=amount, noted=noted, now=now)
            standing.append(StandingBudget(reading, given))
        return standing

    async def check(self) -> None:
        """Give the notices that are due, and remember which budgets are spent."""
        standing = await self.list_all()
        for one in standing:
            for share in one.reading.due:
                await self._notify(one.reading, share)
        self._spent = {
            one.reading.budget.tenant: one.reading.budget.action
            for one in standing
            if one.reading.is_spent
        }
        self._metrics.budgets_spent.set(len(self._spent))

    async def set(self, budget: Budget) -> None:
        """Set a tenant's budget, or the fleet's."""
        if budget.tenant != FLEET:
            parse_tenant(budget.tenant)
        known = await self._store.budgets.list_all()
        if len(known) >= BUDGETS_MAX and budget.tenant not in {one.tenant for one in known}:
            raise InvalidRequestError(f"There are {BUDGETS_MAX} budgets: remove one first.")
        await self._store.budgets.put(budget, now=self._clock())
        await self.check()

    async def remove(self, tenant: str) -> None:
        """Remove a tenant's budget, or the fleet's."""
        if not await self._store.budgets.remove(tenant):
            raise BudgetNotFoundError(tenant=tenant)
        await self.check()

    def check_new(self, tenant: str) -> None:
        """Refuse a new sandbox of a tenant whose budget, or the fleet's, is spent and says so."""
        for name in (tenant, FLEET):
            if self._spent.get(name, BudgetAction.NOTIFY) is not BudgetAction.NOTIFY:
                whose = "of the fleet" if name == FLEET else f"of the tenant {name!r}"
                raise BudgetSpentError(f"The budget {whose} for this month is spent.", tenant=name)

    @property
    def pausing(self) -> list[str]:
        """Return the tenants whose idle sandboxes are to be paused."""
        return [name for name, action in self._spent.items() if action is BudgetAction.PAUSE]

    async def _notify(self, reading: BudgetReading, share: int) -> None:
        notice = BudgetNotice(
            tenant=reading.budget.tenant,
            month=reading.month,
            share=share,
            at=self._clock(),
            spent_nanos=int(reading.spent * NANOS),
            budget_nanos=int(reading.budget.dollars * NANOS),
        )
        if await self._store.budgets.note(notice):
            self._metrics.budget_notices.labels(str(share)).inc()
            log.warning(
                "budget_reached",
                tenant=notice.tenant,
                share=share,
                spent=format_dollars(reading.spent),
                budget=f"{reading.budget.dollars:f}",
                action=reading.budget.action.value,
            )
