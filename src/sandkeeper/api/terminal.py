"""The WebSocket that shows a shell in a sandbox.

Binary messages are the terminal's bytes, both ways. Text messages are JSON:

| from | message | meaning |
|---|---|---|
| client | `{"cols": 80, "rows": 24}` | the window has this size now |
| server | `{"waking": true}` | the sandbox does not run; it is being woken |
| server | `{"pid": 42}` | the shell; pass it as `pid` to take it up again after a lost connection |
| server | `{"exit": 0}` | the shell ended |
| server | `{"error": {"code", "message", "hint"}}` | it failed; the connection ends |
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final, TypeVar

import orjson
from pydantic import BaseModel, Field, ValidationError
from starlette.websockets import WebSocket, WebSocketDisconnect

from sandkeeper.api.auth import Access
from sandkeeper.api.deps import ApiContext, authorize, get_address
from sandkeeper.api.errors import make_validation_error
from sandkeeper.api.handlers.sandboxes import get_sandbox
from sandkeeper.api.status.serializers import dumps, parse_owner_slug
from sandkeeper.api.wire_errors import MalformedRequestError, TooManyStreamsError
from sandkeeper.domain.errors import SandkeeperError, UnauthenticatedError
from sandkeeper.services.terminal.terminals import Terminal, TerminalSize

Kind = TypeVar("Kind", bound=BaseModel)

ADMITTED_EVERY_S: Final = 2.0
"""How soon a terminal ends after its login was revoked."""
NORMAL, REFUSED, FAILED = 1000, 1008, 1011


class WindowSize(BaseModel):
    """The size of a terminal's window."""

    cols: int = Field(default=80, ge=1, le=1000)
    rows: int = Field(default=24, ge=1, le=1000)

    def to_size(self) -> TerminalSize:
        return TerminalSize(self.cols, self.rows)


class TerminalQuery(WindowSize):
    """What a terminal is opened with."""

    pid: int | None = Field(default=None, ge=1, le=2**31 - 1)


class TerminalSocket:
    """One connection to a terminal."""

    def __init__(self, context: ApiContext, websocket: WebSocket) -> None:
        self._context = context
        self._socket = websocket
        self._is_over = False

    async def serve(self) -> None:
        """Check the caller, wake the sandbox, and show a shell until either side ends it."""
        context, socket = self._context, self._socket
        # A browser sends the login with a handshake from any page: it is held to the same rule
        # as a request that changes something.
        scope = {**socket.scope, "method": "POST"}
        caller = authorize(context, Access.OPERATE_ONE, scope, headers=socket.headers)
        query = _parse(TerminalQuery, dict(socket.query_params))
        if context.services.terminals.is_full:
            raise TooManyStreamsError("This server shows as many terminals as it may.")
        sandbox = await get_sandbox(context, parse_owner_slug(socket.path_params["project"]))
        await socket.accept()
        try:
            woken = asyncio.create_task(
                context.services.terminals.wake(sandbox, actor=caller.actor)
            )
            done, _ = await asyncio.wait({woken}, timeout=0.1)
            if not done:
                await self._say({"waking": True})
            sandbox = await woken
            terminal = await context.services.terminals.open(
                sandbox,
                size=query.to_size(),
                on_output=socket.send_bytes,
                actor=caller.actor,
                address=get_address(scope),
                pid=query.pid,
            )
        except SandkeeperError as error:
            await self._fail(error)
            return
        except WebSocketDisconnect:
            return
        await self._show(terminal)

    async def _show(self, terminal: Terminal) -> None:
        tasks = {
            asyncio.create_task(self._pass_input(terminal)),
            asyncio.create_task(self._tell_end(terminal)),
            asyncio.create_task(self._watch_admission()),
        }
        try:
            await self._say({"pid": terminal.pid})
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except SandkeeperError as error:
            await self._fail(error)
        except (WebSocketDisconnect, RuntimeError, OSError):
            pass  # The user left; Starlette raises a RuntimeError for a message after that.
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._context.services.terminals.leave(terminal, is_over=self._is_over)

    async def _pass_input(self, terminal: Terminal) -> None:
        while True:
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                return
            data = message.get("bytes")
            if data is not None:
                await terminal.write(data)
            else:
                await terminal.resize(_parse_json(message.get("text") or "").to_size())

    async def _tell_end(self, terminal: Terminal) -> None:
        code = await terminal.wait()
        self._is_over = True
        await self._say({"exit": code})
        await self._socket.close(NORMAL)

    async def _watch_admission(self) -> None:
        """End when the caller's login or key is no longer good."""
        while True:
            await asyncio.sleep(ADMITTED_EVERY_S)
            self._context.authenticator.identify(self._socket.headers)

    async def _say(self, message: dict[str, Any]) -> None:
        await self._socket.send_text(dumps(message).decode())

    async def _fail(self, error: SandkeeperError) -> None:
        problem = {"code": error.code, "message": error.message, "hint": error.hint}
        is_refused = isinstance(error, UnauthenticatedError)
        with contextlib.suppress(WebSocketDisconnect, RuntimeError, OSError):
            await self._say({"error": problem})
            await self._socket.close(REFUSED if is_refused else FAILED)


def _parse_json(text: str) -> WindowSize:
    try:
        return _parse(WindowSize, orjson.loads(text))
    except orjson.JSONDecodeError:
        raise MalformedRequestError("A text message is JSON: the window's size.") from None


def _parse(kind: type[Kind], values: object) -> Kind:
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False, include_context=False)
        raise make_validation_error(found) from None
