"""The keeper's API as a part of the host's own FastAPI application.

The host decides who may do what: its `authorize` looks at a request as the host's other routes do,
and says whether this is an operator, a viewer, a client of one project, or nobody. Keys and tokens
of the keeper mean nothing here. Only the provider's signed webhook passes without being asked.
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
"""Whom `authorize` lets do everything."""
VIEWER: Final = Caller(Role.VIEWER)
"""Whom `authorize` lets look at everything."""


def client_of(project: str, *, kind: str = "project") -> Caller:
    """One who may look at this owner's sandbox and act on it, and on no other."""
    return Caller(Role.CLIENT, kind, project)


def make_router(keeper: EmbeddedKeeper, authorize: Authorize) -> APIRouter:
    """Every route of docs/api.md, to be included under a prefix of the host's choice.

    `authorize` may be a coroutine; it gives `OPERATOR`, `VIEWER`, `client_of(project)`, or None for
    nobody, and may raise the host's own HTTPException. A request that came with a cookie and no
    Authorization header changes something only when it comes from a page of the same origin.
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
    """Knows the caller from the host, and from nobody else but a ticket that it issued itself."""

    def identify(self, headers: Mapping[str, str], *, ticket: str | None = None) -> Caller:
        caller = _caller.get()
        if caller is not None:
            return replace(caller, by_cookie="cookie" in headers and "authorization" not in headers)
        if ticket is not None:
            return super().identify({}, ticket=ticket)
        raise UnauthenticatedError("The host application lets nobody in with this request.")


class Bridge:
    """Asks the host, then hands the request to the keeper."""

    def __init__(self, inner: ASGIApp, authorize: Authorize) -> None:
        self._inner = inner
        self._authorize = authorize

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = "/" + scope["path_params"]["path"]
        caller: Caller | None = None
        if path not in SIGNED:
            found = self._authorize(Request(scope, receive))
            caller = await found if inspect.isawaitable(found) else found
            if caller is None and not _has_ticket(path, scope):
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


def _has_ticket(path: str, scope: Scope) -> bool:
    """True for a live stream that brings a ticket; the gate says whether it is a good one."""
    return path.endswith("/events") and b"ticket=" in scope["query_string"]


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    error = UnauthenticatedError("The host application lets nobody in with this request.")
    answer = render_error(error, secrets.token_hex(8))
    await Response(answer.body, answer.status, dict(answer.headers))(scope, receive, send)


_caller: ContextVar[Caller | None] = ContextVar("sandkeeper_caller", default=None)
