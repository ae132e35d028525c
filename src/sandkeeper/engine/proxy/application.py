"""Any TCP port of a sandbox, over HTTP and WebSocket.

The request goes to the sandbox through a socket made inside its network, so nothing in the sandbox
has to listen on more than its own loopback.
"""

from __future__ import annotations

import asyncio
import hmac
import socket
from collections.abc import Awaitable, Callable, Collection, Mapping

from sandkeeper.engine.http.active_requests import ActiveRequest, ActiveRequests
from sandkeeper.engine.http.responses import NOT_FOUND, PORT_CLOSED, send_json
from sandkeeper.engine.proxy.credentials import Credentials
from sandkeeper.engine.proxy.headers import build_request_fields
from sandkeeper.engine.proxy.pages import send_page
from sandkeeper.engine.runtime.contract import (
    NotAliveError,
    NothingListensError,
    Runtime,
    RuntimeFaultError,
)
from sandkeeper.engine.sandboxes.routing import (
    RunningSandbox,
    SandboxLookup,
    SandboxNotRoutableError,
)
from sandkeeper.relay.asgi import Receive, Scope, Send, header, wants_page
from sandkeeper.relay.headers import UnsafeHeadError
from sandkeeper.relay.request import relay
from sandkeeper.relay.upstream import Upstream, UpstreamClosedError
from sandkeeper.relay.web_socket import relay_socket

Starters = Mapping[int, Callable[[RunningSandbox], Awaitable[bool]]]

REFUSED = "The traffic access token is missing or invalid"


class PortProxy:
    """Serves the port named by `scope["state"]` (`sandbox_id` and `port`).

    Servers inside must see neither `key`, the engine's own, nor keys with one of `key_digests`.
    `starters` start, by port, a program that should listen there and does not; they return whether
    it does now.
    """

    def __init__(
        self,
        runtime: Runtime,
        sandboxes: SandboxLookup,
        requests: ActiveRequests,
        *,
        key: str,
        key_digests: Collection[str] = (),
        starters: Starters | None = None,
    ) -> None:
        self._runtime = runtime
        self._sandboxes = sandboxes
        self._starters = starters or {}
        self._credentials = Credentials(key, sandboxes, key_digests)
        self._requests = requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sandbox_id: str = scope["state"]["sandbox_id"]
        token = header(scope, b"e2b-traffic-access-token")
        try:
            sandbox = await self._sandboxes.get_ready(sandbox_id, lambda it: _may_enter(it, token))
        except SandboxNotRoutableError:
            await _answer(scope, send, 502, NOT_FOUND)
            return
        if not _may_enter(sandbox, token):
            await _answer(scope, send, 403, REFUSED)
            return
        if self._sandboxes.find(sandbox_id) is None:
            await _answer(scope, send, 502, NOT_FOUND)
            return
        task = asyncio.current_task()
        assert task is not None
        request = ActiveRequest(sandbox=sandbox, scope=scope, task=task, sandboxes=self._sandboxes)

        async def pass_on(scope: Scope, receive: Receive, send: Send) -> None:
            await self._pass_on(request, scope, receive, send)

        await self._requests.serve(request, pass_on, receive, send)

    async def _pass_on(
        self, request: ActiveRequest, scope: Scope, receive: Receive, send: Send
    ) -> None:
        fields = build_request_fields(scope, request.sandbox, self._credentials)
        try:
            upstream = await self._dial(request)
        except NothingListensError:
            await _answer(scope, send, 502, PORT_CLOSED, port=scope["state"]["port"])
            return
        except NotAliveError:
            await _answer(scope, send, 502, NOT_FOUND)
            return
        except RuntimeFaultError as fault:
            await _answer(scope, send, 502, f"The port cannot be reached: {fault}")
            return
        pass_both_ways = relay_socket if scope["type"] == "websocket" else relay
        try:
            await pass_both_ways(Upstream(upstream), fields, scope, receive, send)
        except UpstreamClosedError:
            message = "The server inside the sandbox closed the connection without an answer"
            await _answer(scope, send, 502, message, port=scope["state"]["port"])
        except UnsafeHeadError as unsafe:
            await _answer(scope, send, 400, f"The request cannot be passed on: {unsafe}")

    async def _dial(self, request: ActiveRequest) -> socket.socket:
        port = request.scope["state"]["port"]
        try:
            return await self._runtime.dial(request.sandbox_id, port)
        except NothingListensError:
            start = self._starters.get(port)
            if start is None or not await start(request.sandbox):
                raise
            return await self._runtime.dial(request.sandbox_id, port)


def _may_enter(sandbox: RunningSandbox, token: str | None) -> bool:
    if sandbox.traffic_token is None:
        return True
    return token is not None and hmac.compare_digest(sandbox.traffic_token.encode(), token.encode())


async def _answer(
    scope: Scope, send: Send, status: int, message: str, *, port: int | None = None
) -> None:
    """Send the problem as a page to browsers and as JSON to other clients."""
    if scope["type"] == "websocket":
        # Closing before accepting is how a server refuses: the client sees a 403.
        await send({"type": "websocket.close", "code": 1013, "reason": message[:120]})
    elif wants_page(scope):
        await send_page(send, status, scope["state"]["sandbox_id"], message, port)
    else:
        body: dict[str, str | int] = {
            "sandboxId": scope["state"]["sandbox_id"],
            "message": message,
            "code": status,
        }
        if port is not None:
            body["port"] = port
        await send_json(send, status, body)
