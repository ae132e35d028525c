"""The ASGI application: the URL table, served by FastAPI but for the routes called most."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from importlib.metadata import version
from typing import Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match, Route, Router, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from sandkeeper.api.auth import Access
from sandkeeper.api.deps import ApiContext, get_context, get_owner, guard
from sandkeeper.api.errors import (
    MEDIA_TYPE,
    log_failure,
    make_validation_error,
    render_error,
)
from sandkeeper.api.inngest import offer_enforcer
from sandkeeper.api.middleware import RequestMiddleware
from sandkeeper.api.request_spans import RequestSpans
from sandkeeper.api.routes import EVENTS, LARGE_BODIES, ROUTES, TERMINAL, VERBS, RouteEntry
from sandkeeper.api.schemas.base import PlainModel, Problem
from sandkeeper.api.status.routes import StatusRoute
from sandkeeper.api.terminal import TerminalSocket
from sandkeeper.api.wire_errors import (
    MalformedRequestError,
    MethodNotAllowedError,
    RouteNotFoundError,
)
from sandkeeper.common.tracing import TRACING
from sandkeeper.domain.errors import SandkeeperError
from sandkeeper.domain.tasks import TaskName

PROBLEM: dict[int | str, dict[str, Any]] = {
    "default": {
        "description": "Any error, in one shape.",
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
}


def create_asgi_app(context: ApiContext, pages: Sequence[BaseRoute] = ()) -> ASGIApp:
    """Return the whole application over one context; `pages` are the routes of the web pages."""
    api = make_api()
    api.state.context = context
    if context.deps.settings.inngest:
        offer_enforcer(api, lambda: context.scheduler.run_now(TaskName.IDLE_SWEEP))
    plain = [_plain_route(entry, context) for entry in ROUTES if entry.is_plain]
    terminal = WebSocketRoute(TERMINAL, lambda socket: TerminalSocket(context, socket).serve())
    router = Router([*plain, terminal, *pages, EveryPath(api)], redirect_slashes=False)

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = api  # Plain routes find the context where FastAPI's find it.
        await router(scope, receive, send)

    served = RequestMiddleware(
        serve,
        metrics=context.deps.metrics,
        origins=context.deps.settings.allowed_origins,
        large_bodies=LARGE_BODIES,
    )
    return RequestSpans(served) if TRACING.is_on else served


class EveryPath(BaseRoute):
    """Hand every path and method to an application; Starlette's `Mount` passes no line breaks."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    def matches(self, scope: Scope) -> tuple[Match, Scope]:  # noqa: ARG002
        """Match."""
        return Match.FULL, {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand it on."""
        await self._app(scope, receive, send)


def make_api() -> FastAPI:
    """Return the table as FastAPI knows it: it describes all routes, and serves most of them."""
    PlainModel.build_all()
    api = FastAPI(
        title="Sandkeeper",
        version=version("sandkeeper"),
        description="Knows every sandbox's true state, puts the idle to sleep, wakes the needed.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    for entry in ROUTES:
        api.router.routes.append(_api_route(entry))
    api.add_exception_handler(SandkeeperError, _respond)
    api.add_exception_handler(Exception, _respond)
    api.add_exception_handler(RequestValidationError, _respond_invalid)
    api.add_exception_handler(HTTPException, _respond_http)
    describe = api.openapi

    def openapi() -> dict[str, Any]:
        document = describe()
        parts = document.setdefault("components", {})
        parts["schemas"] = _problem_schemas() | parts.get("schemas", {})
        parts["securitySchemes"] = {
            "bearer": {"type": "http", "scheme": "bearer", "description": "A key or client token."}
        }
        return document

    api.openapi = openapi  # type: ignore[method-assign]  # FastAPI's own way to extend it.
    return api


def _plain_route(entry: RouteEntry, context: ApiContext) -> Route:
    """Return a route without FastAPI. Another method than its own is left to FastAPI's 405."""
    if entry.handler is StatusRoute:
        route = Route(entry.path, StatusRoute(context))
    else:
        route = Route(entry.path, _guarded(entry))
    # Starlette would add HEAD to GET, and a HEAD of a stream does not end.
    route.methods = {entry.method}
    return route


def _guarded(entry: RouteEntry) -> Callable[[Request], Awaitable[Response]]:
    check = guard(entry.access, is_stream=entry.answer == EVENTS)

    async def endpoint(request: Request) -> Response:
        await check(request)
        response: Response = await entry.handler(request)
        return response

    return endpoint


class GuardedRoute(APIRoute):
    """FastAPI's route, which admits the caller before it reads the body.

    The answer of a route that `settles` waits until every replica shows what it changed.
    """

    def __init__(
        self,
        path: str,
        endpoint: Callable[..., Any],
        *,
        access: Access,
        settles: bool,
        **fields: Any,
    ) -> None:
        self._check = guard(access)
        self._settles = settles
        super().__init__(path, endpoint, **fields)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return FastAPI's handler behind the check."""
        handle = super().get_route_handler()

        async def check_then_handle(request: Request) -> Response:
            await self._check(request)
            try:
                return await handle(request)
            finally:
                if self._settles:
                    await get_context(request).services.feed.wait_until_shown()

        return check_then_handle


def _api_route(entry: RouteEntry) -> GuardedRoute:
    """Return FastAPI's route of an entry; of a plain entry it is only the description."""
    described = [Depends(get_owner)] if entry.is_plain and "{project}" in entry.path else []
    return GuardedRoute(
        entry.path,
        _served_before if entry.is_plain else entry.handler,
        access=entry.access,
        settles=entry.handler in VERBS,
        methods=[entry.method],
        status_code=entry.status,
        dependencies=described,
        **_openapi_fields(entry),
    )


async def _served_before() -> None:
    """Raise: the plain route has the path, so this is never called."""
    raise RouteNotFoundError


def _openapi_fields(entry: RouteEntry) -> dict[str, Any]:
    secured = entry.access not in {Access.PUBLIC, Access.SIGNED}
    optional: list[dict[str, list[str]]] = [{}] if entry.access is Access.MONITOR else []
    extra: dict[str, Any] = {"security": [*optional, {"bearer": []}] if secured else []}
    if entry.body is not None:
        schema = entry.body.model_json_schema(by_alias=True)
        extra["requestBody"] = {"content": {"application/json": {"schema": schema}}}
    return {
        "name": entry.handler.__name__,
        "operation_id": _operation_id(entry),
        "summary": (entry.handler.__doc__ or "").strip().splitlines()[0],
        "description": f"Access: {entry.access.value}.",
        "openapi_extra": extra,
        **_openapi_responses(entry),
    }


def _operation_id(entry: RouteEntry) -> str:
    """Join method and path to one word, from which a generated client names its function."""
    words = re.findall(r"[a-z0-9_-]+", entry.path.removeprefix("/api").replace(":path", ""))
    return "_".join([entry.method.lower(), *words]).replace("-", "_")


def _openapi_responses(entry: RouteEntry) -> dict[str, Any]:
    """Return the schema of a successful answer, and the one schema of all errors."""
    if isinstance(entry.answer, str):
        done = {entry.status: {"content": {entry.answer: {"schema": {"type": "string"}}}}}
        return {"responses": PROBLEM | done, "response_class": Response, "response_model": None}
    return {
        "responses": PROBLEM | _openapi_already_done(entry),
        "response_class": Response if entry.answer is None else JSONResponse,
        "response_model": entry.answer,
    }


def _openapi_already_done(entry: RouteEntry) -> dict[int | str, dict[str, Any]]:
    """Return the answer 200 of a call that found its work already done."""
    if entry.status not in {201, 202} or entry.answer is None:
        return {}
    return {200: {"model": entry.answer, "description": "There already, or done."}}


def _problem_schemas() -> dict[str, Any]:
    """Return the schema of all errors and those it refers to, where generators look for them."""
    schema = Problem.model_json_schema(by_alias=True, ref_template="#/components/schemas/{model}")
    return {**schema.pop("$defs", {}), "Problem": schema}


async def _respond(request: Request, error: Exception) -> Response:
    answer = render_error(error, str(request.state.request_id))
    if isinstance(error, SandkeeperError):  # Others are raised again, and the middleware logs them.
        log_failure(error, answer, request.scope)
    return Response(answer.body, answer.status, dict(answer.headers))


async def _respond_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    # Each location begins with where the value was sent: body, query, path.
    return await _respond(request, make_validation_error(error.errors(), skip=1))


async def _respond_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if isinstance(error.__cause__, SandkeeperError):  # The front stopped reading the body.
        return await _respond(request, error.__cause__)
    if error.status_code == 404:
        return await _respond(request, RouteNotFoundError())
    if error.status_code == 405:
        return await _respond(request, MethodNotAllowedError(allowed=_allowed_methods(request)))
    return await _respond(request, MalformedRequestError(str(error.detail)))


def _allowed_methods(request: Request) -> str:
    """Return every method of the path; Starlette names those of the first route only."""
    routes = [route for route in request.app.router.routes if isinstance(route, Route)]
    found = next(one for one in routes if one.matches(request.scope)[0] is not Match.NONE)
    methods = {method for one in routes if one.path == found.path for method in one.methods or ()}
    return ", ".join(sorted(methods))
