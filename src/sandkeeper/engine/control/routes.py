"""The URL table of the control plane, and its authentication."""

from __future__ import annotations

import hmac
import logging
import os
from collections.abc import Awaitable, Callable
from urllib.parse import unquote

import orjson

from sandkeeper.engine.control.account import AccountRoutes
from sandkeeper.engine.control.events import EventRoutes
from sandkeeper.engine.control.http import (
    ClientGoneError,
    ControlRequest,
    ControlResponse,
    Receive,
    Scope,
    Send,
    Stream,
    render_error,
)
from sandkeeper.engine.control.sandboxes import SandboxRoutes
from sandkeeper.engine.control.secrets import SecretRoutes
from sandkeeper.engine.control.tags import TagRoutes
from sandkeeper.engine.control.templates import TemplateRoutes
from sandkeeper.engine.control.unsupported import LEFT_OUT, LeftOut
from sandkeeper.engine.control.volumes import VolumeRoutes
from sandkeeper.engine.envd.files.download import send_open_file
from sandkeeper.engine.errors import EngineError, MachineError, NoRoomError
from sandkeeper.engine.storage.database import is_full

Handler = Callable[[ControlRequest], Awaitable[ControlResponse]]

_log = logging.getLogger("sandkeeper.engine")


Routes = list[tuple[str, str, Handler]]


def list_routes(sandboxes: SandboxRoutes, templates: TemplateRoutes, events: EventRoutes) -> Routes:
    """Return the routes about these. Where two fit, the one with fewer parameters is meant."""
    return [
        ("POST", "/v2/sandboxes", sandboxes.create_v2),
        ("POST", "/sandboxes", sandboxes.create),
        ("GET", "/v2/sandboxes", sandboxes.list_v2),
        ("GET", "/sandboxes", sandboxes.list_v1),
        ("GET", "/sandboxes/metrics", sandboxes.metrics_of_many),
        ("GET", "/sandboxes/{id}", sandboxes.get),
        ("DELETE", "/sandboxes/{id}", sandboxes.kill),
        ("POST", "/sandboxes/{id}/pause", sandboxes.pause),
        ("POST", "/v2/sandboxes/{id}/connect", sandboxes.connect_v2),
        ("POST", "/sandboxes/{id}/connect", sandboxes.connect),
        ("POST", "/sandboxes/{id}/resume", sandboxes.resume),
        ("POST", "/sandboxes/{id}/timeout", sandboxes.set_timeout),
        ("POST", "/sandboxes/{id}/refreshes", sandboxes.refresh),
        ("GET", "/sandboxes/{id}/metrics", sandboxes.metrics),
        ("GET", "/sandboxes/{id}/fingerprint", sandboxes.fingerprint),
        ("GET", "/sandboxes/{id}/logs", sandboxes.logs_v1),
        ("GET", "/v2/sandboxes/{id}/logs", sandboxes.logs_v2),
        ("POST", "/sandboxes/{id}/snapshots", sandboxes.snapshot),
        ("POST", "/sandboxes/{id}/fork", sandboxes.fork),
        ("PUT", "/sandboxes/{id}/network", sandboxes.set_network),
        ("GET", "/snapshots", sandboxes.list_snapshots),
        ("POST", "/v3/templates", templates.request_build),
        ("GET", "/templates/{id}/files/{hash}", templates.offer_upload),
        ("PUT", "/templates/{id}/files/{hash}", templates.upload),
        ("POST", "/v2/templates/{id}/builds/{build}", templates.start_build),
        ("GET", "/templates/{id}/builds/{build}/status", templates.build_status),
        ("GET", "/templates/{id}/builds/{build}/logs", templates.build_logs),
        ("GET", "/templates", templates.list_v1),
        ("GET", "/v2/templates", templates.list_v2),
        ("GET", "/default-templates", templates.list_default),
        ("GET", "/templates/{id}", templates.get),
        ("PATCH", "/templates/{id}", templates.patch),
        ("PATCH", "/v2/templates/{id}", templates.patch),
        ("DELETE", "/templates/{id}", templates.delete),
        ("GET", "/templates/aliases/{alias}", templates.find_alias),
        ("POST", "/templates/tags", templates.assign_tags),
        ("DELETE", "/templates/tags", templates.delete_tags),
        ("GET", "/events/sandboxes", events.list_events),
        ("GET", "/events/sandboxes/{id}", events.list_events),
        ("POST", "/events/webhooks", events.register),
        ("GET", "/events/webhooks", events.list_webhooks),
        ("GET", "/events/webhooks/{id}", events.get_webhook),
        ("PATCH", "/events/webhooks/{id}", events.update),
        ("DELETE", "/events/webhooks/{id}", events.unregister),
        ("GET", "/events/webhooks/{id}/deliveries", events.deliveries),
        ("GET", "/events/webhooks/{id}/stats", events.stats),
    ]


def list_other_routes(
    tags: TagRoutes, account: AccountRoutes, secrets: SecretRoutes, volumes: VolumeRoutes
) -> Routes:
    """Return the routes about everything else, and those that are left out."""
    return [
        ("GET", "/templates/{id}/tags", tags.list),
        ("GET", "/templates/{id}/tags/count", tags.count),
        ("GET", "/templates/{id}/tags/exists", tags.exists),
        ("GET", "/templates/{id}/tags/groups", tags.groups),
        ("GET", "/templates/{id}/tags/{tag}/assignments", tags.assignments),
        ("GET", "/teams", account.list_teams),
        ("GET", "/teams/{id}/metrics", account.metrics),
        ("GET", "/teams/{id}/metrics/max", account.max_metric),
        ("GET", "/api-keys", account.list_keys),
        ("GET", "/secrets", secrets.list),
        ("POST", "/secrets", secrets.create),
        ("GET", "/secrets/{id}", secrets.get),
        ("POST", "/secrets/{id}", secrets.update),
        ("DELETE", "/secrets/{id}", secrets.delete),
        ("GET", "/volumes", volumes.list),
        ("POST", "/volumes", volumes.create),
        ("GET", "/volumes/{id}", volumes.get),
        ("DELETE", "/volumes/{id}", volumes.delete),
        ("GET", "/volumecontent/{id}/path", volumes.describe),
        ("PATCH", "/volumecontent/{id}/path", volumes.change),
        ("DELETE", "/volumecontent/{id}/path", volumes.remove),
        ("GET", "/volumecontent/{id}/dir", volumes.list_folder),
        ("POST", "/volumecontent/{id}/dir", volumes.make_folder),
        ("GET", "/volumecontent/{id}/file", volumes.read),
        ("PUT", "/volumecontent/{id}/file", volumes.write),
        *((method, path, LeftOut(*why)) for (method, path), why in LEFT_OUT.items()),
    ]


class ControlPlane:
    """The control plane as an ASGI application."""

    def __init__(self, routes: Routes, key: str) -> None:
        self._key = key.encode()
        self._routes: dict[int, list[tuple[str, list[str], Handler]]] = {}
        for method, pattern, handler in sorted(routes, key=lambda route: route[1].count("{")):
            parts = pattern.strip("/").split("/")
            self._routes.setdefault(len(parts), []).append((method, parts, handler))
        self.roots = frozenset(pattern.split("/")[1] for _, pattern, _ in routes)
        """The first words of all paths."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            reply = await self._answer(scope, receive)
        except ClientGoneError:
            return
        except EngineError as error:
            reply = render_error(error)
        except Exception as error:  # noqa: BLE001 - a failed handler must still get a response
            _log.exception("a request broke: %s %s", scope["method"], scope["path"])
            fault = MachineError("the engine failed; see its log")
            if is_full(error):
                fault = NoRoomError("the engine's disk is full")
            reply = render_error(fault)
        await _send(send, reply)

    async def _answer(self, scope: Scope, receive: Receive) -> ControlResponse:
        if scope["path"] == "/health":
            return ControlResponse(200, {"status": "ready"})
        # Split before decoding: a template's name may hold an encoded slash.
        raw = scope.get("raw_path") or scope["path"].encode()
        parts = [
            unquote(part) for part in raw.decode("latin-1").partition("?")[0].strip("/").split("/")
        ]
        handler, params, methods = self._find(scope["method"], parts)
        if not self._is_allowed(scope, handler):
            return ControlResponse(
                401, {"code": 401, "message": "Unauthorized, please check your API key"}
            )
        if handler is None:
            if methods:
                return ControlResponse(
                    405,
                    {"code": 405, "message": "this method is not allowed here"},
                    {"allow": ", ".join(sorted(methods))},
                )
            return ControlResponse(
                404, {"code": 404, "message": f"there is no {scope['path']} here"}
            )
        return await handler(ControlRequest(scope, receive, params))

    def _find(
        self, method: str, parts: list[str]
    ) -> tuple[Handler | None, dict[str, str], set[str]]:
        """Find the handler; the last value is the methods that the path has."""
        methods: set[str] = set()
        for wanted, pattern, handler in self._routes.get(len(parts), []):
            params = {}
            for expected, part in zip(pattern, parts, strict=True):
                if expected.startswith("{"):
                    params[expected[1:-1]] = part
                elif expected != part:
                    break
            else:
                if not isinstance(handler, LeftOut):
                    methods.add(wanted)
                if wanted == method:
                    return handler, params, methods
        return None, {}, methods

    def _is_allowed(self, scope: Scope, handler: Handler | None) -> bool:
        if getattr(handler, "authorizes_itself", False):
            return True
        given = b""
        for name, value in scope["headers"]:
            if name == b"x-api-key":
                given = value
                break
            if name == b"authorization" and value[:7].lower() == b"bearer ":
                given = value[7:].strip()
        return hmac.compare_digest(given, self._key)


async def _send(send: Send, reply: ControlResponse) -> None:
    if isinstance(reply.body, Stream):
        await _send_stream(send, reply.status, reply.body.descriptor)
        return
    body = b"" if reply.body is None else orjson.dumps(reply.body)
    headers = [(k.encode(), v.encode("latin-1")) for k, v in reply.headers.items()]
    if reply.body is not None:
        headers.append((b"content-type", b"application/json"))
    if reply.status != 204:
        headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _send_stream(send: Send, status: int, descriptor: int) -> None:
    try:
        await send_open_file(send, status, descriptor)
    finally:
        os.close(descriptor)
