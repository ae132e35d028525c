"""Routes of budgets."""

from __future__ import annotations

from typing import Any

from fastapi import Response

from sandkeeper.api.deps import ContextDep
from sandkeeper.api.responses import reply
from sandkeeper.api.schemas.costs import BudgetRequest
from sandkeeper.domain.costs.budgets import Budget, BudgetAction
from sandkeeper.domain.costs.prices import format_dollars
from sandkeeper.services.costs.budgets import StandingBudget
from sandkeeper.store.costs.budgets import NANOS


async def list_budgets(context: ContextDep) -> Response:
    """Return every budget, how it stands, and the notices of this month."""
    found = await context.services.budgets.list_all()
    return reply({"items": [_render(one) for one in found]})


async def set_budget(body: BudgetRequest, context: ContextDep) -> Response:
    """Set what a tenant, or the fleet (`*`), may cost in a month, and what happens at 100 %."""
    wanted = Budget(body.tenant, body.dollars, BudgetAction(body.action))
    await context.services.budgets.set(wanted)
    standing = await context.services.budgets.list_all()
    return reply(_render(next(one for one in standing if one.reading.budget.tenant == body.tenant)))


async def remove_budget(tenant: str, context: ContextDep) -> Response:
    """Remove a budget."""
    await context.services.budgets.remove(tenant)
    return Response(status_code=204)


def _render(one: StandingBudget) -> dict[str, Any]:
    reading, limit = one.reading, one.reading.budget.dollars
    return {
        "tenant": reading.budget.tenant,
        "dollars": f"{limit:.9f}",
        "action": reading.budget.action.value,
        "month": reading.month.isoformat(),
        "spent": format_dollars(reading.spent),
        "share": float(reading.spent) / float(limit) if limit else None,
        "forecast": None if reading.forecast is None else format_dollars(reading.forecast),
        "spentOn": None if reading.spent_on is None else reading.spent_on.isoformat(),
        "notices": [
            {
                "share": notice.share,
                "at": notice.at.isoformat(),
                "spent": f"{notice.spent_nanos / NANOS:.9f}",
                "budget": f"{notice.budget_nanos / NANOS:.9f}",
            }
            for notice in one.notices
        ],
    }
