"""The ASGI application: the URL table, by FastAPI where it is cold and bare where it is hot."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Mount, Route, Router
from starlette.types import ASGIApp

from sandkeeper.api.deps import ApiContext, guard
from sandkeeper.api.errors import (
    MEDIA_TYPE,
    MalformedRequestError,
    MethodNotAllowedError,
    RouteNotFoundError,
    render_error,
)
from sandkeeper.api.middleware import RequestMiddleware
from sandkeeper.api.routes import LARGE_BODIES, ROUTES, RouteEntry
from sandkeeper.api.schemas import sandboxes as sandbox_schemas
from sandkeeper.api.status.routes import HotRoute
from sandkeeper.domain.errors import InvalidRequestError, SandkeeperError
from sandkeeper.domain.tasks import TaskName
from sandkeeper.integrations.inngest import offer_enforcer

PROBLEM: dict[int | str, dict[str, Any]] = {
    "default": {
        "description": "Any error, in one shape.",
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
}


def create_asgi_app(context: ApiContext, pages: Sequence[BaseRoute] = ()) -> ASGIApp:
    """The whole application around one context; `pages` are the web part's own routes."""
    api = make_api()
    api.state.context = context
    if context.deps.settings.inngest:
        offer_enforcer(api, lambda: context.scheduler.run_now(TaskName.IDLE_SWEEP))
    hot = [
        Route(entry.path, handler(context), include_in_schema=False)
        for entry in ROUTES
        if (handler := _hot(entry)) is not None
    ]
    router = Router([*hot, *pages, Mount("", api)], redirect_slashes=False)
    return RequestMiddleware(
        router,
        metrics=context.deps.metrics,
        origins=context.deps.settings.allowed_origins,
        large_bodies=LARGE_BODIES,
    )


def make_api() -> FastAPI:
    """The table as FastAPI knows it: it serves the cold routes and describes them all."""
    api = FastAPI(
        title="Sandkeeper",
        version=version("sandkeeper"),
        description="Knows every sandbox's true state, puts the idle to sleep, wakes the needed.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    for entry in ROUTES:
        api.router.routes.append(_serve(entry) if _hot(entry) is None else _describe(entry))
    api.add_exception_handler(SandkeeperError, _respond)
    api.add_exception_handler(Exception, _respond)
    api.add_exception_handler(RequestValidationError, _respond_invalid)
    api.add_exception_handler(HTTPException, _respond_http)
    describe = api.openapi

    def openapi() -> dict[str, Any]:
        document = describe()
        parts = document.setdefault("components", {})
        parts.setdefault("schemas", {}).setdefault("Problem", _problem_schema())
        parts["securitySchemes"] = {
            "bearer": {"type": "http", "scheme": "bearer", "description": "A key or client token."}
        }
        return document

    api.openapi = openapi  # type: ignore[method-assign]  # FastAPI's own way to extend it.
    return api


def _hot(entry: RouteEntry) -> type[HotRoute] | None:
    """The entry's handler if it is bare ASGI."""
    handler = entry.handler
    return handler if isinstance(handler, type) and issubclass(handler, HotRoute) else None


def _serve(entry: RouteEntry) -> APIRoute:
    return APIRoute(
        entry.path,
        entry.handler,
        methods=[entry.method],
        status_code=entry.status,
        dependencies=[Depends(guard(entry.access))],
        **_openapi_fields(entry),
    )


def _describe(entry: RouteEntry) -> APIRoute:
    """A hot route as the OpenAPI document shows it; requests never come here."""

    async def described(project: str = "") -> None:
        """Never called: the router before this one has the path."""
        raise RouteNotFoundError(project)

    async def described_whole() -> None:
        """Never called: the router before this one has the path."""
        raise RouteNotFoundError

    extra: dict[str, Any] = {}
    if entry.body is not None:
        schema = entry.body.model_json_schema(by_alias=True)
        extra = {"requestBody": {"content": {"application/json": {"schema": schema}}}}
    words = _openapi_fields(entry)
    words["openapi_extra"] |= extra
    return APIRoute(
        entry.path,
        described if "{project}" in entry.path else described_whole,
        methods=[entry.method],
        status_code=entry.status,
        **words,
    )


def _openapi_fields(entry: RouteEntry) -> dict[str, Any]:
    secured = entry.access.value not in {"public", "signed"}
    name = entry.handler.__name__
    return {
        "name": name,
        "operation_id": _operation_id(entry),
        "summary": (entry.handler.__doc__ or "").strip().splitlines()[0],
        "description": f"Access: {entry.access.value}.",
        "openapi_extra": {"security": [{"bearer": []}] if secured else []},
        **_openapi_responses(entry),
    }


def _operation_id(entry: RouteEntry) -> str:
    """Method and path as one word, which a generated client makes its function's name from."""
    words = re.findall(r"[a-z0-9_-]+", entry.path.removeprefix("/api").replace(":path", ""))
    return "_".join([entry.method.lower(), *words]).replace("-", "_")


def _openapi_responses(entry: RouteEntry) -> dict[str, Any]:
    """What a call answers with when it worked, and the one shape of all errors."""
    if isinstance(entry.answer, str):
        done = {entry.status: {"content": {entry.answer: {"schema": {"type": "string"}}}}}
        return {"responses": PROBLEM | done, "response_class": Response, "response_model": None}
    return {
        "responses": PROBLEM | _openapi_already_done(entry),
        "response_class": Response if entry.answer is None else JSONResponse,
        "response_model": entry.answer,
    }


def _openapi_already_done(entry: RouteEntry) -> dict[int | str, dict[str, Any]]:
    """What is made or begun by a call may be there already, or over at once: then it is 200."""
    if entry.status not in {201, 202} or entry.answer is None:
        return {}
    return {200: {"model": entry.answer, "description": "There already, or done."}}


def _problem_schema() -> dict[str, Any]:
    return sandbox_schemas.Problem.model_json_schema(by_alias=True)


async def _respond(request: Request, error: Exception) -> Response:
    answer = render_error(error, str(request.state.request_id))
    return Response(answer.body, answer.status, dict(answer.headers))


async def _respond_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    found = [
        {"field": ".".join(str(part) for part in item["loc"][1:]), "problem": item["msg"]}
        for item in error.errors()
    ]
    if any(item["type"] == "json_invalid" for item in error.errors()):
        return await _respond(request, MalformedRequestError("The body is not JSON."))
    text = "; ".join(f"{item['field'] or 'body'}: {item['problem']}" for item in found[:5])
    return await _respond(request, InvalidRequestError(text, errors=found))


async def _respond_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if isinstance(error.__cause__, SandkeeperError):  # The front stopped reading the body.
        return await _respond(request, error.__cause__)
    if error.status_code == 404:
        return await _respond(request, RouteNotFoundError())
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        return await _respond(request, MethodNotAllowedError(allowed=allowed))
    return await _respond(request, MalformedRequestError(str(error.detail)))
