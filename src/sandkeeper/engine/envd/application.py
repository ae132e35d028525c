"""envd as one ASGI application: check the access token, then route to processes or files."""

from __future__ import annotations

import asyncio
import hmac
import time

from e2b.envd.filesystem.filesystem_connect import FilesystemASGIApplication
from e2b.envd.process.process_connect import ProcessASGIApplication

from sandkeeper.engine.envd.files.routes import FileRoutes
from sandkeeper.engine.envd.files.service import FilesystemService
from sandkeeper.engine.envd.files.watchers import Watchers
from sandkeeper.engine.envd.processes.process_table import ProcessTable
from sandkeeper.engine.envd.processes.service import ProcessService
from sandkeeper.engine.envd.rpc import CODECS
from sandkeeper.engine.envd.signing import find_signer, read_signature
from sandkeeper.engine.http.active_requests import ActiveRequest, ActiveRequests, current_request
from sandkeeper.engine.http.responses import (
    UNAUTHORISED,
    EnvdRefusedError,
    send_json,
    send_not_found,
    send_nothing,
    send_refusal,
)
from sandkeeper.engine.runtime.contract import NotAliveError, Runtime, RuntimeFaultError
from sandkeeper.engine.sandboxes.routing import (
    RunningSandbox,
    SandboxLookup,
    SandboxNotRoutableError,
)
from sandkeeper.relay.asgi import Receive, Scope, Send, header

FILE_ROUTES = ("/files", "/files/compose")
SWEEP_EVERY_S = 5.0
"""How often the watchers of stopped sandboxes are removed."""


class Envd:
    """Serves the processes and files of the sandbox named by `scope["state"]["sandbox_id"]`.

    A request for `/files` may name none: then its signature finds the sandbox.
    """

    def __init__(
        self, runtime: Runtime, sandboxes: SandboxLookup, requests: ActiveRequests
    ) -> None:
        self._runtime = runtime
        self._sandboxes = sandboxes
        self._requests = requests
        self._processes = ProcessTable(runtime, sandboxes)
        self._watchers = Watchers()
        self._files = FileRoutes(runtime)
        self._sweep: asyncio.Task[None] | None = None
        self._process_rpc = ProcessASGIApplication(
            ProcessService(runtime, self._processes), codecs=CODECS
        )
        self._filesystem_rpc = FilesystemASGIApplication(
            FilesystemService(runtime, self._processes, self._watchers), codecs=CODECS
        )

    async def start(self) -> None:
        """Adopt the processes of an earlier engine. Call it after the runtime has started."""
        for sandbox_id in self._runtime.living():
            self._processes.adopt(sandbox_id)
        self._sweep = asyncio.create_task(self._cleanup())

    async def close(self) -> None:
        """Release everything; the processes keep running."""
        if self._sweep is not None:
            self._sweep.cancel()
            await asyncio.gather(self._sweep, return_exceptions=True)
        self._watchers.close()
        await self._processes.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            request = await self._admit(scope)
        except SandboxNotRoutableError:
            await send_not_found(send, scope["state"].get("sandbox_id") or "")
        except EnvdRefusedError as refusal:
            await send_refusal(send, _name_header(refusal, scope))
        else:
            await self._requests.serve(request, self._route, receive, send)

    async def _admit(self, scope: Scope) -> ActiveRequest:
        """Find the sandbox and check the token. Raises SandboxNotRoutableError,
        EnvdRefusedError."""
        sandbox_id: str | None = scope["state"].get("sandbox_id")
        token = header(scope, b"x-access-token")
        by_signature = token is None and scope["path"] == "/files"
        if by_signature:
            sandbox = await self._admit_signed(scope, sandbox_id)
        elif sandbox_id is None:
            raise EnvdRefusedError(400, "no sandbox is named: send E2b-Sandbox-Id")
        else:
            sandbox = await self._sandboxes.get_ready(sandbox_id, lambda it: _is_token(it, token))
            if not _is_token(sandbox, token) and scope["path"] != "/health":
                raise EnvdRefusedError(401, UNAUTHORISED)
        if self._sandboxes.find(sandbox.sandbox_id) is None:
            raise SandboxNotRoutableError(sandbox.sandbox_id)
        task = asyncio.current_task()
        assert task is not None
        return ActiveRequest(sandbox=sandbox, scope=scope, task=task, sandboxes=self._sandboxes)

    async def _admit_signed(self, scope: Scope, sandbox_id: str | None) -> RunningSandbox:
        signature = read_signature(scope)
        if sandbox_id is None:
            return find_signer(signature, self._sandboxes.running())
        sandbox = await self._sandboxes.get_ready(
            sandbox_id, lambda it: not it.token or signature.is_by(it)
        )
        if sandbox.token:
            signature.check(sandbox)
        return sandbox

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        try:
            if path.startswith("/process.Process/"):
                await self._process_rpc(scope, receive, send)
            elif path.startswith("/filesystem.Filesystem/"):
                await self._filesystem_rpc(scope, receive, send)
            elif path in FILE_ROUTES:
                await self._files(scope, receive, send)
            else:
                await self._answer(scope["method"], path, send)
        except NotAliveError:
            # A response already started cannot be completed, so its connection is dropped.
            if not current_request().started:
                await send_not_found(send, current_request().sandbox_id)
        except EnvdRefusedError as refusal:
            await send_refusal(send, refusal)

    async def _answer(self, method: str, path: str, send: Send) -> None:
        """Answer the routes for health, metrics and environment."""
        if path not in ("/health", "/metrics", "/envs"):
            raise EnvdRefusedError(404, f"not found: {path}")
        if method not in ("GET", "HEAD"):
            raise EnvdRefusedError(405, f"{method} is not allowed on {path}")
        sandbox = current_request().sandbox
        if path == "/health":
            await send_nothing(send)
        elif path == "/envs":
            await send_json(send, 200, dict(sandbox.env))
        else:
            await send_json(send, 200, await self._measure(sandbox.sandbox_id))

    async def _measure(self, sandbox_id: str) -> dict[str, int | float]:
        try:
            usage = await self._runtime.usage(sandbox_id)
        except NotAliveError:
            raise
        except RuntimeFaultError as fault:
            raise EnvdRefusedError(500, str(fault)) from fault
        return {
            "ts": int(time.time()),
            "cpu_count": usage.cpu_count,
            "cpu_used_pct": usage.cpu_used_pct,
            "mem_total": usage.mem_total,
            "mem_used": usage.mem_used,
            "mem_cache": usage.mem_cache,
            "mem_total_mib": usage.mem_total // 2**20,
            "mem_used_mib": usage.mem_used // 2**20,
            "disk_used": usage.disk_used,
            "disk_total": usage.disk_total,
        }

    async def _cleanup(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_EVERY_S)
            self._watchers.keep_only(self._runtime.is_alive)


def _name_header(refusal: EnvdRefusedError, scope: Scope) -> EnvdRefusedError:
    """Return the refusal, with the right header's name for a token that came as a bearer's."""
    sent = header(scope, b"authorization") or ""
    if refusal.status != 401 or not sent.lower().startswith("bearer "):
        return refusal
    return EnvdRefusedError(401, f"{refusal.message}; the token goes into X-Access-Token")


def _is_token(sandbox: RunningSandbox, token: str | None) -> bool:
    """Return whether the caller's token is the sandbox's; a sandbox without one is open."""
    if not sandbox.token:
        return True
    return token is not None and hmac.compare_digest(sandbox.token.encode(), token.encode())
