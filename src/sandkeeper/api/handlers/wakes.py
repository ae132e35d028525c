"""Routes of wakes, and of the app's log."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query, Request, Response

from sandkeeper.api.deps import ApiContext, CallerDep, ContextDep, OwnerDep
from sandkeeper.api.handlers.sandboxes import get_sandbox
from sandkeeper.api.idempotency import IdempotencyKey, once
from sandkeeper.api.responses import reply
from sandkeeper.api.schemas.sandboxes import OverflowName, PriorityName
from sandkeeper.api.status.serializers import owner_slug, render_receipt
from sandkeeper.domain.activity import ActivityClass
from sandkeeper.domain.decisions.priority import Overflow, Priority
from sandkeeper.domain.decisions.wake import StepOutcome, Wake
from sandkeeper.domain.errors import WakeNotFoundError
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import State
from sandkeeper.domain.texts.presentation import word_empty_log
from sandkeeper.services.wake.app import AppOutput
from sandkeeper.services.wake.prewarm import PrewarmAnswer
from sandkeeper.services.wake.wakes import get_failure

# How long one request may wait. Longer ones are cut by proxies; the wake goes on without it.
WAIT_MAX_S = 300.0
RETRY_AFTER_S = 1

WaitSeconds = Annotated[float, Query(ge=0, le=WAIT_MAX_S, description="Seconds to wait for it.")]


async def wake(
    owner: OwnerDep,
    caller: CallerDep,
    context: ContextDep,
    request: Request,
    wait: WaitSeconds = 0,
    priority: PriorityName | None = None,
    overflow: OverflowName | None = None,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Make the sandbox run from any state, with its files and app; callers share one wake.

    Answers 202 with the wake and `Retry-After` while it is under way, 200 when it succeeded within
    `wait` seconds, and the error with which it failed. `priority` and `overflow` apply when not
    all sandboxes can run; without them, those of the policy.
    """

    async def perform() -> Response:
        sandbox = await get_sandbox(context, owner)
        record_wake_request(context, sandbox)
        begun = await context.services.wakes.start(
            sandbox.id,
            actor=caller.actor,
            wait_s=wait,
            priority=None if priority is None else Priority(priority),
            overflow=None if overflow is None else Overflow(overflow),
        )
        ended = await context.services.wakes.wait(begun, within_s=wait)
        failure = get_failure(ended) if wait else None
        if failure is not None:
            raise failure
        return _answer(context, ended, sandbox)

    return await once(request, context, idempotency_key, None, perform)


async def warm(owner: OwnerDep, caller: CallerDep, context: ContextDep) -> Response:
    """Resume a paused sandbox ahead of its user, within a budget; not counted as activity.

    A warm-up never recreates a sandbox. A refusal is an answer with its reason and no error, so
    that a landing page may call it freely: 202 when one was started or is under way, else 200.
    """
    sandbox = await get_sandbox(context, owner)
    warmed = await context.services.prewarms.start(sandbox, actor=caller.actor)
    is_coming = warmed.answer in (PrewarmAnswer.STARTED, PrewarmAnswer.UNDER_WAY)
    answer = {"project": owner_slug(owner), "result": warmed.answer.value, "reason": warmed.reason}
    return reply(answer, status=202 if is_coming else 200)


def record_wake_request(context: ApiContext, sandbox: Sandbox) -> None:
    """Record a request for a wake as intent."""
    context.services.activities.record(sandbox.id, kind=ActivityClass.INTENT, source="wake")


async def read_wake(owner: OwnerDep, context: ContextDep) -> Response:
    """Return the sandbox's last wake: its steps, its receipt, its error."""
    sandbox = await get_sandbox(context, owner)
    last = await context.deps.store.wakes.find_last(sandbox.id)
    if last is None:
        raise WakeNotFoundError
    return reply(render_wake(last, sandbox, context))


async def log(
    owner: OwnerDep,
    context: ContextDep,
    lines: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Response:
    """Return the last lines of the app's output. Wakes nothing."""
    sandbox = await get_sandbox(context, owner)
    truth = context.presentation.find_truth(sandbox, now=context.deps.clock())
    said = AppOutput(())
    if truth.state is State.RUNNING:
        said = await context.services.apps.read(sandbox, lines=lines)
    return reply(
        {
            "lines": list(said.lines),
            "note": "" if said.lines else word_empty_log(sandbox, truth.state),
            "exitCode": said.exit_code,
            "ready": sandbox.run.ready and truth.is_ready,
        }
    )


def render_wake(one: Wake, sandbox: Sandbox, context: ApiContext) -> dict[str, Any]:
    """Return the wake as it is now."""
    ends = one.finished_at or context.deps.clock()
    mark = sandbox.wake
    is_marked = mark is not None and mark.wake_id == one.id
    running = [step for step in one.steps if step.outcome is StepOutcome.RUNNING]
    return {
        "id": one.id,
        "project": owner_slug(sandbox.owner),
        "status": one.status.value,
        "method": one.method.value if one.method else None,
        "attempt": one.attempt,
        "step": running[-1].name.value if running and not one.is_over else None,
        "steps": [
            {
                "name": step.name.value,
                "attempt": step.attempt,
                "outcome": step.outcome.value,
                "startedAt": step.started_at,
                "tookMs": step.took_ms,
                "detail": step.detail,
            }
            for step in one.steps
        ],
        "startedAt": one.started_at,
        "finishedAt": one.finished_at,
        "elapsedMs": max(0, round((ends - one.started_at).total_seconds() * 1000)),
        "usualMs": mark.usual_ms if mark is not None and is_marked else None,
        "receipt": render_receipt(one.receipt) if one.receipt and one.is_over else None,
        "error": {"code": one.error_code, "message": one.error} if one.error_code else None,
    }


def _answer(context: ApiContext, one: Wake, sandbox: Sandbox) -> Response:
    body = render_wake(one, sandbox, context)
    if one.is_over:
        return reply(body)
    return reply(body, status=202, headers={"Retry-After": str(RETRY_AFTER_S)})
