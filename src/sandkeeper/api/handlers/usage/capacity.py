"""Routes of the capacity and of quotas."""

from __future__ import annotations

from typing import Any

from fastapi import Response

from sandkeeper.api.deps import ContextDep
from sandkeeper.api.responses import reply
from sandkeeper.api.schemas.capacity import QuotaRequest
from sandkeeper.domain.decisions.quotas import QUOTA_NAMES, QuotaLimits
from sandkeeper.services.capacity.quotas import QuotaStatus
from sandkeeper.services.capacity.slots import PlaceReport

_KEYS = {
    "running": "running",
    "kept": "kept",
    "creations_hour": "creationsHour",
    "creations_day": "creationsDay",
    "running_hours_month": "runningHoursMonth",
    "kept_bytes": "keptBytes",
}


async def show(context: ContextDep) -> Response:
    """Return how many sandboxes run in each region, how many may, and how many wait."""
    found = await context.services.slots.report()
    return reply({"items": [_render_place(one) for one in found]})


async def list_quotas(context: ContextDep) -> Response:
    """Return every quota and what is used of it."""
    found = await context.services.quotas.list()
    return reply({"items": [_render_quota(one) for one in found]})


async def set_quota(body: QuotaRequest, context: ContextDep) -> Response:
    """Set what a tenant, or each one without a quota (`*`), may have; without limits, nothing."""
    limits = QuotaLimits(**{name: getattr(body, name) for name in QUOTA_NAMES})
    return reply(_render_quota(await context.services.quotas.set(body.tenant, limits)))


def _render_place(report: PlaceReport) -> dict[str, Any]:
    status, limits, usage = report.status, report.limits, report.usage
    return {
        "provider": status.place.provider,
        "region": status.place.region,
        "limit": limits.lowered_to(status.learned_limit).total,
        "learnedLimit": status.learned_limit,
        "taken": usage.total,
        "unrecorded": status.unrecorded,
        "waiting": report.waiting,
        "templates": dict(usage.by_template),
        "templateLimits": dict(limits.by_template),
    }


def _render_quota(status: QuotaStatus) -> dict[str, Any]:
    parts = {
        _KEYS[name]: {
            "limit": getattr(status.limits, name),
            "used": None if status.usage is None else getattr(status.usage, name),
        }
        for name in QUOTA_NAMES
    }
    return {"tenant": status.tenant, **parts}
