"""The tools of `mcp` over streamable HTTP, on the keeper's own port and with its keys.

`/mcp?user=ada&task=shop` is one conversation. No state is kept between requests, so any replica
answers any of them. A call acts with the key that it came with: what the key may not do, the tool
may not do.

The library is imported with the first request, because it takes longer than the keeper's start.
This module needs the extra `sandkeeper[mcp]` then; `is_available` says whether it is installed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextvars import ContextVar
from http import HTTPStatus
from importlib.util import find_spec

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from sandkeeper.api.errors import render_error
from sandkeeper.client import AsyncSandkeeper
from sandkeeper.client.in_process import InProcessTransport
from sandkeeper.domain.errors import InvalidRequestError, SandkeeperError, UnauthenticatedError

PATH = "/mcp"
# Requests stay inside the process: the name is never looked up.
OWN_URL = "http://127.0.0.1"


def is_available() -> bool:
    """Return whether the extra is installed."""
    return find_spec("mcp") is not None and find_spec("e2b_code_interpreter") is not None


class McpEndpoint:
    """The route, which passes requests on while `serving`."""

    def __init__(self) -> None:
        self._application: ASGIApp | None = None
        self._server: Starlette | None = None
        self._runs: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._conversation: ContextVar[tuple[AsyncSandkeeper, str, str]] = ContextVar(
            "conversation"
        )

    def route(self) -> Route:
        """Return the route of all its methods."""
        return Route(PATH, self, include_in_schema=False)

    @contextlib.asynccontextmanager
    async def serving(self, application: ASGIApp) -> AsyncIterator[None]:
        """Act through this application during the block, then end the calls in progress."""
        self._application = application
        try:
            yield
        finally:
            if self._runs is not None:
                self._runs.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await self._runs

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, if its key is one of the keeper's."""
        request = Request(scope, receive)
        assert self._application is not None, "Requests are served inside `serving`."
        try:
            user_id, task_id = _read_conversation(request)
            transport = InProcessTransport(self._application)
            async with AsyncSandkeeper(OWN_URL, _read_key(request), transport=transport) as keeper:
                await keeper.me()
                server = await self._start()
                self._conversation.set((keeper, user_id, task_id))
                await server(scope, receive, send)
        except SandkeeperError as error:
            answer = render_error(error, str(request.state.request_id))
            headers = dict(answer.headers)
            if answer.status == HTTPStatus.UNAUTHORIZED:
                headers["WWW-Authenticate"] = "Bearer"
            await Response(answer.body, answer.status, headers)(scope, receive, send)

    async def _start(self) -> Starlette:
        """Return the library's application, started with the first request."""
        async with self._starting:
            if self._server is None:
                server = await asyncio.to_thread(self._make_server)
                started = asyncio.Event()
                self._runs = asyncio.create_task(_run(server, started))
                await started.wait()
                self._server = server
            return self._server

    def _make_server(self) -> Starlette:
        from mcp.server.transport_security import TransportSecuritySettings  # noqa: PLC0415

        from sandkeeper.integrations.mcp import (  # noqa: PLC0415
            Conversation,
            SandboxTools,
            make_server,
        )

        server = make_server(SandboxTools(lambda: Conversation(*self._conversation.get())))
        # The library's check of Host and Origin is for servers without keys.
        unchecked = TransportSecuritySettings(enable_dns_rebinding_protection=False)
        return server.streamable_http_app(
            streamable_http_path=PATH, stateless_http=True, transport_security=unchecked
        )


async def _run(server: Starlette, started: asyncio.Event) -> None:
    """Keep the server open: it must be left in the task that entered it."""
    async with server.router.lifespan_context(server):
        started.set()
        await asyncio.Event().wait()


def _read_conversation(request: Request) -> tuple[str, str]:
    named = [request.query_params.get(name, "") for name in ("user", "task")]
    if not all(named):
        raise InvalidRequestError(f"Name the conversation: {PATH}?user=…&task=…")
    return named[0], named[1]


def _read_key(request: Request) -> str:
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        raise UnauthenticatedError("Send a key of the keeper as `Authorization: Bearer …`.")
    return key.strip()
