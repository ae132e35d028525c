"""What the fleet costs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from urllib.parse import quote

from sandkeeper.api.schemas.costs import (
    BudgetActionName,
    BudgetList,
    BudgetOut,
    BudgetRequest,
    CostGroup,
    CostReportOut,
    SimulationOut,
)
from sandkeeper.client.connection import HttpConnection, build_body


class AsyncCosts:
    """Reports what the fleet costs."""

    def __init__(self, connection: HttpConnection) -> None:
        self._connection = connection

    async def report(
        self,
        by: CostGroup = "tenant",
        *,
        first: date | None = None,
        last: date | None = None,
        tenant: str = "",
        template: str | None = None,
        limit: int = 100,
    ) -> CostReportOut:
        """Return the costs of some days (UTC), both included; by default of the current month."""
        query = {
            "by": by,
            "from": None if first is None else first.isoformat(),
            "to": None if last is None else last.isoformat(),
            "tenant": tenant,
            "template": template,
            "limit": limit,
        }
        return await self._connection.request(CostReportOut, "GET", "/api/costs", query=query)

    async def budgets(self) -> list[BudgetOut]:
        """Return every budget and how it stands."""
        return (await self._connection.request(BudgetList, "GET", "/api/budgets")).items

    async def set_budget(
        self, tenant: str, dollars: Decimal, *, action: BudgetActionName = "notify"
    ) -> BudgetOut:
        """Set what a tenant, or the fleet (`*`), may cost in a calendar month."""
        body = build_body(BudgetRequest, tenant=tenant, dollars=dollars, action=action)
        return await self._connection.request(BudgetOut, "PUT", "/api/budgets", body=body)

    async def remove_budget(self, tenant: str) -> None:
        """Remove a budget."""
        await self._connection.send("DELETE", f"/api/budgets/{quote(tenant, safe='')}")

    async def simulate(
        self,
        idle: Sequence[str] = ("60", "180", "300", "adaptive"),
        *,
        days: int = 14,
        by: str = "",
    ) -> SimulationOut:
        """Return what other idle timeouts would have led to in the last days."""
        query = {"idle": ",".join(idle), "days": days, "by": by}
        path = "/api/costs/simulation"
        return await self._connection.request(SimulationOut, "GET", path, query=query)
