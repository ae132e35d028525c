"""The keeper's API as a part of the host's FastAPI application.

The host authorizes every request: its `authorize` returns an operator, a viewer, a client of one
project, or None. The keeper's own keys and tokens are not accepted here. Only the provider's signed
webhook needs no authorization.
"""

from __future__ import annotations

import inspect
import secrets
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import replace
from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from sandkeeper.api.app import create_asgi_app
from sandkeeper.api.auth import Access, Authenticator, Caller, Role
from sandkeeper.api.errors import render_error
from sandkeeper.api.routes import ROUTES
from sandkeeper.domain.errors import UnauthenticatedError
from sandkeeper.integrations.embedded import EmbeddedKeeper

Authorize = Callable[[Request], Caller | Awaitable[Caller | None] | None]

METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
SIGNED: Final = frozenset(entry.path for entry in ROUTES if entry.access is Access.SIGNED)
OPERATOR: Final = Caller(Role.OPERATOR)
"""Returned by `authorize` for full access."""
VIEWER: Final = Caller(Role.VIEWER)
"""Returned by `authorize` for read access."""


def client_of(project: str, *, kind: str = "project") -> Caller:
    """Return a caller with access to this owner's sandbox only."""
    return Caller(Role.CLIENT, kind, project)


def make_router(keeper: EmbeddedKeeper, authorize: Authorize) -> APIRouter:
    """Return a router with every route of docs/api.md, to include under any prefix.

    `authorize` may be a coroutine; it returns `OPERATOR`, `VIEWER`, `client_of(project)`, or None
    to refuse, and may raise the host's HTTPException. A request with a cookie and no Authorization
    header may change something only if it comes from a page of the same origin.
    """
    inner = keeper.application.context
    authenticator = HostAuthenticator(
        operator_key=keeper.operator_key, is_revoked=inner.services.tokens.is_revoked
    )
    context = replace(inner, authenticator=authenticator)
    bridge = Bridge(create_asgi_app(context), authorize)
    router = APIRouter()
    router.routes.append(
        Route("/{path:path}", bridge, methods=list(METHODS), include_in_schema=False)
    )
    return router


class HostAuthenticator(Authenticator):
    """Takes the caller from the host, or from a stream token that it issued itself."""

    def identify(self, headers: Mapping[str, str], *, stream_token: str | None = None) -> Caller:
        caller = _caller.get()
        if caller is not None:
            return replace(caller, by_cookie="cookie" in headers and "authorization" not in headers)
        if stream_token is not None:
            return super().identify({}, stream_token=stream_token)
        raise UnauthenticatedError("The host application refused this request.")


class Bridge:
    """Asks the host for authorization, then passes the request to the keeper."""

    def __init__(self, inner: ASGIApp, authorize: Authorize) -> None:
        self._inner = inner
        self._authorize = authorize

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = "/" + scope["path_params"]["path"]
        caller: Caller | None = None
        if path not in SIGNED:
            found = self._authorize(Request(scope, receive))
            caller = await found if inspect.isawaitable(found) else found
            if caller is None and not _has_stream_token(path, scope):
                await _refuse(scope, receive, send)
                return
        inner = {
            **scope,
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "path_params": {},
            "state": {},
        }
        token = _caller.set(caller)
        try:
            await self._inner(inner, receive, send)
        finally:
            _caller.reset(token)


def _has_stream_token(path: str, scope: Scope) -> bool:
    """Return whether this is a live stream with a token; the authenticator checks the token."""
    return path.endswith("/events") and b"token=" in scope["query_string"]


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    error = UnauthenticatedError("The host application refused this request.")
    answer = render_error(error, secrets.token_hex(8))
    await Response(answer.body, answer.status, dict(answer.headers))(scope, receive, send)


_caller: ContextVar[Caller | None] = ContextVar("sandkeeper_caller", default=None)
