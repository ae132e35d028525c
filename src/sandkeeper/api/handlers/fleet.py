"""Routes of the whole fleet: numbers, health, charts, history, deliveries, leaks, bulk actions."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Annotated, Any

from fastapi import Query, Response
from pydantic import AwareDatetime

from sandkeeper.api.deps import ApiContext, CallerDep, ContextDep
from sandkeeper.api.handlers.charts import draw_charts
from sandkeeper.api.handlers.sandboxes import (
    Limit,
    NumberCursor,
    get_sandbox,
    make_query,
    parse_number_cursor,
)
from sandkeeper.api.handlers.wakes import record_wake_request
from sandkeeper.api.responses import reply
from sandkeeper.api.schemas.fleet import BulkRequest, ReconcileRequest
from sandkeeper.api.status.serializers import (
    ADDRESS_MAX,
    owner_slug,
    parse_owner_slug,
    render_change,
    render_inbox,
    render_leak,
)
from sandkeeper.domain.errors import InvalidRequestError, SandkeeperError
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.store.events import EventFilter

LEAKS_SINCE = timedelta(days=7)
# Bulk items under way at a time. The provider's own bound applies beneath it.
BULK_CONCURRENCY = 8
# Items of one request with a filter. More let a request last for minutes, fewer take more requests.
BULK_PAGE = 100
# Matches that are counted one by one; for more this number is given.
BULK_MATCHED_MAX = 10_000


async def summary(context: ContextDep) -> Response:
    """Return the numbers of the fleet, and its health."""
    return reply(await context.fleet_metrics.summarize())


async def health(context: ContextDep) -> Response:
    """Return every health reading with its limit, and when it was last within it."""
    return reply(await context.fleet_metrics.describe_health())


async def trends(
    context: ContextDep, hours: Annotated[float, Query(gt=0, le=24 * 31)] = 24
) -> Response:
    """Return the charts: states over time, transitions by cause, lag and latencies."""
    since = context.deps.clock() - timedelta(hours=hours)
    return reply(
        await draw_charts(context.deps.store, context.services.metrics_history, since=since)
    )


async def history(
    context: ContextDep,
    *,
    limit: Limit = 100,
    cursor: NumberCursor = None,
    type: Annotated[str, Query(max_length=200)] = "",  # noqa: A002  The query's own name.
    project: Annotated[str, Query(max_length=ADDRESS_MAX)] = "",
    actor: Annotated[str, Query(max_length=200)] = "",
    text: Annotated[str, Query(max_length=200)] = "",
    since: AwareDatetime | None = None,
    until: AwareDatetime | None = None,
) -> Response:
    """Return the fleet's newest events, filtered; `type` takes several, comma-separated.

    `actor` and `text` match a part, in either case; `text` is looked for in the reason, the details
    and the owner's id. A page reads 20,000 events at most, so it may be short and have a next one.
    """
    query = EventFilter(
        types=tuple(part for part in type.split(",") if part),
        owner=parse_owner_slug(project) if project else None,
        actor=actor,
        text=text,
        since=since,
        until=until,
    )
    page = await context.deps.store.events.search(
        query, before=parse_number_cursor(cursor), limit=limit
    )
    items = [render_change(event) for event in page.events]
    more = None if page.next_before is None else str(page.next_before)
    return reply({"items": items, "nextCursor": more})


async def deliveries(
    context: ContextDep, limit: Limit = 100, cursor: NumberCursor = None
) -> Response:
    """Return the newest webhook deliveries and the outcome of each."""
    found = await context.deps.store.deliveries.latest(
        before=parse_number_cursor(cursor), limit=limit
    )
    return reply(render_inbox(found, limit=limit))


async def leaks(context: ContextDep) -> Response:
    """Return instances that no record refers to, and removed ones with who, when and why."""
    found = await context.deps.store.leaks.list(since=context.deps.clock() - LEAKS_SINCE)
    return reply({"items": [render_leak(one) for one in found]})


async def bulk(body: BulkRequest, caller: CallerDep, context: ContextDep) -> Response:
    """Perform one action on many sandboxes, and return the result of each."""
    places = asyncio.Semaphore(BULK_CONCURRENCY)

    async def one(project: str) -> dict[str, Any]:
        async with places:
            return await _bulk_item(body, project, caller.actor, context)

    projects, matched, cursor = await _find_targets(body, context)
    items = await asyncio.gather(*(one(project) for project in projects))
    return reply(
        {
            "action": body.action,
            "dryRun": body.dry_run,
            "count": len(items),
            "matched": matched,
            "items": items,
            "nextCursor": cursor,
        }
    )


async def _find_targets(
    body: BulkRequest, context: ApiContext
) -> tuple[list[str], int, str | None]:
    """Return the projects of this page, how many there are in all, and the next page's cursor."""
    wanted = body.filter
    if wanted is None:
        projects = list(dict.fromkeys(body.projects))
        return projects, len(projects), None
    query = make_query(
        context,
        state=wanted.state,
        owner=wanted.owner,
        search=wanted.search,
        region=wanted.region,
        tenant=wanted.tenant,
        overdue=wanted.overdue,
        limit=BULK_PAGE,
    )
    sandboxes = context.deps.store.sandboxes
    page = await sandboxes.list_rows(query, body.cursor)
    matched = await sandboxes.count(query, at_most=BULK_MATCHED_MAX)
    return [owner_slug(row.owner) for row in page.rows], matched, page.next_cursor


async def _bulk_item(
    body: BulkRequest, project: str, actor: str, context: ApiContext
) -> dict[str, Any]:
    item: dict[str, Any] = {
        "project": project,
        "ok": True,
        "status": None,
        "code": None,
        "detail": None,
    }
    try:
        sandbox = await get_sandbox(context, parse_owner_slug(project))
        if not body.dry_run:
            sandbox = await _act(body.action, sandbox, actor, context)
            context.statuses.put(sandbox)
        truth = context.presentation.find_truth(sandbox, now=context.deps.clock())
        item["status"] = truth.state.value
    except SandkeeperError as error:
        item |= {"ok": False, "code": error.code, "detail": error.message}
    return item


async def _act(action: str, sandbox: Sandbox, actor: str, context: ApiContext) -> Sandbox:
    match action:
        case "pause":
            return await context.services.lifecycle.pause(sandbox.id, actor=actor)
        case "kill":
            return await context.services.lifecycle.kill(sandbox.id, actor=actor)
        case "verify":
            return await context.services.verification.verify(sandbox.id)
        case "extend":
            return await context.services.lifecycle.extend(sandbox.id, by_s=3600, actor=actor)
        case "wake":
            record_wake_request(context, sandbox)
            await context.services.wakes.start(sandbox.id, actor=actor)
            return await context.deps.store.sandboxes.get(sandbox.id)
        case _:
            raise InvalidRequestError(f"There is no bulk {action} here.")


async def reconcile(body: ReconcileRequest, caller: CallerDep, context: ContextDep) -> Response:
    """Compare all records with the provider now; with `dryRun` only report."""
    reports = await context.services.reconciliation.run(dry_run=body.dry_run, actor=caller.actor)
    counts: Counter[str] = Counter()
    for report in reports:
        counts.update(report.counts)
    return reply(
        {
            "dryRun": body.dry_run,
            "complete": all(report.complete for report in reports),
            "counts": dict(counts),
            "corrections": [
                {
                    "kind": one.kind,
                    "instanceId": one.instance_id,
                    "sandboxId": one.sandbox_id,
                    "ours": one.ours,
                    "theirs": one.theirs,
                }
                for report in reports
                for one in report.corrections
            ],
        }
    )
