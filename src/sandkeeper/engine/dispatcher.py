"""Routes each request of the engine's one port to the control plane or to a sandbox.

A sandbox is named by the Host `{port}-{id}.anything`, by the headers `E2b-Sandbox-Id` and
`E2b-Sandbox-Port`, or by a path, `/p/{id}/{port}/…`, for programs that cannot resolve the Host.
Port 49983 is envd; any other port belongs to a process in the sandbox.

Old SDKs differ. Before 2.26 they send the headers of envd with calls of the control plane, too; the
two have no path in common but `/health`, so there the path decides. And what they send to envd
after a `connect` names the sandbox by nothing but its access token.

Browsers must use the Host. Otherwise all sandboxes would share the engine's origin, and a page of
one sandbox could read and control the others.

Clients with `E2B_DEBUG` come to ports of their own and name no sandbox that exists.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from urllib.parse import unquote

import orjson

from sandkeeper.engine.control.http import Receive, Scope, Send
from sandkeeper.engine.control.routes import ControlPlane
from sandkeeper.engine.errors import EngineError
from sandkeeper.engine.names.debug_ports import SANDBOX_PORTS, DebugSandbox

Application = Callable[[Scope, Receive, Send], Awaitable[None]]

ENVD_PORT = 49983
_ENVD_PORT = str(ENVD_PORT).encode()
_HOST = re.compile(rb"(\d{1,5})-([a-z0-9]+)\.")
_PORT = re.compile(r"[0-9]{1,5}")
_ID = re.compile(r"[a-z0-9]{1,64}")
# Every browser sends one of these. `sec-fetch-mode` is no proof: Node's fetch sends it too.
_BROWSER_HEADERS = frozenset({b"origin", b"sec-fetch-site", b"sec-fetch-dest"})
BY_HOST_ONLY = "A browser names a sandbox by its Host, {port}-{id}.localhost, and not otherwise"
NO_BROWSER = "The ports for E2B_DEBUG are for programs on this machine, and not for browsers"
_PATH_STYLE = re.compile(rb"/p/([^/?]+)/([^/?]+)(/[^?]*)?")
_LOOPBACK_HOST = re.compile(rb"(localhost|127\.0\.0\.1|\[::1\])(:[0-9]+)?")


class HostRouter:
    """The engine as one ASGI application."""

    def __init__(
        self,
        control: ControlPlane,
        envd: Application,
        ports: Application,
        find_by_token: Callable[[bytes], str | None],
        debug: DebugSandbox | None = None,
    ) -> None:
        self._debug = debug
        self._control = control
        self._envd = envd
        self._ports = ports
        self._find_by_token = find_by_token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return  # `server.open_engine` starts and stops everything.
        headers = dict(scope["headers"])
        if sum(name == b"host" for name, _ in scope["headers"]) > 1:
            await _refuse(scope, receive, send, "the request has more than one Host")
            return
        if self._debug is not None and scope["server"][1] in SANDBOX_PORTS:
            await self._to_debug_sandbox(self._debug, headers, scope, receive, send)
            return
        host = _HOST.match(headers.get(b"host", b"").lower())
        if host:
            await self._to_sandbox(host[2].decode(), host[1].decode(), scope, receive, send)
            return
        path_style = _PATH_STYLE.match(scope.get("raw_path") or scope["path"].encode())
        if path_style:
            await self._to_path(path_style, headers, scope, receive, send)
        else:
            await self._by_headers(headers, scope, receive, send)

    async def _by_headers(
        self, headers: dict[bytes, bytes], scope: Scope, receive: Receive, send: Send
    ) -> None:
        named, port = headers.get(b"e2b-sandbox-id"), headers.get(b"e2b-sandbox-port")
        if named is None and port is None:
            token = headers.get(b"x-access-token")
            owner = token and not self._is_control_path(scope) and self._find_by_token(token)
            if owner:
                await self._to_sandbox(owner, str(ENVD_PORT), scope, receive, send)
            else:
                await self._to_engine(scope, receive, send)
        elif named is None or port is None:
            missing = "E2b-Sandbox-Id" if named is None else "E2b-Sandbox-Port"
            await _refuse(scope, receive, send, f"missing header {missing}")
        elif port == _ENVD_PORT and self._is_control_path(scope):
            await self._to_engine(scope, receive, send)
        elif not _BROWSER_HEADERS.isdisjoint(headers):
            await _refuse(scope, receive, send, BY_HOST_ONLY, status=403)
        else:
            sandbox_id = named.decode("latin-1").partition("-")[0]
            await self._to_sandbox(sandbox_id, port.decode("latin-1"), scope, receive, send)

    async def _to_path(
        self,
        found: re.Match[bytes],
        headers: dict[bytes, bytes],
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Pass on a request for `/p/{id}/{port}/rest` as one for `/rest`."""
        if not _BROWSER_HEADERS.isdisjoint(headers):
            await _refuse(scope, receive, send, BY_HOST_ONLY, status=403)
            return
        rest = found[3] or b"/"
        scope["raw_path"], scope["path"] = rest, unquote(rest.decode("latin-1"))
        sandbox_id, port = found[1].decode("latin-1"), found[2].decode("latin-1")
        prefix = f"/p/{sandbox_id}/{port}"
        await self._to_sandbox(sandbox_id, port, scope, receive, send, prefix=prefix)

    async def _to_debug_sandbox(
        self,
        debug: DebugSandbox,
        headers: dict[bytes, bytes],
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Pass on what comes without a token; so it must not come from a page in a browser."""
        by_name = _LOOPBACK_HOST.fullmatch(headers.get(b"host", b"").lower())
        if not by_name or not _BROWSER_HEADERS.isdisjoint(headers):
            await _refuse(scope, receive, send, NO_BROWSER, status=403)
            return
        try:
            record = await debug.find()
        except EngineError as error:
            await _refuse(scope, receive, send, error.message, status=503)
            return
        scope["headers"] = [one for one in scope["headers"] if one[0] != b"x-access-token"]
        scope["headers"].append((b"x-access-token", record.token.encode()))
        await self._to_sandbox(record.id, str(scope["server"][1]), scope, receive, send)

    def _is_control_path(self, scope: Scope) -> bool:
        root: str = scope["path"].strip("/").partition("/")[0]
        return scope["type"] == "http" and root in self._control.roots

    async def _to_engine(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await _refuse(scope, receive, send, "a WebSocket must name its sandbox")
        elif scope["path"] in ("/files", "/files/compose"):
            # A signed URL names no sandbox: its signature does.
            scope["state"] = {"sandbox_id": None}
            await self._envd(scope, receive, send)
        else:
            await self._control(scope, receive, send)

    async def _to_sandbox(
        self,
        sandbox_id: str,
        port: str,
        scope: Scope,
        receive: Receive,
        send: Send,
        *,
        prefix: str = "",
    ) -> None:
        if not _ID.fullmatch(sandbox_id):
            await _refuse(scope, receive, send, "the sandbox id is invalid")
        elif not (_PORT.fullmatch(port) and 0 < int(port) < 65536):
            await _refuse(scope, receive, send, "the sandbox port is invalid")
        else:
            scope["state"] = {"sandbox_id": sandbox_id, "port": int(port), "prefix": prefix}
            is_envd = int(port) == ENVD_PORT and scope["type"] == "http"
            await (self._envd if is_envd else self._ports)(scope, receive, send)


async def _refuse(
    scope: Scope, receive: Receive, send: Send, message: str, *, status: int = 400
) -> None:
    kind = "http"
    if scope["type"] == "websocket":
        await receive()
        kind = "websocket.http"
    body = orjson.dumps({"code": status, "message": message})
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": f"{kind}.response.start", "status": status, "headers": headers})
    await send({"type": f"{kind}.response.body", "body": body})
