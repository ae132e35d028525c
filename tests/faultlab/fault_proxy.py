"""The ways between keeper and provider, and what can go wrong on them.

`FaultProxy` carries the keeper's requests to the engine. `WebhookProxy` carries the engine's
webhooks to a replica. Both listen on loopback and do as the current fault says.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import socket
from collections.abc import Awaitable, Callable
from typing import Final

from faultlab.clocks import move_answer
from faultlab.schedule import Kind

HEAD_MAX: Final = 256 * 1024
CHUNK: Final = 64 * 1024
ONE_INSTANCE: Final = re.compile(rb"^(GET|POST|DELETE) (/v\d)?/sandboxes/(?!snapshots)[^/ ]+")
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Proxy:
    """A server on loopback that hands every connection to `serve`."""

    def __init__(self) -> None:
        # It keeps the port while nothing listens there.
        self._place = socket.socket()
        self._place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._place.bind(("127.0.0.1", 0))
        self.port: int = self._place.getsockname()[1]
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Listen, unless it does."""
        if self._server is None:
            self._server = await asyncio.start_server(
                self._accept, "127.0.0.1", self.port, limit=HEAD_MAX
            )

    async def refuse(self) -> None:
        """Break every connection, and refuse new ones until it is started again."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def stop(self) -> None:
        await self.refuse()
        self._place.close()

    async def serve(self, head: bytes, client: Streams) -> None:
        raise NotImplementedError

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        task.add_done_callback(self._open.discard)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            await self.serve(head, (reader, writer))
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        except asyncio.CancelledError:
            pass
        finally:
            writer.close()


class FaultProxy(Proxy):
    """Carries one request for each connection to the engine, wrongly while `fault` is set.

    Only the control plane is disturbed unless `everything` is: a wrong answer of an app is no fault
    of a provider.
    """

    def __init__(self, find_engine_port: Callable[[], int], seed: int) -> None:
        super().__init__()
        self._find_engine_port = find_engine_port
        self._drawn = random.Random(f"proxy {seed}")
        self.fault: Kind | None = None
        self.everything = False
        self.ahead_s = 0
        """How far the provider's clock is ahead, as seen through this proxy."""
        self.disturbed = 0

    async def serve(self, head: bytes, client: Streams) -> None:
        fault = self._choose(head)
        if fault is None:
            await self._carry(head, client)
            return
        self.disturbed += 1
        match fault:
            case Kind.DOWN:
                return
            case Kind.HUNG:
                while self.fault is Kind.HUNG:
                    await asyncio.sleep(0.05)
            case Kind.RATE_LIMIT:
                await _answer(client, 429, b'{"code":429,"message":"slow down"}', b"Retry-After: 1")
            case Kind.SERVER_ERRORS:
                status = self._drawn.choice((500, 502, 503, 504))
                await _answer(client, status, b"<html>it does not work</html>")
            case Kind.WRONG_404:
                await _answer(client, 404, b'{"code":404,"message":"sandbox not found"}')
            case Kind.DELAYS:
                await asyncio.sleep(self._drawn.uniform(0.1, 1.5))
                await self._carry(head, client)
            case _:
                await self._carry(head, client, spoil=fault)

    def _choose(self, head: bytes) -> Kind | None:
        if self.fault is None or not (self.everything or _is_control_plane(head)):
            return None
        if self.fault is Kind.WRONG_404 and not ONE_INSTANCE.match(head):
            return None
        return self.fault if self._drawn.random() < 0.8 else None

    async def _carry(self, head: bytes, client: Streams, spoil: Kind | None = None) -> None:
        """Carry the request; then lose its answer, spoil it, or return it."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._find_engine_port())
        try:
            writer.write(head if b"upgrade:" in head.lower() else _close_after(head))
            sending = asyncio.create_task(_pump(client[0], writer))
            try:
                if spoil is None and self.ahead_s and _is_control_plane(head):
                    client[1].write(move_answer(await reader.read(-1), self.ahead_s))
                    await client[1].drain()
                else:
                    await self._return(reader, client[1], spoil)
            finally:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
        finally:
            writer.close()

    async def _return(
        self, engine: asyncio.StreamReader, client: asyncio.StreamWriter, spoil: Kind | None
    ) -> None:
        if spoil is None:
            await _pump(engine, client)
            return
        answer = await engine.read(-1)
        head, mark, body = answer.partition(b"\r\n\r\n")
        if spoil is Kind.GARBAGE:
            junk = self._drawn.randbytes(len(body) or 20)
            if not body:
                head = b"HTTP/1.1 200 OK\r\nContent-Length: 20"
            client.write(head + mark + junk)
        elif spoil is Kind.HALF_BODIES:
            client.write(head + mark + body[: len(body) // 2])
        await client.drain()


class WebhookProxy(Proxy):
    """Takes the engine's webhooks and delivers them as the current fault says."""

    def __init__(self, deliver: Callable[[bytes, bytes], Awaitable[int]]) -> None:
        super().__init__()
        self._deliver = deliver
        self.fault: Kind | None = None
        self._held: tuple[bytes, bytes] | None = None
        self._late: set[asyncio.Task[None]] = set()

    async def serve(self, head: bytes, client: Streams) -> None:
        found = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
        body = await client[0].readexactly(int(found.group(1))) if found else b""
        status = 200
        match self.fault:
            case Kind.WEBHOOKS_LOST:
                pass
            case Kind.WEBHOOKS_DOUBLED:
                await self._deliver(head, body)
                status = await self._deliver(head, body)
            case Kind.WEBHOOKS_DELAYED:
                self._deliver_later(head, body)
            case Kind.WEBHOOKS_REORDERED if self._held is None:
                self._held = (head, body)
            case _:
                status = await self._deliver(head, body)
                await self.flush()
        await _answer(client, status, b"")

    async def flush(self) -> None:
        """Deliver what was held back, after what came later."""
        held, self._held = self._held, None
        if held is not None:
            await self._deliver(*held)

    def _deliver_later(self, head: bytes, body: bytes) -> None:
        async def later() -> None:
            await asyncio.sleep(2)
            await self._deliver(head, body)

        task = asyncio.create_task(later())
        self._late.add(task)
        task.add_done_callback(self._late.discard)


def _is_control_plane(head: bytes) -> bool:
    return b"\r\ne2b-sandbox-id:" not in head.lower() and b".localhost" not in head.lower()


def _close_after(head: bytes) -> bytes:
    kept = [
        line for line in head[:-4].split(b"\r\n") if not line.lower().startswith(b"connection:")
    ]
    return b"\r\n".join([*kept, b"Connection: close"]) + b"\r\n\r\n"


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(CHUNK):
            target.write(data)
            await target.drain()


async def _answer(client: Streams, status: int, body: bytes, *headers: bytes) -> None:
    lines = [
        b"HTTP/1.1 %d Fault" % status,
        b"Content-Length: %d" % len(body),
        b"Content-Type: application/json",
        b"Connection: close",
        *headers,
    ]
    client[1].write(b"\r\n".join(lines) + b"\r\n\r\n" + body)
    await client[1].drain()
