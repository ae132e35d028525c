"""What the fleet costs, and what tenants may have."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from urllib.parse import quote

from sandkeeper.api.schemas.capacity import (
    CapacityOut,
    PlaceOut,
    QuotaList,
    QuotaOut,
    QuotaRequest,
)
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


class AsyncQuotas:
    """Reads and sets the quotas of tenants."""

    def __init__(self, connection: HttpConnection) -> None:
        self._connection = connection

    async def capacity(self) -> list[PlaceOut]:
        """Return how many sandboxes run in each region, how many may, and how many wait."""
        return (await self._connection.request(CapacityOut, "GET", "/api/capacity")).items

    async def list(self) -> list[QuotaOut]:
        """Return every quota and what is used of it."""
        return (await self._connection.request(QuotaList, "GET", "/api/quotas")).items

    async def set(
        self,
        tenant: str,
        *,
        running: int | None = None,
        kept: int | None = None,
        creations_hour: int | None = None,
        creations_day: int | None = None,
        running_hours_month: int | None = None,
        kept_bytes: int | None = None,
    ) -> QuotaOut:
        """Set what a tenant, or each one without a quota of its own (`*`), may have.

        What is not given is not limited. Without any limit the tenant has no quota.
        """
        body = build_body(
            QuotaRequest,
            tenant=tenant,
            running=running,
            kept=kept,
            creations_hour=creations_hour,
            creations_day=creations_day,
            running_hours_month=running_hours_month,
            kept_bytes=kept_bytes,
        )
        return await self._connection.request(QuotaOut, "PUT", "/api/quotas", body=body)
