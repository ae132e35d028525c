"""Routes for those who run it: liveness, readiness, metrics, switches, tasks, registrations."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated, Any

from fastapi import Path, Request, Response

from sandkeeper.api.deps import CallerDep, ContextDep, may_monitor
from sandkeeper.api.responses import reply
from sandkeeper.api.schemas.admin import SwitchesRequest
from sandkeeper.background.scheduler import TaskStatus, UnknownTaskError
from sandkeeper.domain.errors import TaskNotFoundError
from sandkeeper.telemetry import CONTENT_TYPE


async def healthz() -> Response:
    """Return 200 while the process answers."""
    return reply({"status": "ok"})


async def readyz(request: Request, context: ContextDep) -> Response:
    """Return whether this process can do its work; details need the access `monitor`."""
    reasons: list[str] = []
    problem = await context.services.database_probe.find_problem()
    database = "ok" if problem is None else "unavailable"
    if problem is not None:
        reasons.append(problem)
    resting = context.fleet_metrics.find_open_breakers()
    down = context.services.provider_health.list_down()
    reasons += [
        f"The provider {name} has not answered since {since:%H:%M} UTC."
        for name, since in down.items()
    ]
    reasons += [
        f"The provider {name} is left alone after failures." for name in resting if name not in down
    ]
    skewed = context.services.clock_monitor.describe()
    reasons += skewed
    status = "unready" if database != "ok" else "degraded" if reasons else "ready"
    answer = {
        "status": status,
        "version": version("sandkeeper"),
        "database": database,
        "provider": "unavailable" if resting or down else "ok",
        "clock": "skewed" if skewed else "ok",
        "switches": context.services.feature_flags.all(),
        "tasks": [_task(one) for one in context.scheduler.statuses()],
        "reasons": reasons,
    }
    shown = answer if may_monitor(context, request.scope) else {"status": status}
    return reply(shown, status=503 if status == "unready" else 200)


async def metrics(context: ContextDep) -> Response:
    """Return all series for Prometheus; none carries an id or an owner."""
    await context.fleet_metrics.refresh_gauges()
    context.fleet_metrics.find_open_breakers()
    return Response(context.deps.metrics.render(), headers={"Content-Type": CONTENT_TYPE})


async def presentation(context: ContextDep) -> Response:
    """Return the label, caption and actions of every state."""
    return reply(context.presentation.table())


async def read_switches(context: ContextDep) -> Response:
    """Return which switches are on."""
    return reply({"switches": context.services.feature_flags.all()})


async def turn_switches(body: SwitchesRequest, caller: CallerDep, context: ContextDep) -> Response:
    """Turn switches on or off, on every replica."""
    asked = {name: on for name, on in body.model_dump().items() if on is not None}
    for name, on in asked.items():
        await context.services.feature_flags.turn(name, on=on, actor=caller.actor)
    if asked.get("sse") is False:
        context.hub.end_streams()
    context.scheduler.wake_all()
    return reply({"switches": context.services.feature_flags.all()})


async def run_task(name: Annotated[str, Path(max_length=64)], context: ContextDep) -> Response:
    """Run a background task now, even if it is switched off, and return its report."""
    try:
        run = await context.scheduler.run_now(name)
    except UnknownTaskError:
        raise TaskNotFoundError(f"There is no background task {name!r}.") from None
    return reply(
        {
            "task": run.task,
            "ok": run.succeeded,
            "durationS": run.duration_s,
            "error": run.error,
            "detail": dict(run.detail),
        }
    )


def _task(one: TaskStatus) -> dict[str, Any]:
    last = one.last_run
    return {
        "name": one.name,
        "enabled": one.enabled,
        "periodS": one.period_s,
        "runningSince": one.running_since,
        "runs": one.runs,
        "failures": one.failures,
        "lastRunAt": last.started_at if last else None,
        "lastDurationS": last.duration_s if last else None,
        "lastError": last.error if last else None,
        "lastSuccessAt": one.last_success_at,
        "lastDetail": dict(last.detail) if last else {},
    }
