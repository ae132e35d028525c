"""What applies to every request: a request id, a limit on the body, the error table, plain headers.

It is bare ASGI because the status route's whole budget is a few ten microseconds.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Collection

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sandkeeper.api.errors import (
    ErrorResponse,
    log_failure,
    render_error,
)
from sandkeeper.api.wire_errors import MalformedRequestError, RouteNotFoundError
from sandkeeper.domain.errors import PayloadTooLargeError
from sandkeeper.services.observe.webhooks import BODY_MAX as WEBHOOK_BYTES_MAX
from sandkeeper.telemetry import Metrics, request_scope

# No JSON body of ours is larger. Higher lets one caller fill memory; lower refuses a sandbox with
# many environment variables.
BODY_BYTES_MAX = 1024 * 1024
WEBSOCKETS = re.compile(r"/api/sandboxes/[^/]+/terminal")
NO_WEBSOCKET = "Only a sandbox's terminal is a WebSocket; live streams are `GET …/events`."
OPEN_BODIES = frozenset({"/api/login", "/api/logout", "/api/webhooks/e2b"})
# For the whole of such a body. Higher lets a stranger hold a request open, byte by byte.
OPEN_BODY_TIMEOUT_S = 20.0
REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
# Files hold no data; they let every origin read them, and say so themselves.
OPEN_TO_ALL = ("/static/", "/embed/")
CORS_HEADERS = b"authorization, content-type, idempotency-key, if-none-match, last-event-id"


class RequestMiddleware:
    """Wraps the whole application.

    `origins` are the web origins whose pages may read our answers; they carry a token, never the
    cookie, so credentials are not allowed across origins.
    """

    def __init__(
        self,
        inner: ASGIApp,
        *,
        metrics: Metrics,
        origins: Collection[str] = (),
        large_bodies: re.Pattern[str] | None = None,
    ) -> None:
        self._inner = inner
        self._requests = metrics.requests
        self._durations = metrics.http_duration
        self._origins = {origin.encode() for origin in origins}
        self._large_bodies = large_bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            is_socket = scope["type"] == "websocket"
            await (self._serve_websocket if is_socket else self._inner)(scope, receive, send)
            return
        headers = dict(scope["headers"])
        asked_id = headers.get(b"x-request-id", b"")
        request_id = asked_id if REQUEST_ID.fullmatch(asked_id) else secrets.token_hex(8).encode()
        extra = [(b"x-request-id", request_id), (b"x-content-type-options", b"nosniff")]
        origin = headers.get(b"origin")
        if origin is not None and self._origins and not scope["path"].startswith(OPEN_TO_ALL):
            extra += self._cross_origin(origin)
            if scope["method"] == "OPTIONS" and b"access-control-request-method" in headers:
                await _answer_preflight(send, extra)
                return
        started = ended = False
        arrived_s = time.perf_counter()

        async def send_more(message: Message) -> None:
            nonlocal started, ended
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message["headers"], *extra]
                self._count(scope, message["status"], time.perf_counter() - arrived_s)
            else:
                ended = not message.get("more_body", False)
            await send(message)

        scope.setdefault("state", {})["request_id"] = request_id.decode()
        request_scope.set(scope)
        try:
            _check_head(scope)
            limited = self._limit(scope, headers, receive)
            await self._inner(scope, limited, send_more)
        except ClientDisconnect:
            return  # The caller left before its body was read: there is no one to answer.
        except Exception as error:
            if started and not ended:
                raise
            cause = _to_cause(error)
            answer = render_error(cause, request_id.decode())
            log_failure(cause, answer, scope)
            if not started:
                await _send_error(send_more, answer)

    async def _serve_websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a WebSocket; one that is refused before its handshake gets an answer of ours."""
        accepted = False

        async def send_more(message: Message) -> None:
            nonlocal accepted
            accepted = accepted or message["type"] == "websocket.accept"
            await send(message)

        try:
            _check_websocket(scope)
            await self._inner(scope, receive, send_more)
        except Exception as error:
            if accepted:
                raise
            answer = render_error(_to_cause(error), secrets.token_hex(8))
            log_failure(error, answer, {**scope, "method": "GET"})
            await receive()  # Without it, the server would send plain text.
            await _send_error(send, answer, kind="websocket.http")

    def _count(self, scope: Scope, status: int, took_s: float) -> None:
        method = scope["method"] if scope["method"] in METHODS else "OTHER"
        self._requests.labels(method, f"{status // 100}xx").inc()
        # The pattern of the route, not the address: the number of series is that of our routes.
        self._durations.labels(getattr(scope.get("route"), "path", "none")).observe(took_s)

    def _cross_origin(self, origin: bytes) -> list[tuple[bytes, bytes]]:
        if origin not in self._origins and b"*" not in self._origins:
            return [(b"vary", b"Origin")]
        return [
            (b"vary", b"Origin"),
            (b"access-control-allow-origin", origin),
            (b"access-control-expose-headers", b"ETag, Retry-After, X-Request-Id"),
        ]

    def _limit(self, scope: Scope, headers: dict[bytes, bytes], receive: Receive) -> Receive:
        """Refuse a body that says it is too large, and stop reading one that turns out to be."""
        if self._large_bodies is not None and self._large_bodies.fullmatch(scope["path"]):
            # Its handler reads the body piece by piece and has a bound of its own.
            return receive
        # Anyone may send a body there: it is read before its sender is known.
        limit = BODY_BYTES_MAX
        if scope["path"] in OPEN_BODIES:
            limit, receive = WEBHOOK_BYTES_MAX, _read_in_time(receive)
        length = headers.get(b"content-length")
        if length is not None:
            if len(length) > 18 or not length.isdigit() or int(length) > limit:
                raise PayloadTooLargeError(f"The body is larger than {limit} bytes.")
            return receive
        if b"transfer-encoding" not in headers:
            return receive
        total = 0

        async def count() -> Message:
            nonlocal total
            message = await receive()
            if message["type"] == "http.request":
                total += len(message.get("body", b""))
                if total > limit:
                    raise PayloadTooLargeError(f"The body is larger than {limit} bytes.")
            return message

        return count


def _read_in_time(receive: Receive) -> Receive:
    """Return `receive` for a body that must be complete in time."""
    ends_at = time.monotonic() + OPEN_BODY_TIMEOUT_S
    is_complete = False

    async def receive_in_time() -> Message:
        nonlocal is_complete
        if is_complete:  # What follows is the end of the connection, for which anyone may wait.
            return await receive()
        try:
            async with asyncio.timeout(ends_at - time.monotonic()):
                message = await receive()
        except TimeoutError:
            raise MalformedRequestError("The body did not arrive in time.") from None
        is_complete = not message.get("more_body", False)
        return message

    return receive_in_time


METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


def _to_cause(error: Exception) -> Exception:
    """Return the error of ours for a file or page that is not there."""
    is_missing = isinstance(error, HTTPException) and error.status_code == 404
    return RouteNotFoundError() if is_missing else error


def _check_head(scope: Scope) -> None:
    """Refuse two hosts, of which a proxy may believe the other one, and a NUL in the address.

    PostgreSQL cannot store a NUL in a text, and no valid address has one.
    """
    if sum(name == b"host" for name, _ in scope["headers"]) > 1:
        raise MalformedRequestError("The request has more than one Host.")
    if "\x00" in scope["path"] or b"%00" in scope["query_string"]:
        raise MalformedRequestError("No address and no query has a NUL in it.")


def _check_websocket(scope: Scope) -> None:
    _check_head(scope)
    if not WEBSOCKETS.fullmatch(scope["path"]):
        raise MalformedRequestError(NO_WEBSOCKET)


async def _answer_preflight(send: Send, extra: list[tuple[bytes, bytes]]) -> None:
    headers = [
        *extra,
        (b"access-control-allow-methods", b"GET, PUT, POST, PATCH, DELETE"),
        (b"access-control-allow-headers", CORS_HEADERS),
        (b"access-control-max-age", b"600"),
    ]
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


async def _send_error(send: Send, answer: ErrorResponse, *, kind: str = "http") -> None:
    headers = [(name.lower().encode(), text.encode()) for name, text in answer.headers.items()]
    await send({"type": f"{kind}.response.start", "status": answer.status, "headers": headers})
    await send({"type": f"{kind}.response.body", "body": answer.body})
