"""One runtime with envd and the port proxy on a port of its own, and no control plane.

For tests of traffic. `RunningSandboxTable` takes the place of the lifecycle.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

import uvicorn
from e2b import AsyncSandbox, ConnectionConfig
from packaging.version import Version

from sandkeeper.common.http_protocol import BoundedHttpProtocol
from sandkeeper.engine.envd import Envd
from sandkeeper.engine.http.active_requests import ActiveRequests
from sandkeeper.engine.proxy import PortProxy
from sandkeeper.engine.runtime.bubblewrap.runtime import BubblewrapRuntime
from sandkeeper.engine.runtime.contract import BootPlan, Egress, ResourceLimits
from sandkeeper.engine.sandboxes.routing import RunningSandbox, SandboxNotRoutableError
from support.eventually import eventually
from support.isolation import ISOLATION
from support.process_leaks import end_all

ENVD_PORT = 49983


def bind() -> socket.socket:
    """Return a bound TCP socket on a free loopback port."""
    # With the protocol named, or asyncio would not turn off Nagle's algorithm.
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.bind(("127.0.0.1", 0))
    return bound


@contextlib.asynccontextmanager
async def serve(app: Any, bound: socket.socket) -> AsyncIterator[None]:
    """Serve an ASGI application in this event loop; close the socket at the end."""
    config = uvicorn.Config(
        app,
        interface="asgi3",
        http=BoundedHttpProtocol,
        log_level="error",
        lifespan="off",
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    serving = asyncio.create_task(server.serve(sockets=[bound]))
    await eventually(lambda: server.started)
    try:
        yield
    finally:
        server.should_exit = True
        await serving
        bound.close()


class RunningSandboxTable:
    """Which sandboxes run, in place of the lifecycle. One in `asleep` resumes on traffic."""

    def __init__(self) -> None:
        self.present: dict[str, RunningSandbox] = {}
        self.asleep: dict[str, RunningSandbox] = {}

    def find(self, sandbox_id: str) -> RunningSandbox | None:
        return self.present.get(sandbox_id)

    def running(self) -> Iterable[RunningSandbox]:
        return list(self.present.values())

    async def get_ready(
        self, sandbox_id: str, may_enter: Callable[[RunningSandbox], bool]
    ) -> RunningSandbox:
        if sandbox_id in self.asleep:
            if not may_enter(self.asleep[sandbox_id]):
                return self.asleep[sandbox_id]
            self.present[sandbox_id] = self.asleep.pop(sandbox_id)
        if sandbox_id not in self.present:
            raise SandboxNotRoutableError(sandbox_id)
        return self.present[sandbox_id]


class RuntimeServer:
    """A runtime whose sandboxes are reached over HTTP."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.sandboxes = RunningSandboxTable()
        self.runtime = BubblewrapRuntime(data)

    async def open(self) -> None:
        await self.runtime.start()
        self.requests = ActiveRequests(self.sandboxes)
        self.envd = Envd(self.runtime, self.sandboxes, self.requests)
        self.proxy = PortProxy(self.runtime, self.sandboxes, self.requests, key="e2b_00")
        await self.envd.start()
        self._socket = bind()
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._serving = contextlib.AsyncExitStack()
        await self._serving.enter_async_context(serve(self._route, self._socket))

    async def close(self) -> None:
        """Stop serving; the sandboxes live on."""
        await self._serving.aclose()
        await self.envd.close()
        await self.runtime.close()

    async def reopen(self) -> None:
        """Stop and start again, as a restarted engine does. The sandboxes stay."""
        await self.close()
        self.runtime = BubblewrapRuntime(self.data)
        await self.open()

    async def add(self, limits: ResourceLimits | None = None, **fields: Any) -> RunningSandbox:
        """Start a sandbox."""
        sandbox_id = f"i{secrets.token_hex(10)}"
        disk = self.data / "sandboxes" / sandbox_id
        disk.mkdir(parents=True)
        await self.runtime.boot(
            BootPlan(
                sandbox_id=sandbox_id,
                layers=(),
                upper=disk / "upper",
                work=disk / "work",
                limits=limits or ResourceLimits(),
                egress=Egress(internet=False),
                isolation=ISOLATION,
            )
        )
        given = {"traffic_token": None, "env": {"COLOUR": "green"}, **fields}
        sandbox = RunningSandbox(sandbox_id=sandbox_id, token=secrets.token_hex(16), **given)
        self.sandboxes.present[sandbox_id] = sandbox
        return sandbox

    async def end(self, sandbox: RunningSandbox) -> None:
        """Kill a sandbox as the lifecycle does: take it out of the table, then halt it."""
        self.sandboxes.present.pop(sandbox.sandbox_id, None)
        await self.runtime.halt(sandbox.sandbox_id)

    def sdk(self, sandbox: RunningSandbox) -> AsyncSandbox:
        """Return the official SDK's handle of a sandbox, without a control plane."""
        config = ConnectionConfig(
            api_key="e2b_00",
            sandbox_url=self.url,
            extra_sandbox_headers={
                "E2b-Sandbox-Id": sandbox.sandbox_id,
                "E2b-Sandbox-Port": str(ENVD_PORT),
                "X-Access-Token": sandbox.token,
            },
        )
        return AsyncSandbox(
            sandbox_id=sandbox.sandbox_id,
            sandbox_domain=None,
            envd_version=Version("0.6.13"),
            envd_access_token=sandbox.token,
            traffic_access_token=None,
            connection_config=config,
        )

    def headers(self, sandbox: RunningSandbox, port: int = ENVD_PORT) -> dict[str, str]:
        return {
            "E2b-Sandbox-Id": sandbox.sandbox_id,
            "E2b-Sandbox-Port": str(port),
            "X-Access-Token": sandbox.token,
        }

    async def _route(self, scope: Any, receive: Any, send: Any) -> None:
        headers = {name: value.decode() for name, value in scope["headers"]}
        port = int(headers.get(b"e2b-sandbox-port", ENVD_PORT))
        scope["state"] = {"sandbox_id": headers.get(b"e2b-sandbox-id"), "port": port}
        app = self.envd if port == ENVD_PORT else self.proxy
        await app(scope, receive, send)


@contextlib.asynccontextmanager
async def open_runtime_server(data: Path) -> AsyncIterator[RuntimeServer]:
    """Open a runtime server; end it and all its sandboxes afterwards."""
    runtime_server = RuntimeServer(data)
    try:
        await runtime_server.open()
        yield runtime_server
        await runtime_server.close()
    finally:
        end_all(data)
