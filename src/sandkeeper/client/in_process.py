"""Speaking to an application in the same process, streams included, without a socket."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import httpx

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, MutableMapping

    from starlette.types import ASGIApp

# Parts of an answer that wait for their reader. Higher lets a slow reader hold memory; lower makes
# the application wait for a reader that is merely busy.
WAITING_MAX = 64


class InProcessTransport(httpx.AsyncBaseTransport):
    """Hands requests to an ASGI application and gives its answer as it comes.

    httpx's own gathers the whole answer first, and a live stream has no end to gather to.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        exchange = _Exchange(self._app, request, await request.aread())
        status, headers = await exchange.begin()
        return httpx.Response(status, headers=headers, stream=exchange)


class _Exchange(httpx.AsyncByteStream):
    """One request and its answer; the application runs in a task of its own."""

    def __init__(self, app: ASGIApp, request: httpx.Request, body: bytes) -> None:
        self._app = app
        self._scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": request.method,
            "headers": [(name.lower(), value) for name, value in request.headers.raw],
            "scheme": request.url.scheme,
            "path": request.url.path,
            "raw_path": request.url.raw_path.partition(b"?")[0],
            "query_string": request.url.query,
            "server": (request.url.host, request.url.port),
            "client": None,
            "root_path": "",
        }
        self._body: bytes | None = body
        self._gone = asyncio.Event()
        self._parts: asyncio.Queue[bytes | None] = asyncio.Queue(WAITING_MAX)
        self._head: asyncio.Future[tuple[int, list[tuple[bytes, bytes]]]] = (
            asyncio.get_running_loop().create_future()
        )
        self._task: asyncio.Task[None] | None = None

    async def begin(self) -> tuple[int, list[tuple[bytes, bytes]]]:
        self._task = asyncio.create_task(self._run())
        try:
            return await self._head
        except BaseException:
            await self.aclose()
            raise

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (part := await self._parts.get()) is not None:
            yield part

    async def aclose(self) -> None:
        """Hang up: the application hears of it, and is ended if it does not listen."""
        self._gone.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        try:
            await self._app(self._scope, self._receive, self._send)
        except Exception as error:  # noqa: BLE001  Told to whoever asked, as a broken connection.
            if not self._head.done():
                self._head.set_exception(httpx.RemoteProtocolError(f"{type(error).__name__}"))
        finally:
            if not self._head.done():
                self._head.set_exception(httpx.RemoteProtocolError("There was no answer."))
            if not self._gone.is_set():
                await self._parts.put(None)

    async def _receive(self) -> MutableMapping[str, Any]:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self._head.set_result((message["status"], list(message.get("headers", []))))
        elif message.get("body") and not self._gone.is_set():
            await self._parts.put(message["body"])
