"""The routes that are called most: status, activity, webhook, live streams. Bare ASGI.

Each is guarded by the same rules as the others; only the framework's share of the work is missing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from urllib.parse import parse_qs

import orjson
from pydantic import ValidationError
from starlette.types import Receive, Scope, Send

from sandkeeper.api.auth import Access, Caller, Role, admit, refuse_foreign_pages
from sandkeeper.api.deps import ApiContext
from sandkeeper.api.errors import (
    FeatureDisabledError,
    MalformedRequestError,
    MethodNotAllowedError,
)
from sandkeeper.api.schemas.sandboxes import ActivityRequest
from sandkeeper.api.status.cache import CachedStatus
from sandkeeper.api.status.serializers import dumps, owner_slug, parse_owner_slug
from sandkeeper.api.status.sse import FLEET
from sandkeeper.domain.activity import ActivityClass
from sandkeeper.domain.errors import (
    ForbiddenError,
    InvalidRequestError,
    SandboxNotFoundError,
    SandkeeperError,
)
from sandkeeper.domain.owner import Owner
from sandkeeper.services.monitoring.feature_flags import FeatureFlag

ACCEPTED = {kind: orjson.dumps({"accepted": True, "kind": kind.value}) for kind in ActivityClass}
# Streams of one connection. More would let one caller hold a topic table of its own.
PROJECTS_MAX = 200


class HotRoute(ABC):
    """One method on one path, with its guard."""

    method = "GET"
    access = Access.READ_ONE

    def __init__(self, context: ApiContext) -> None:
        self.context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != self.method:
            raise MethodNotAllowedError(allowed=self.method)
        await self.answer(scope, receive, send)

    @abstractmethod
    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request whose method fits."""

    def admit(
        self, scope: Scope, *, stream_token: str | None = None
    ) -> tuple[Caller, Owner | None]:
        """The caller and the owner that the path names, if this caller may come in."""
        headers = read_headers(scope)
        caller = self.context.authenticator.identify(headers, stream_token=stream_token)
        refuse_foreign_pages(caller, self.method, headers)
        project = scope["path_params"].get("project")
        owner = parse_owner_slug(project) if project is not None else None
        admit(
            caller,
            self.access,
            owner_kind=owner.kind.value if owner else "",
            owner_id=owner.id if owner else None,
        )
        return caller, owner

    async def find(self, owner: Owner | None) -> CachedStatus:
        assert owner is not None
        entry = await self.context.statuses.get(owner)
        if entry is None:
            raise SandboxNotFoundError(f"There is no sandbox of {owner_slug(owner)!r}.")
        return entry


class StatusRoute(HotRoute):
    """The status, from memory. A look is counted as passive and keeps nothing awake."""

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        caller, owner = self.admit(scope)
        entry = await self.context.status_reads.on_read(
            await self.find(owner), source=caller.role.value
        )
        for name, value in scope["headers"]:
            if name == b"if-none-match" and entry.etag in value:
                await respond(send, 304, b"", entry.headers[2:])
                return
        await respond(send, 200, entry.body, entry.headers)


class ActivityRoute(HotRoute):
    """Activity, taken into memory and written with the next flush."""

    method = "POST"

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller, owner = self.admit(scope)
        asked = parse_activity(await read_body(receive))
        kind = ActivityClass(asked.kind)
        if kind.keeps_awake and caller.role is Role.VIEWER:
            raise ForbiddenError("A viewer may look and not act.")
        entry = await self.find(owner)
        source = asked.source if asked.source != "api" else caller.role.value
        self.context.services.activities.record(entry.sandbox.id, kind=kind, source=source)
        if asked.page_view:
            self.context.status_reads.count_page_view()
        await respond_json(send, 202, ACCEPTED[kind])


class WebhookRoute(HotRoute):
    """The provider's deliveries. The signature is the key."""

    method = "POST"
    access = Access.SIGNED

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self.context.services.feature_flags.is_on(FeatureFlag.WEBHOOKS):
            raise FeatureDisabledError("Webhooks are switched off.")
        body = await read_body(receive)
        health = self.context.services.health
        try:
            receipt = await self.context.services.webhooks.receive(body, read_headers(scope))
        except SandkeeperError:
            health.record_webhook(accepted=False)
            raise
        health.record_webhook(accepted=True)
        answer = {
            "outcome": receipt.outcome,
            "eventId": receipt.event_id,
            "sandboxId": receipt.sandbox_id,
        }
        await respond_json(send, 200, dumps(answer))


class SandboxEvents(HotRoute):
    """One sandbox, live: its status at once, then each change with the status it led to."""

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        query = parse_qs(scope["query_string"].decode("latin-1"))
        caller, owner = self.admit(scope, stream_token=first(query, "token"))
        require_streams(self.context)
        entry = await self.find(owner)
        after = last_event_id(scope, query)
        name = owner_slug(entry.sandbox.owner)
        await self.context.hub.serve(
            receive,
            send,
            topics=[name],
            opening=lambda: self.context.broadcaster.initial_sandbox_events(
                entry.sandbox, after=after
            ),
            caller=caller,
        )


class FleetEvents(HotRoute):
    """The whole fleet, live, or the named projects of it (`?project=a&project=b`)."""

    access = Access.READ_ALL

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        query = parse_qs(scope["query_string"].decode("latin-1"))
        caller, _ = self.admit(scope, stream_token=first(query, "token"))
        require_streams(self.context)
        projects = query.get("project", [])
        if len(projects) > PROJECTS_MAX:
            raise InvalidRequestError(f"One stream takes at most {PROJECTS_MAX} projects.")
        after = last_event_id(scope, query)
        await self.context.hub.serve(
            receive,
            send,
            topics=projects or [FLEET],
            opening=lambda: self._open(projects, after),
            caller=caller,
        )

    async def _open(self, projects: list[str], after: int | None) -> bytes:
        statuses = self.context.statuses
        found = [await statuses.get(parse_owner_slug(project)) for project in projects]
        sandboxes = [entry.sandbox for entry in found if entry is not None]
        return await self.context.broadcaster.initial_fleet_events(sandboxes, after=after)


def require_streams(context: ApiContext) -> None:
    if not context.services.feature_flags.is_on(FeatureFlag.SSE):
        raise FeatureDisabledError("Live streams are switched off: poll instead.")


def read_headers(scope: Scope) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


async def read_body(receive: Receive) -> bytes:
    """The whole body; its size is bounded by the front."""
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise MalformedRequestError("The request ended before its body did.")
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


def parse_activity(body: bytes) -> ActivityRequest:
    """An empty body means that somebody did something."""
    if not body:
        return ActivityRequest()
    try:
        return ActivityRequest.model_validate(orjson.loads(body))
    except orjson.JSONDecodeError:
        raise MalformedRequestError("The body is not JSON.") from None
    except ValidationError as error:
        raise invalid(error) from None


def invalid(error: ValidationError) -> InvalidRequestError:
    """What is wrong, field by field, without repeating what was sent."""
    found = [
        {"field": ".".join(str(part) for part in item["loc"]), "problem": item["msg"]}
        for item in error.errors(include_url=False, include_input=False, include_context=False)
    ]
    text = "; ".join(f"{item['field'] or 'body'}: {item['problem']}" for item in found[:5])
    return InvalidRequestError(text, errors=found)


def first(query: Mapping[str, list[str]], name: str) -> str | None:
    values = query.get(name)
    return values[0] if values else None


def last_event_id(scope: Scope, query: Mapping[str, list[str]]) -> int | None:
    """Where a returning reader stopped; a new EventSource may name it in the query instead."""
    text = read_headers(scope).get("last-event-id") or first(query, "lastEventId") or ""
    return int(text) if text.isdecimal() and len(text) < 19 else None


async def respond(send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def respond_json(send: Send, status: int, body: bytes) -> None:
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
    ]
    await respond(send, status, body, headers)
