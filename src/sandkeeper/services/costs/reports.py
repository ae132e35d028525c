"""What usage costs: the sums of days, priced when they are read.

So a price that is corrected in the settings holds for the past from its day on, too.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from fractions import Fraction
from typing import Final

from sandkeeper.domain.costs.metering import UsageAmounts
from sandkeeper.domain.costs.prices import (
    PUBLISHED,
    Cost,
    Price,
    compute_cost,
    find_price,
    split_by_price,
)
from sandkeeper.domain.errors import InvalidRequestError
from sandkeeper.domain.owner import OwnerKind
from sandkeeper.services.deps import Deps
from sandkeeper.services.monitoring.retention import DETAILS_KEPT
from sandkeeper.store.costs.usage import GroupName, UsageFilter

DAYS_MAX: Final = 1100
"""Days of one report. More hold a connection for longer than a page is worth."""
DETAILED: Final = ("owner", "sandbox")
"""What is kept for some weeks only, and may be as many as the fleet."""


@dataclass(frozen=True, slots=True)
class CostLine:
    """What one tenant, template, owner, sandbox or day used, and what it costs."""

    key: str
    cost: Cost = field(default_factory=Cost)
    usage: UsageAmounts = field(default_factory=UsageAmounts)


@dataclass(frozen=True, slots=True)
class CostReport:
    """The lines, the dearest first (days in order), and the sum of all, also of omitted ones.

    Everything that ran is counted up to ``counted_to``; None while nothing runs.
    """

    group: GroupName
    first: date
    last: date
    items: list[CostLine]
    total: CostLine
    has_more: bool
    counted_to: datetime | None


class CostReports:
    """Sum and price usage."""

    def __init__(self, deps: Deps) -> None:
        self._store = deps.store
        self._clock = deps.clock
        self._metrics = deps.metrics
        self.prices: tuple[Price, ...] = (
            *PUBLISHED,
            *(one.to_price() for one in deps.settings.prices),
        )

    async def report(
        self,
        group: GroupName,
        *,
        first: date | None = None,
        last: date | None = None,
        tenant: str = "",
        template: str | None = None,
        limit: int = 100,
    ) -> CostReport:
        """Return the costs of some days (UTC), both included; by default of the current month."""
        today = self._clock().astimezone(UTC).date()
        last = last or max(today, first or today)
        chosen = UsageFilter(first or last.replace(day=1), last, tenant, template)
        self._check(group, chosen, today)
        keys: list[str] | None = None
        has_more = False
        if group in DETAILED:
            keys = await self._store.costs.list_longest(group, chosen, limit=limit + 1)
            has_more, keys = len(keys) > limit, keys[:limit]
        lines = await self._sum(group, chosen, keys)
        every = lines if keys is None else await self._sum("tenant", chosen)
        if group == "day":
            items, limit = sorted(lines, key=lambda line: line.key), DAYS_MAX
        else:
            items = sorted(lines, key=_order)
        return CostReport(
            group=group,
            first=chosen.first,
            last=chosen.last,
            items=items[:limit],
            total=sum_lines(every),
            has_more=has_more or len(items) > limit,
            counted_to=await self._store.costs.find_oldest_count(),
        )

    async def sum_by_tenant(self, month: date) -> dict[str, Fraction]:
        """Return what each tenant's sandboxes cost since the first day of a month."""
        chosen = UsageFilter(month, month + timedelta(days=31))
        return {line.key: line.cost.total for line in await self._sum("tenant", chosen)}

    async def measure(self) -> None:
        """Set the gauges to the costs of the current month."""
        total = (await self.report("tenant")).total.cost
        for part, amount in list_parts(total).items():
            self._metrics.cost_dollars.labels(part).set(float(amount))
        for against, amount in list_savings(total).items():
            self._metrics.cost_saved_dollars.labels(against).set(float(amount))

    def _check(self, group: GroupName, chosen: UsageFilter, today: date) -> None:
        if chosen.last < chosen.first:
            raise InvalidRequestError("The last day is before the first one: exchange them.")
        if (chosen.last - chosen.first).days >= DAYS_MAX:
            raise InvalidRequestError(f"A report has at most {DAYS_MAX} days: ask for fewer.")
        kept_from = today - DETAILS_KEPT
        if group in DETAILED and chosen.first < kept_from:
            raise InvalidRequestError(
                f"Costs of each {group} are kept for {DETAILS_KEPT.days} days: ask from "
                f"{kept_from} on, or by tenant, template or day."
            )

    async def _sum(
        self, group: GroupName, chosen: UsageFilter, only: Collection[str] | None = None
    ) -> list[CostLine]:
        lines: dict[str, CostLine] = {}
        for first, last in split_by_price(self.prices, chosen.first, chosen.last):
            span = replace(chosen, first=first, last=last)
            for one in await self._store.costs.sum_usage(group, span, only=only):
                price = find_price(self.prices, provider=one.provider, region=one.region, day=first)
                cost = compute_cost(
                    one.usage,
                    price,
                    vcpus=one.vcpus,
                    memory_mb=one.memory_mb,
                    is_pool=one.owner_kind is OwnerKind.POOL,
                )
                known = lines.get(one.group) or CostLine(one.group)
                lines[one.group] = CostLine(one.group, known.cost + cost, known.usage + one.usage)
        return list(lines.values())


def sum_lines(lines: Collection[CostLine]) -> CostLine:
    """Return the sum of lines."""
    cost = sum((line.cost for line in lines), Cost())
    return CostLine("", cost, sum((line.usage for line in lines), UsageAmounts()))


def list_parts(cost: Cost) -> dict[str, Fraction]:
    """Return what is paid and the parts of it, by name."""
    return {
        "total": cost.total,
        "compute": cost.compute,
        "paused": cost.paused,
        "kept": cost.kept,
        "idle": cost.idle,
        "pools": cost.pool,
        "unused_warmups": cost.unused,
    }


def list_savings(cost: Cost) -> dict[str, Fraction]:
    """Return what would have been paid in addition, by what it is compared with."""
    return {
        "never_paused": cost.saved_never_paused,
        "timeout_only": cost.saved_timeout_only,
    }


def _order(line: CostLine) -> tuple[Fraction, int, str]:
    return -line.cost.total, -line.usage.running_ms, line.key
