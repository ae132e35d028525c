"""Routes of jobs, the same under `/api/jobs` and `/api/generation`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import Path, Query, Request, Response

from sandkeeper.api.deps import ApiContext, CallerDep, ContextDep
from sandkeeper.api.handlers.sandboxes import make_policy
from sandkeeper.api.handlers.wakes import WAIT_MAX_S, record_wake_request
from sandkeeper.api.idempotency import IdempotencyKey, once
from sandkeeper.api.responses import reply
from sandkeeper.api.schemas.wakes import CreateJobRequest, RebuildRequest, UpdateJobRequest
from sandkeeper.domain.errors import InvalidRequestError, SandboxExpiredError, WakeError
from sandkeeper.domain.policy import AppOnResume, Launch
from sandkeeper.domain.texts.presentation import JOB_TEXTS
from sandkeeper.services.jobs.jobs import JobView

RESUME_WITHIN_S = 120.0

JobName = Annotated[str, Path(min_length=1, max_length=128)]
WaitSeconds = Annotated[float, Query(ge=0, le=WAIT_MAX_S, description="Seconds to wait for it.")]


async def create(
    body: CreateJobRequest,
    caller: CallerDep,
    context: ContextDep,
    request: Request,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Create a job with its own sandbox; return the existing job if the id is known."""

    async def perform() -> Response:
        names = ("stage_label", "build_version", "debug_id")
        given = {name: getattr(body, name) for name in names if getattr(body, name) is not None}
        view, is_new = await context.services.jobs.create(
            body.job_id,
            launch=Launch(
                template=body.template,
                env=body.env,
                metadata=body.metadata,
                port=body.port,
                start_command=body.start_command,
                workdir=body.workspace_path,
                region=body.region,
                tenant=body.tenant,
            ),
            policy=make_policy(body.policy, context, app_on_resume=AppOnResume.RESTART),
            actor=caller.actor,
            **given,
        )
        return reply(_render(context, view), status=201 if is_new else 200)

    return await once(request, context, idempotency_key, body, perform)


async def get(job: JobName, context: ContextDep) -> Response:
    """Return the job with its sandbox."""
    return reply(_render(context, await context.services.jobs.get(job)))


async def change(job: JobName, body: UpdateJobRequest, context: ContextDep) -> Response:
    """Update the job's stage, version or failure."""
    changes = body.model_dump(exclude_none=True)
    return reply(_render(context, await context.services.jobs.change(job, **changes)))


async def ready(
    job: JobName, caller: CallerDep, context: ContextDep, body: UpdateJobRequest | None = None
) -> Response:
    """Mark the build as done: save its files and pause its sandbox."""
    changes = body.model_dump(exclude_none=True) if body else {}
    if "error_message" in changes:
        raise InvalidRequestError("A job with an error is not ready.")
    changes.pop("stage_label", None)
    view = await context.services.jobs.mark_ready(job, actor=caller.actor, **changes)
    return reply(_render(context, view))


async def snapshot(job: JobName, caller: CallerDep, context: ContextDep) -> Response:
    """Save the job's files and pause its sandbox, unless it is paused already."""
    view = await context.services.jobs.snapshot(job, actor=caller.actor)
    kind = None
    if not view.is_paused:
        note = view.job.pause_note or ""
        kind = note.partition(":")[0] or SandboxExpiredError.code
    return reply({"job_id": job, "paused": view.is_paused, "error_type": kind})


async def resume(
    job: JobName, caller: CallerDep, context: ContextDep, wait: WaitSeconds = RESUME_WITHIN_S
) -> Response:
    """Resume the preview and return its URL, or 503 with the `error_type`."""
    try:
        view = await context.services.jobs.resume(job, actor=caller.actor, within_s=wait)
    except WakeError as error:
        is_gone = isinstance(error, SandboxExpiredError)
        error.fields["error_type"] = "sandbox_expired" if is_gone else "sandbox_unreachable"
        raise
    assert view.sandbox is not None
    record_wake_request(context, view.sandbox)
    return reply({"preview_url": view.sandbox.run.url, "sandbox_id": view.sandbox.instance_id})


async def rebuild(
    job: JobName,
    body: RebuildRequest,
    caller: CallerDep,
    context: ContextDep,
    wait: WaitSeconds = RESUME_WITHIN_S,
) -> Response:
    """Return the cost of a rebuild; called again with its confirmation, rebuild the job."""
    if not body.confirmation:
        question = await context.services.jobs.ask_rebuild(job)
        return reply(
            {
                "message": JOB_TEXTS.confirm_rebuild,
                "credits": question.credits,
                "confirmation": question.confirmation,
                "expires_at": question.expires_at,
                "rebuild_id": None,
                "rebuild_status": None,
                "job": None,
            }
        )
    view, done = await context.services.jobs.rebuild(
        job, confirmation=body.confirmation, actor=caller.actor, within_s=wait
    )
    answer = {
        "message": "Rebuilt from the kept files." if done.status.is_over else JOB_TEXTS.resuming,
        "credits": 1,
        "confirmation": None,
        "expires_at": None,
        "rebuild_id": done.id,
        "rebuild_status": done.status.value,
        "job": _render(context, view),
    }
    if done.status.is_over:
        return reply(answer)
    return reply(answer, status=202, headers={"Retry-After": "2"})


async def dashboard(
    context: ContextDep,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
    cursor: Annotated[str | None, Query(max_length=300)] = None,
) -> Response:
    """List jobs, newest first, each with its status and whether its sandbox is paused."""
    views = await context.services.jobs.list_newest(limit=limit, after=_parse_cursor(cursor))
    more = None
    if len(views) == limit:
        last = views[-1].job
        more = f"{round(last.created_at.timestamp() * 1000)}:{last.id}"
    return reply({"jobs": [_render(context, view) for view in views], "next_cursor": more})


def _render(context: ApiContext, view: JobView) -> dict[str, Any]:
    """Return the job as host applications read it."""
    job, sandbox = view.job, view.sandbox
    shown: dict[str, Any] = {
        "sandbox_state": None,
        "sandbox_ready": False,
        "sandbox_expires_at": None,
    }
    if sandbox is not None:
        truth = context.presentation.find_truth(sandbox, now=context.deps.clock())
        shown = {
            "sandbox_state": truth.state.value,
            "sandbox_ready": sandbox.run.ready and truth.is_ready,
            "sandbox_expires_at": sandbox.run.end,
        }
    # A sleeping preview keeps its address: it is where a resume brings it back.
    has_url = sandbox is not None and not sandbox.state.is_ended
    return {
        "job_id": job.id,
        "status": job.status.value,
        "stage_label": job.stage_label,
        "preview_url": sandbox.run.url if sandbox is not None and has_url else None,
        "build_version": job.build_version,
        "error_message": job.error_message,
        "debug_id": job.debug_id,
        "sandbox_id": sandbox.instance_id if sandbox else None,
        **shown,
        "sandbox_paused": view.is_paused,
        "pause_note": job.pause_note,
        "created_at": job.created_at,
        "updated_at": job.updated_at,
    }


def _parse_cursor(cursor: str | None) -> tuple[datetime, str] | None:
    if cursor is None:
        return None
    number, mark, job_id = cursor.partition(":")
    if not mark or not number.isdecimal() or len(number) > 14:
        raise InvalidRequestError("The cursor is not one of ours.")
    return datetime.fromtimestamp(int(number) / 1000, UTC), job_id
