"""The types of ASGI, and how a header is read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Fields = list[tuple[bytes, bytes]]


def header(scope: Scope, name: bytes) -> str | None:
    """Return a request header's first value; the name is lower case."""
    for key, value in scope["headers"]:
        if key == name:
            decoded: str = value.decode("latin-1")
            return decoded
    return None


def wants_page(scope: Scope) -> bool:
    """Return whether a person's browser asks, rather than a program."""
    agent = header(scope, b"user-agent") or ""
    return agent.startswith("Mozilla/") and "text/html" in (header(scope, b"accept") or "")
