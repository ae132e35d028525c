"""An httpx transport to an ASGI application in the same process, including streams."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import httpx

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, MutableMapping

    from starlette.types import ASGIApp

# Chunks of a response that wait for their reader. Higher lets a slow reader hold memory; lower
# makes the application wait for a reader that is only busy.
CHUNKS_MAX = 64


class InProcessTransport(httpx.AsyncBaseTransport):
    """Passes requests to an ASGI application and streams its responses.

    `httpx.ASGITransport` collects the whole response first, which never ends for a live stream.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        exchange = _Exchange(self._app, request, await request.aread())
        status, headers = await exchange.begin()
        return httpx.Response(status, headers=headers, stream=exchange)


class _Exchange(httpx.AsyncByteStream):
    """One request and its response; the application runs in its own task."""

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
        self._disconnected = asyncio.Event()
        self._chunks: asyncio.Queue[bytes | None] = asyncio.Queue(CHUNKS_MAX)
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
        while (chunk := await self._chunks.get()) is not None:
            yield chunk

    async def aclose(self) -> None:
        """Disconnect, and cancel the application's task."""
        self._disconnected.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        try:
            await self._app(self._scope, self._receive, self._send)
        except Exception as error:  # noqa: BLE001  Reported to the caller as a broken connection.
            if not self._head.done():
                self._head.set_exception(httpx.RemoteProtocolError(f"{type(error).__name__}"))
        finally:
            if not self._head.done():
                self._head.set_exception(
                    httpx.RemoteProtocolError("The application sent no response.")
                )
            if not self._disconnected.is_set():
                await self._chunks.put(None)

    async def _receive(self) -> MutableMapping[str, Any]:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._disconnected.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self._head.set_result((message["status"], list(message.get("headers", []))))
        elif message.get("body") and not self._disconnected.is_set():
            await self._chunks.put(message["body"])
