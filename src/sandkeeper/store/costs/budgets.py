"""Budgets, and the notices that were given: each once for a tenant, a month and a share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Final

from sqlalchemy import delete, or_, select

from sandkeeper.domain.costs.budgets import FLEET, Budget, BudgetAction
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import State
from sandkeeper.store.database import Database
from sandkeeper.store.sandboxes.mapping import from_rows
from sandkeeper.store.tables.costs import BUDGET_NOTICES, BUDGETS
from sandkeeper.store.tables.sandboxes import SANDBOXES

NANOS: Final = 10**9


@dataclass(frozen=True, slots=True)
class BudgetNotice:
    """A share of a budget, in percent, was reached. Amounts are in billionths of a dollar."""

    tenant: str
    month: date
    share: int
    at: datetime
    spent_nanos: int
    budget_nanos: int


class BudgetStore:
    """Reads and writes of budgets and their notices."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list_all(self) -> list[Budget]:
        """Return all budgets, the fleet's first."""
        async with self._database.reading() as connection:
            rows = (await connection.execute(select(BUDGETS).order_by(BUDGETS.c.tenant))).all()
        return [
            Budget(row.tenant, Decimal(row.nanos) / NANOS, BudgetAction(row.action)) for row in rows
        ]

    async def put(self, budget: Budget, *, now: datetime) -> None:
        """Set a tenant's budget."""
        statement = self._database.insert_replacing(
            BUDGETS, ["tenant"], ["nanos", "action", "updated_at"]
        )
        row = {
            "tenant": budget.tenant,
            "nanos": int(budget.dollars * NANOS),
            "action": budget.action.value,
            "updated_at": now,
        }
        async with self._database.writing() as connection:
            await connection.execute(statement, row)

    async def remove(self, tenant: str) -> bool:
        """Remove a tenant's budget; return False if there was none."""
        async with self._database.writing() as connection:
            gone = await connection.execute(delete(BUDGETS).where(BUDGETS.c.tenant == tenant))
        return gone.rowcount > 0

    async def note(self, notice: BudgetNotice) -> bool:
        """Write a notice; return False if it was given before, by whichever replica."""
        row = {
            "tenant": notice.tenant,
            "month": notice.month.isoformat(),
            "share": notice.share,
            "at": notice.at,
            "spent_nanos": notice.spent_nanos,
            "budget_nanos": notice.budget_nanos,
        }
        statement = self._database.insert_ignoring(BUDGET_NOTICES, ["tenant", "month", "share"])
        async with self._database.writing() as connection:
            return (await connection.execute(statement, row)).rowcount > 0

    async def list_notices(self, month: date) -> dict[str, list[BudgetNotice]]:
        """Return a month's notices by tenant, the lowest share first."""
        statement = (
            select(BUDGET_NOTICES)
            .where(BUDGET_NOTICES.c.month == month.isoformat())
            .order_by(BUDGET_NOTICES.c.tenant, BUDGET_NOTICES.c.share)
        )
        async with self._database.reading() as connection:
            rows = (await connection.execute(statement)).all()
        found: dict[str, list[BudgetNotice]] = defaultdict(list)
        for row in rows:
            found[row.tenant].append(
                BudgetNotice(
                    tenant=row.tenant,
                    month=date.fromisoformat(row.month),
                    share=row.share,
                    at=row.at,
                    spent_nanos=row.spent_nanos,
                    budget_nanos=row.budget_nanos,
                )
            )
        return dict(found)

    async def list_idle(
        self, tenants: Sequence[str], *, idle_since: datetime, now: datetime, limit: int
    ) -> list[Sandbox]:
        """Return running sandboxes of tenants without use and lease, the longest idle first."""
        names = SANDBOXES.c
        statement = select(SANDBOXES).where(
            names.state == State.RUNNING.value,
            names.run_started_at < idle_since,
            or_(names.last_active_at.is_(None), names.last_active_at < idle_since),
            or_(names.leased_until.is_(None), names.leased_until < now),
        )
        if FLEET not in tenants:
            statement = statement.where(self._database.in_list(names.tenant, tenants))
        statement = statement.order_by(names.last_active_at, names.id).limit(limit)
        async with self._database.reading() as connection:
            rows = (await connection.execute(statement)).mappings().all()
        return await from_rows(rows, self._database.keyring)
