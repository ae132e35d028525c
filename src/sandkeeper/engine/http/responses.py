"""Complete responses in E2B's format, for everything that is not Connect."""

from __future__ import annotations

from collections.abc import Iterable

import orjson

from sandkeeper.relay.asgi import Send

Headers = Iterable[tuple[bytes, bytes]]

NOT_FOUND = "The sandbox was not found"
"""Clients search for this text to tell a stopped sandbox from a busy one."""

PORT_CLOSED = "The sandbox is running but port is not open"

UNAUTHORISED = (
    "unauthorized access, please provide a valid access token or method signing if supported"
)


class EnvdRefusedError(Exception):
    """A request that is refused with a status and a message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


async def send_bytes(send: Send, status: int, body: bytes, headers: Headers = ()) -> None:
    """Send one complete response."""
    lines = [*headers, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": lines})
    await send({"type": "http.response.body", "body": body})


async def send_json(send: Send, status: int, body: object) -> None:
    """Send one complete JSON response."""
    await send_bytes(send, status, orjson.dumps(body), ((b"content-type", b"application/json"),))


async def send_refusal(send: Send, refusal: EnvdRefusedError) -> None:
    """Send a refusal in the format of envd's REST routes."""
    await send_json(send, refusal.status, {"code": refusal.status, "message": refusal.message})


async def send_not_found(send: Send, sandbox_id: str) -> None:
    """Send that no sandbox with this id takes traffic."""
    await send_json(send, 502, {"sandboxId": sandbox_id, "message": NOT_FOUND, "code": 502})


async def send_nothing(send: Send) -> None:
    """Send 204 without a body."""
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})
