"""Parts of E2B's API that this engine is told not to offer.

Other servers that speak E2B's API lack some of them: with this, a client is tested against such a
server on one machine.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from sandkeeper.engine.control.http import ControlRequest, ControlResponse
from sandkeeper.engine.control.routes import Handler

PATHS: Final = {
    "pause": ("/sandboxes/{id}/pause",),
    "events": ("/events/sandboxes", "/events/sandboxes/{id}"),
    "webhooks": ("/events/webhooks",),
    "metrics": ("/sandboxes/metrics", "/sandboxes/{id}/metrics"),
    "timeout": ("/sandboxes/{id}/timeout", "/sandboxes/{id}/refreshes"),
}
"""The routes of each part; all below `/events/webhooks` belong to webhooks."""


def switch_off(
    routes: list[tuple[str, str, Handler]], parts: Collection[str]
) -> list[tuple[str, str, Handler]]:
    """Return the routes; those of the named parts answer 501."""
    off = tuple(path for part in parts for path in PATHS[part])
    return [
        (method, path, _refuse if path in off or _is_below(path, off) else handler)
        for method, path, handler in routes
    ]


def _is_below(path: str, off: tuple[str, ...]) -> bool:
    return "/events/webhooks" in off and path.startswith("/events/webhooks/")


async def _refuse(_request: ControlRequest) -> ControlResponse:
    return ControlResponse(
        501, {"code": 501, "message": "this engine was started without this part of the API"}
    )
