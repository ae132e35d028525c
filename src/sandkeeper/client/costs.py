"""What the fleet costs."""

from __future__ import annotations

from datetime import date

from sandkeeper.api.schemas.costs import CostGroup, CostReportOut
from sandkeeper.client.connection import HttpConnection


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
