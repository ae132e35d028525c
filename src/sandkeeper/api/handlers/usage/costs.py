"""Routes of costs."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any, Literal

from fastapi import Query, Response

from sandkeeper.api.deps import ContextDep
from sandkeeper.api.responses import reply
from sandkeeper.api.schemas.costs import CostGroup
from sandkeeper.domain.costs.prices import PUBLISHED, PUBLISHED_AS_OF, Price, format_dollars
from sandkeeper.services.costs.reports import CostLine
from sandkeeper.services.costs.simulations import Outcome


async def report(
    context: ContextDep,
    *,
    by: CostGroup = "tenant",
    first: Annotated[date | None, Query(alias="from")] = None,
    last: Annotated[date | None, Query(alias="to")] = None,
    tenant: Annotated[str, Query(max_length=64)] = "",
    template: Annotated[str | None, Query(max_length=200)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Response:
    """Return what sandboxes cost and what sleeping saved, in sums by `by`.

    `from` and `to` are days in UTC, both included; without them it is the current month. By owner
    and sandbox it reaches 35 days back.
    """
    found = await context.services.cost_reports.report(
        by, first=first, last=last, tenant=tenant, template=template, limit=limit
    )
    return reply(
        {
            "by": by,
            "first": found.first.isoformat(),
            "last": found.last.isoformat(),
            "items": [{"key": line.key, **render_line(line)} for line in found.items],
            "total": render_line(found.total),
            "hasMore": found.has_more,
            "countedTo": None if found.counted_to is None else found.counted_to.isoformat(),
            "prices": [_render_price(one) for one in context.services.cost_reports.prices],
        }
    )


async def simulate(
    context: ContextDep,
    *,
    idle: Annotated[str, Query(max_length=200)] = "60,180,300,adaptive",
    days: int = 14,
    by: Literal["", "tenant", "template"] = "",
) -> Response:
    """Return what other idle timeouts would have led to in the last days.

    `idle` has seconds, `adaptive` or `never`, comma-separated. Recorded use is replayed through the
    functions that decide in production.
    """
    words = [part.strip() for part in idle.split(",") if part.strip()]
    found = await context.services.simulations.run(words, days=days, by=by)
    return reply(
        {
            "first": found.first.isoformat(),
            "last": found.last.isoformat(),
            "groups": [
                {
                    "key": group.key,
                    "sandboxes": group.sandboxes,
                    "items": [_render_outcome(one) for one in group.outcomes],
                }
                for group in found.simulations
            ],
            "realRunningS": found.real_running_s,
            "isSample": found.is_sample,
        }
    )


def _render_outcome(one: Outcome) -> dict[str, Any]:
    return {
        "idle": one.option.name,
        "runningS": round(one.replayed.running_s, 3),
        "cost": format_dollars(one.dollars),
        "pauses": one.replayed.pauses,
        "earlyPauses": one.replayed.early,
        "wakes": one.replayed.wakes,
        "waitingS": round(one.waiting_s, 3),
        "best": one.is_best,
        "setting": one.option.command,
    }


def render_line(line: CostLine) -> dict[str, Any]:
    """Return the amounts of one line."""
    cost, usage = line.cost, line.usage
    money = {
        "cost": cost.total,
        "compute": cost.compute,
        "pausedStorage": cost.paused,
        "keptStorage": cost.kept,
        "idle": cost.idle,
        "pools": cost.pool,
        "unusedWarmups": cost.unused,
        "savedNeverPaused": cost.saved_never_paused,
        "savedTimeoutOnly": cost.saved_timeout_only,
    }
    return {name: format_dollars(amount) for name, amount in money.items()} | {
        "runningS": usage.running_ms / 1000,
        "pausedS": usage.paused_ms / 1000,
        "idleS": usage.idle_ms / 1000,
    }


def _render_price(price: Price) -> dict[str, Any]:
    return {
        "provider": price.provider,
        "region": price.region,
        "since": price.since.isoformat(),
        "vcpuSecond": f"{price.vcpu_s:f}",
        "gibSecond": f"{price.gib_s:f}",
        "pausedGibMonth": f"{price.paused_gib_month:f}",
        "keptGibMonth": f"{price.kept_gib_month:f}",
        "publishedAsOf": PUBLISHED_AS_OF.isoformat() if price in PUBLISHED else None,
    }
