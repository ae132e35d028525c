"""Routes of one sandbox, and the list of all."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Final, Literal

from fastapi import Query, Request, Response
from starlette.background import BackgroundTask

from sandkeeper.api.deps import ApiContext, CallerDep, ContextDep, OwnerDep
from sandkeeper.api.idempotency import IdempotencyKey, once
from sandkeeper.api.responses import reply, reply_revalidated
from sandkeeper.api.schemas.sandboxes import (
    AdoptRequestBody,
    CreateSandboxRequest,
    ExtendRequest,
    MismatchRequest,
    PolicyRequest,
)
from sandkeeper.api.status.serializers import (
    owner_slug,
    render_compact,
    render_explanation,
    render_history,
    render_page,
)
from sandkeeper.domain.decisions.priority import Overflow, Priority
from sandkeeper.domain.errors import InvalidRequestError, SandboxNotFoundError
from sandkeeper.domain.events import MismatchReported
from sandkeeper.domain.owner import Owner, OwnerKind
from sandkeeper.domain.policy import (
    AppOnResume,
    FilesOnResume,
    Launch,
    Policy,
    PreviewAccess,
    PreviewUse,
)
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import State
from sandkeeper.services.default_policy import make_default_policy
from sandkeeper.services.observe.adoption import AdoptRequest
from sandkeeper.store.sandboxes.query import SandboxQuery, Sort

SEARCH: Final = (
    "Any part of an id, of an instance's or owner's id, of metadata or a tenant, in either "
    "case; "
    "one or two characters find only their beginnings."
)
Limit = Annotated[int, Query(ge=1, le=500)]
Cursor = Annotated[str | None, Query(max_length=500)]
NumberCursor = Annotated[str | None, Query(pattern="^[0-9]{1,18}$")]


async def create(
    body: CreateSandboxRequest,
    owner: OwnerDep,
    caller: CallerDep,
    context: ContextDep,
    request: Request,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Create the project's sandbox, or return the existing one."""
    if owner.kind is not OwnerKind.PROJECT:
        raise InvalidRequestError(
            "Only a project's sandbox is created here; a job's with POST /api/jobs, "
            "a session's with POST /api/sessions/acquire, a pool's with PUT /api/pools."
        )

    async def perform() -> Response:
        made = await context.services.creation.create(
            owner,
            launch=_launch(body),
            policy=make_policy(body.policy, context),
            actor=caller.actor,
        )
        answer = _status(context, made.sandbox, status=201 if made.is_new else 200)
        warnings = await context.services.quotas.list_warnings(made.sandbox.tenant)
        if warnings:
            answer.headers["Sandkeeper-Quota-Warning"] = ", ".join(warnings)
        return answer

    return await once(request, context, idempotency_key, body, perform)


async def adopt(
    body: AdoptRequestBody, owner: OwnerDep, caller: CallerDep, context: ContextDep
) -> Response:
    """Adopt a running or paused instance at the provider as the project's sandbox."""
    request = AdoptRequest(
        owner=owner,
        instance_id=body.instance_id,
        policy=make_policy(body.policy, context),
        port=body.port,
        start_command=body.start_command,
        workdir=body.workdir,
        region=body.region,
        from_keeper=body.from_keeper,
        tenant=body.tenant,
    )
    adopted = await context.services.adoption.adopt(
        request, actor=caller.actor, dry_run=body.dry_run
    )
    outcome = "known" if not adopted.is_new else "would_adopt" if body.dry_run else "adopted"
    return reply(
        {
            "outcome": outcome,
            "project": owner_slug(owner),
            "instanceId": body.instance_id,
            "status": adopted.sandbox.state.value,
        }
    )


async def kill(
    owner: OwnerDep,
    caller: CallerDep,
    context: ContextDep,
    request: Request,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Kill the sandbox. Its record stays."""

    async def perform() -> Response:
        sandbox = await get_sandbox(context, owner)
        ended = await context.services.lifecycle.kill(sandbox.id, actor=caller.actor)
        return _status(context, ended)

    return await once(request, context, idempotency_key, None, perform)


async def pause(owner: OwnerDep, caller: CallerDep, context: ContextDep) -> Response:
    """Pause the sandbox, unless it is paused already."""
    sandbox = await get_sandbox(context, owner)
    return _status(context, await context.services.lifecycle.pause(sandbox.id, actor=caller.actor))


async def verify(owner: OwnerDep, context: ContextDep) -> Response:
    """Compare the record with the provider now, and return the corrected status."""
    sandbox = await get_sandbox(context, owner)
    return _status(context, await context.services.verification.verify(sandbox.id))


async def extend(
    body: ExtendRequest, owner: OwnerDep, caller: CallerDep, context: ContextDep
) -> Response:
    """Set how much longer the sandbox may run, counted from now."""
    sandbox = await get_sandbox(context, owner)
    extended = await context.services.lifecycle.extend(
        sandbox.id, by_s=body.by_ms / 1000, actor=caller.actor
    )
    return _status(context, extended)


async def report_mismatch(
    body: MismatchRequest, owner: OwnerDep, caller: CallerDep, context: ContextDep
) -> Response:
    """Report that a page showed a wrong status; the record is verified in the background."""
    sandbox = await get_sandbox(context, owner)
    await context.status_reads.report_mismatch(
        sandbox,
        MismatchReported(
            sandbox_id=sandbox.id,
            owner=sandbox.owner,
            at=context.deps.clock(),
            actor=caller.actor,
            reason=body.evidence,
            shown=body.shown,
            found=body.actual or sandbox.state.value,
        ),
    )
    return Response(
        status_code=202, background=BackgroundTask(context.services.verification.verify, sandbox.id)
    )


async def explain(owner: OwnerDep, context: ContextDep) -> Response:
    """Explain why the sandbox is awake or asleep, what happens next, and what prevents it."""
    sandbox = await get_sandbox(context, owner)
    answer = await context.services.explanations.explain(sandbox.id)
    return reply(render_explanation(answer, owner=owner))


async def history(
    owner: OwnerDep, context: ContextDep, limit: Limit = 100, cursor: NumberCursor = None
) -> Response:
    """Return what happened to the sandbox, newest first."""
    sandbox = await get_sandbox(context, owner)
    found = await context.deps.store.events.of(
        sandbox.id, before=parse_number_cursor(cursor), limit=limit
    )
    return reply(render_history(found, limit=limit))


async def list_sandboxes(
    request: Request,
    context: ContextDep,
    *,
    state: Annotated[str, Query(max_length=100)] = "",
    owner: Annotated[str, Query(max_length=300)] = "",
    search: Annotated[str, Query(max_length=200, description=SEARCH)] = "",
    region: Annotated[str, Query(max_length=64)] = "",
    tenant: Annotated[str, Query(max_length=64)] = "",
    overdue: bool = False,
    sort: Annotated[str, Query(max_length=40)] = "",
    limit: Limit = 100,
    cursor: Cursor = None,
    fields: Literal["all", "compact"] = "all",
) -> Response:
    """List sandboxes, filtered and sorted, in pages.

    `sort` is created, updated, active, state, owner or check; a leading `-` reverses it. What has
    no value to sort by comes last either way.
    `overdue` finds only what the next sweep has to do.
    `fields=compact` leaves out what a table does not show.
    """
    query = make_query(
        context,
        state=state,
        owner=owner,
        search=search,
        region=region,
        tenant=tenant,
        overdue=overdue,
        sort=sort,
        limit=limit,
    )
    entries, more = await context.statuses.read_page(query, cursor)
    bodies = (entry.body for entry in entries)
    items = map(render_compact, bodies) if fields == "compact" else bodies
    return await reply_revalidated(request, render_page(items, more))


async def get_sandbox(context: ApiContext, owner: Owner) -> Sandbox:
    """Return the record from the database, for a caller that is about to change it."""
    sandbox = await context.deps.store.sandboxes.find_by_owner(owner)
    if sandbox is None:
        raise SandboxNotFoundError(f"There is no sandbox of {owner_slug(owner)!r}.")
    return sandbox


def parse_number_cursor(cursor: str | None) -> int | None:
    """Return the number of the last event on the page before."""
    return None if cursor is None else int(cursor)


def make_query(
    context: ApiContext,
    *,
    state: str = "",
    owner: str = "",
    search: str = "",
    region: str = "",
    tenant: str = "",
    overdue: bool = False,
    sort: str = "",
    limit: int,
) -> SandboxQuery:
    """Return the query of a list, with what the providers' health says about its states."""
    kind, mark, owner_id = owner.partition(":")
    is_kind = kind in [one.value for one in OwnerKind]
    key = sort.removeprefix("-") or Sort.CREATED.value
    if key not in [one.value for one in Sort]:
        raise InvalidRequestError(f"There is no order {key!r}; there are: {', '.join(Sort)}.")
    return SandboxQuery(
        states=tuple(_state(name) for name in state.split(",") if name),
        owner_kind=OwnerKind(kind) if is_kind else OwnerKind.PROJECT if owner else None,
        owner_id=(owner_id if mark else None) if is_kind else owner or None,
        region=region or None,
        tenant=tenant or None,
        search=search or None,
        silent=context.services.provider_health.list_silent_places(),
        due_at=context.deps.clock() if overdue else None,
        sort=Sort(key),
        descending=sort.startswith("-") or not sort,
        limit=limit,
    )


def _state(name: str) -> State:
    try:
        return State(name.strip().upper())
    except ValueError:
        known = ", ".join(State)
        raise InvalidRequestError(f"There is no state {name!r}; there are: {known}.") from None


def _status(context: ApiContext, sandbox: Sandbox, *, status: int = 200) -> Response:
    entry = context.statuses.put(sandbox)
    return Response(
        entry.body,
        status_code=status,
        media_type="application/json",
        headers={"Cache-Control": "no-store", "ETag": entry.etag.decode()},
    )


def _launch(body: CreateSandboxRequest) -> Launch:
    return Launch(
        template=body.template,
        env=body.env,
        metadata=body.metadata,
        port=body.port,
        start_command=body.start_command,
        workdir=body.workdir,
        region=body.region,
        tenant=body.tenant,
    )


def make_policy(
    asked: PolicyRequest, context: ApiContext, *, app_on_resume: AppOnResume = AppOnResume.KEEP
) -> Policy:
    """Return the requested policy, with the settings and `app_on_resume` as defaults."""
    settings = context.deps.settings
    default = make_default_policy(settings)
    idle_ms, life_ms = asked.idle_timeout_ms, asked.lifecycle_timeout_ms
    extends, work_ms = asked.extend_while_in_use, asked.work_max_ms
    policy = replace(
        default,
        idle_timeout_s=default.idle_timeout_s if idle_ms is None else idle_ms / 1000,
        lifetime_s=default.lifetime_s if life_ms is None else life_ms / 1000,
        extend_while_active=default.extend_while_active if extends is None else extends,
        work_max_s=default.work_max_s if work_ms is None else work_ms / 1000,
        idle_min_s=None,
        idle_max_s=None,
        app_on_resume=AppOnResume(asked.app_on_resume or app_on_resume),
        files_on_resume=FilesOnResume(asked.files_on_resume or default.files_on_resume),
        keep_secret_files=asked.keep_secret_files,
        preview_access=PreviewAccess(asked.preview_access) if asked.preview_access else None,
        wake_on_visit=asked.wake_on_visit,
        preview_use=PreviewUse(asked.preview_use or default.preview_use),
        priority=None if asked.priority is None else Priority(asked.priority),
        overflow=None if asked.overflow is None else Overflow(asked.overflow),
    )
    if (asked.idle or settings.idle) == "fixed":
        return policy
    min_ms, max_ms = asked.idle_timeout_min_ms, asked.idle_timeout_max_ms
    shortest_s = settings.idle_timeout_min_s if min_ms is None else min_ms / 1000
    longest_s = settings.idle_timeout_max_s if max_ms is None else max_ms / 1000
    if shortest_s > longest_s:
        raise InvalidRequestError("The shortest idle timeout is longer than the longest.")
    return replace(policy, idle_min_s=shortest_s, idle_max_s=longest_s)
