"""The routes that are called most: status, activity, webhook and the live streams.

`StatusRoute` is bare ASGI. The others are plain Starlette endpoints: they are guarded by the same
rules as FastAPI's routes, without its parsing of parameters and bodies.
"""

from __future__ import annotations

import orjson
from pydantic import ValidationError
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sandkeeper.api.auth import Access, Role
from sandkeeper.api.deps import ApiContext, authorize, get_caller, get_context
from sandkeeper.api.errors import make_validation_error
from sandkeeper.api.responses import reply, reply_bytes
from sandkeeper.api.schemas.sandboxes import ActivityRequest
from sandkeeper.api.status.cache import CachedStatus
from sandkeeper.api.status.serializers import owner_slug, parse_owner_slug
from sandkeeper.api.status.sse import FLEET, StreamResponse
from sandkeeper.api.wire_errors import FeatureDisabledError
from sandkeeper.domain.activity import ActivityClass
from sandkeeper.domain.errors import (
    ForbiddenError,
    InvalidRequestError,
    SandboxNotFoundError,
    SandkeeperError,
)
from sandkeeper.services.monitoring.feature_flags import FeatureFlag

ACCEPTED = {kind: orjson.dumps({"accepted": True, "kind": kind.value}) for kind in ActivityClass}
# Projects that one stream may name. More would let one caller hold a topic table of its own.
PROJECTS_MAX = 200


class StatusRoute:
    """Return the status from memory; a read is recorded as passive and keeps nothing awake."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        context = self._context
        params, headers = scope["path_params"], Headers(scope=scope)
        caller = authorize(context, Access.READ_ONE, scope, headers=headers)
        entry = await _get_status(context, params["project"])
        entry = await context.status_reads.record_read(entry, source=caller.role.value)
        status, body, answer_headers = 200, entry.body, entry.headers
        if entry.etag.decode() in headers.get("if-none-match", ""):
            status, body, answer_headers = 304, b"", entry.headers[2:]
        await send({"type": "http.response.start", "status": status, "headers": answer_headers})
        await send({"type": "http.response.body", "body": body})


async def activity(request: Request) -> Response:
    """Record activity in memory; it is written with the next flush."""
    context, caller = get_context(request), get_caller(request)
    asked = parse_activity(await request.body())
    kind = ActivityClass(asked.kind)
    if kind.keeps_awake and caller.role is Role.VIEWER:
        raise ForbiddenError("A viewer may only read.")
    entry = await _get_status(context, request.path_params["project"])
    source = asked.source if asked.source != "api" else caller.role.value
    context.services.activities.record(entry.sandbox.id, kind=kind, source=source)
    if asked.page_view:
        context.status_reads.count_page_view()
    return reply_bytes(ACCEPTED[kind], status=202)


async def webhook(request: Request) -> Response:
    """Record a delivery of the provider, which is authenticated by its signature."""
    context = get_context(request)
    if not context.services.feature_flags.is_on(FeatureFlag.WEBHOOKS):
        raise FeatureDisabledError("Webhooks are switched off.")
    body = await request.body()
    try:
        result = await context.services.webhooks.receive(body, request.headers)
    except SandkeeperError:
        context.services.health.record_webhook(accepted=False)
        raise
    context.services.health.record_webhook(accepted=True)
    return reply(
        {"outcome": result.outcome, "eventId": result.event_id, "sandboxId": result.sandbox_id}
    )


async def sandbox_events(request: Request) -> Response:
    """Stream one sandbox: its status at once, then each change with the status it led to."""
    context = get_context(request)
    _require_streams(context)
    sandbox = (await _get_status(context, request.path_params["project"])).sandbox
    after = _last_event_id(request)
    return StreamResponse(
        context.hub,
        topics=[owner_slug(sandbox.owner)],
        opening=lambda: context.broadcaster.initial_sandbox_events(sandbox, after=after),
        caller=get_caller(request),
        limits=context.limits,
    )


async def fleet_events(request: Request) -> Response:
    """Stream the whole fleet, or only the named projects (`?project=a&project=b`)."""
    context = get_context(request)
    _require_streams(context)
    projects = request.query_params.getlist("project")
    if len(projects) > PROJECTS_MAX:
        raise InvalidRequestError(f"One stream takes at most {PROJECTS_MAX} projects.")
    after = _last_event_id(request)

    async def opening() -> bytes:
        found = [await context.statuses.get(parse_owner_slug(project)) for project in projects]
        sandboxes = [entry.sandbox for entry in found if entry is not None]
        return await context.broadcaster.initial_fleet_events(sandboxes, after=after)

    return StreamResponse(
        context.hub,
        topics=projects or [FLEET],
        opening=opening,
        caller=get_caller(request),
        limits=context.limits,
    )


def parse_activity(body: bytes) -> ActivityRequest:
    """Return the request's activity; an empty body means that the user did something."""
    try:
        return ActivityRequest.model_validate_json(body or b"{}")
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False, include_context=False)
        raise make_validation_error(found) from None


async def _get_status(context: ApiContext, project: str) -> CachedStatus:
    owner = parse_owner_slug(project)
    entry = await context.statuses.get(owner)
    if entry is None:
        raise SandboxNotFoundError(f"There is no sandbox of {owner_slug(owner)!r}.")
    return entry


def _require_streams(context: ApiContext) -> None:
    if not context.services.feature_flags.is_on(FeatureFlag.SSE):
        raise FeatureDisabledError("Live streams are switched off: poll instead.")


def _last_event_id(request: Request) -> int | None:
    """Return where a returning reader stopped; a new EventSource may name it in the query."""
    text = request.headers.get("last-event-id") or request.query_params.get("lastEventId") or ""
    return int(text) if text.isdecimal() and len(text) < 19 else None
