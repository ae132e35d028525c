"""One request and its answer, and the shape of every error."""

from __future__ import annotations

import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import parse_qs

import orjson
from pydantic import BaseModel, ValidationError

from sandkeeper.engine.errors import (
    BadRequestError,
    ConflictError,
    EngineError,
    IdempotencyError,
    LimitError,
    MachineError,
    NoRoomError,
    NotImplementedHereError,
    ResourceNotFoundError,
)

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_HOST = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?")

Model = TypeVar("Model", bound=BaseModel)
Handled = TypeVar("Handled", bound=Callable[..., Any])

STATUS_OF = {
    BadRequestError: 400,
    ResourceNotFoundError: 404,
    IdempotencyError: 409,
    ConflictError: 409,
    LimitError: 429,
    NoRoomError: 507,
    NotImplementedHereError: 501,
    MachineError: 500,
    EngineError: 500,
}
"""Every error's status; the first class in the error's own line of ancestors decides."""


class BodyTooLargeError(EngineError):
    """The body is longer than anything that belongs here."""


class ClientGoneError(Exception):
    """The client disconnected before the request was complete; no response is possible."""


@dataclass(frozen=True, slots=True)
class ControlResponse:
    """A response; None means no body."""

    status: int
    body: object = None
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stream:
    """A body that is the content of an open file; sending it closes the file."""

    descriptor: int


def authorizes_itself(handler: Handled) -> Handled:
    """Mark a handler that does not need the engine's key: it checks another credential."""
    handler.authorizes_itself = True  # type: ignore[attr-defined]
    return handler


def render_error(error: EngineError) -> ControlResponse:
    """Return E2B's error shape."""
    if isinstance(error, BodyTooLargeError):
        status = 413
    else:
        status = next(STATUS_OF[kind] for kind in type(error).__mro__ if kind in STATUS_OF)
    body: dict[str, Any] = {"code": status, "message": error.message}
    if error.error_code:
        body["error_code"] = error.error_code
    # A full engine does not empty itself: a client that retries would only wait longer.
    return ControlResponse(status, body, {"should-retry": "false"} if status == 429 else {})


class ControlRequest:
    """A request to the control plane. The body is read when a handler asks for it."""

    def __init__(self, scope: Scope, receive: Receive, params: dict[str, str]) -> None:
        self._receive = receive
        self.scope = scope
        self.params = params
        self.headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"]}
        query = scope.get("query_string", b"").decode("latin-1")
        self.query = parse_qs(query, keep_blank_values=True, max_num_fields=100)

    def find_base_url(self, public_url: str = "", domain: str = "") -> str:
        """Return the URL of the engine, for the client: the public one, if it has one.

        The client's Host counts only if it is a name of this machine, with the port of a tunnel
        perhaps; otherwise it is a name in the engine's domain, or the address at which the
        connection arrived.
        """
        if public_url:
            return public_url.rstrip("/")
        host = self.headers.get("host", "")
        found = _HOST.fullmatch(host)
        if not found:
            raise BadRequestError("the Host header is not a name or address with a port")
        address, port = self.scope["server"]
        if not _is_own_name(found[1].lower().strip("[]"), address):
            if domain:
                return f"https://api.{domain}"
            host = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        return f"{self.scope['scheme']}://{host}"

    async def stream(self) -> AsyncIterator[bytes]:
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            yield message.get("body", b"")
            if not message.get("more_body", False):
                return

    async def read(self, limit: int) -> bytes:
        body = bytearray()
        async for chunk in self.stream():
            body += chunk
            if len(body) > limit:
                raise BodyTooLargeError(f"the body is larger than {limit} bytes")
        return bytes(body)

    async def parse(self, model: type[Model], limit: int = 1 << 20) -> Model:
        """Return the body as the model; an empty body is an empty object."""
        body = await self.read(limit)
        try:
            fields = orjson.loads(body) if body.strip() else {}
        except orjson.JSONDecodeError as error:
            raise BadRequestError(f"the body is no JSON: {error}") from error
        try:
            return model.model_validate(fields)
        except ValidationError as error:
            raise BadRequestError(_explain(error)) from error

    def text(self, name: str) -> str | None:
        values = self.query.get(name)
        return values[0] if values else None

    def number(self, name: str, default: int, low: int, high: int | None = None) -> int:
        """Return a whole number of the query; outside the bounds is refused."""
        text = self.text(name)
        if text is None or text == "":
            return default
        try:
            value = int(text)
        except ValueError:
            raise BadRequestError(f"'{name}' must be a whole number") from None
        if value < low or (high is not None and value > high):
            bounds = f"at least {low}" if high is None else f"between {low} and {high}"
            raise BadRequestError(f"'{name}' must be {bounds}")
        return value

    def flag(self, name: str) -> bool:
        text = (self.text(name) or "false").lower()
        if text not in ("true", "false", "1", "0"):
            raise BadRequestError(f"'{name}' must be true or false")
        return text in ("true", "1")


def _is_own_name(name: str, address: str) -> bool:
    """Return whether a name can only mean this machine, whose address is given."""
    own = {address, "localhost", "127.0.0.1", "::1", socket.gethostname().lower()}
    return name in own or name.endswith(".localhost")


_FIELDS_INSTEAD = {
    "network.egressCIDRs": "network.allowOut",
    "envs": "envVars",
    "template": "templateID",
    "timeoutMs": "timeout",
}
"""Fields that other texts name, and E2B's own."""


def _explain(error: ValidationError) -> str:
    """Name each field that is wrong, and why, without repeating what was sent."""
    parts = []
    for fault in error.errors(include_url=False, include_input=False, include_context=False)[:5]:
        place = ".".join(str(part) for part in fault["loc"]) or "body"
        if fault["type"] == "extra_forbidden":
            instead = _FIELDS_INSTEAD.get(place)
            hint = f"; E2B's field for it is '{instead}'" if instead else ""
            parts.append(f"field '{place}' is not supported by this engine{hint}")
        else:
            parts.append(f"field '{place}': {fault['msg']}")
    return "; ".join(parts)
