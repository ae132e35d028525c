"""A span for each request, around everything else; in place only where traces are on."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sandkeeper.common.tracing import TRACING, set_attributes


class RequestSpans:
    """Wraps the whole application."""

    def __init__(self, inner: ASGIApp) -> None:
        self._inner = inner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        method = scope["method"]
        with TRACING.request_span(
            method, dict(scope["headers"]), http__request__method=method
        ) as span:

            async def note_status(message: Message) -> None:
                if span is not None and message["type"] == "http.response.start":
                    route = getattr(scope.get("route"), "path", None)
                    span.update_name(f"{method} {route}" if route else method)
                    set_attributes(
                        span,
                        http__route=route,
                        http__response__status_code=message["status"],
                        sandkeeper__request_id=scope.get("state", {}).get("request_id"),
                        sandkeeper__project=scope.get("path_params", {}).get("project"),
                    )
                await send(message)

            await self._inner(scope, receive, note_status)
