"""One runtime with envd and the port proxy on a port of its own, and no control plane.

For tests that look at what happens to traffic: `Guests` says who runs, as the lifecycle would.
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

from sandkeeper.engine.envd import Envd
from sandkeeper.engine.proxy import PortProxy
from sandkeeper.engine.runtime.bubblewrap.runtime import BubblewrapRuntime
from sandkeeper.engine.runtime.contract import BootPlan, Egress
from sandkeeper.engine.sandboxes.routing import RunningSandbox, SandboxNotRoutableError
from support.eventually import eventually
from support.process_leaks import end_all

ENVD_PORT = 49983


class Guests:
    """Who runs. A sandbox that is away takes no traffic."""

    def __init__(self) -> None:
        self.present: dict[str, RunningSandbox] = {}
        self.asleep: dict[str, RunningSandbox] = {}
        """Those that wake for whoever may enter."""

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


class Lodging:
    """A runtime whose sandboxes are reached over HTTP."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.guests = Guests()
        self.runtime = BubblewrapRuntime(data)
        self._server: uvicorn.Server | None = None

    async def open(self) -> None:
        await self.runtime.start()
        self.envd = Envd(self.runtime, self.guests)
        self.proxy = PortProxy(self.runtime, self.guests, key="e2b_00")
        await self.envd.start()
        # Named as TCP, or asyncio would not know that small answers must not wait for each other.
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._socket.bind(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        config = uvicorn.Config(
            self._front,
            interface="asgi3",
            log_level="error",
            lifespan="off",
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        await eventually(lambda: self._server is not None and self._server.started)

    async def close(self) -> None:
        """Stop serving; the sandboxes live on."""
        assert self._server is not None
        self._server.should_exit = True
        await self._serving
        self._socket.close()
        await self.envd.close()
        await self.runtime.close()

    async def reopen(self) -> None:
        """Stop and start again, as a restarted engine does. The sandboxes and guests stay."""
        await self.close()
        self.runtime = BubblewrapRuntime(self.data)
        await self.open()

    async def add(self, **fields: Any) -> RunningSandbox:
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
                egress=Egress(internet=False),
            )
        )
        given = {"traffic_token": None, "env": {"COLOUR": "green"}, **fields}
        guest = RunningSandbox(sandbox_id=sandbox_id, token=secrets.token_hex(16), **given)
        self.guests.present[sandbox_id] = guest
        return guest

    async def end(self, guest: RunningSandbox) -> None:
        """Kill a sandbox the way the lifecycle does: first it is away, then it ends."""
        self.guests.present.pop(guest.sandbox_id, None)
        await self.runtime.halt(guest.sandbox_id)

    def sdk(self, guest: RunningSandbox) -> AsyncSandbox:
        """Give the official SDK's handle of a sandbox, without a control plane."""
        config = ConnectionConfig(
            api_key="e2b_00",
            sandbox_url=self.url,
            extra_sandbox_headers={
                "E2b-Sandbox-Id": guest.sandbox_id,
                "E2b-Sandbox-Port": str(ENVD_PORT),
                "X-Access-Token": guest.token,
            },
        )
        return AsyncSandbox(
            sandbox_id=guest.sandbox_id,
            sandbox_domain=None,
            envd_version=Version("0.6.13"),
            envd_access_token=guest.token,
            traffic_access_token=None,
            connection_config=config,
        )

    def headers(self, guest: RunningSandbox, port: int = ENVD_PORT) -> dict[str, str]:
        return {
            "E2b-Sandbox-Id": guest.sandbox_id,
            "E2b-Sandbox-Port": str(port),
            "X-Access-Token": guest.token,
        }

    async def _front(self, scope: Any, receive: Any, send: Any) -> None:
        headers = {name: value.decode() for name, value in scope["headers"]}
        port = int(headers.get(b"e2b-sandbox-port", ENVD_PORT))
        scope["state"] = {"sandbox_id": headers.get(b"e2b-sandbox-id"), "port": port}
        app = self.envd if port == ENVD_PORT else self.proxy
        await app(scope, receive, send)


@contextlib.asynccontextmanager
async def lodging_at(data: Path) -> AsyncIterator[Lodging]:
    """Give a lodging and leave nothing of it behind."""
    lodging = Lodging(data)
    try:
        await lodging.open()
        yield lodging
        await lodging.close()
    finally:
        end_all(data)
