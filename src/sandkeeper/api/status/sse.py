"""Live streams: one encoded block, shared by all who listen.

A stream that is idle holds its request and a small record, no buffer and no timer: pings come from
one shared sweep. A reader too slow for its bounded queue is dropped; it comes back with
``Last-Event-ID`` and reads what it missed from the event log.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterable

from prometheus_client import Gauge
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sandkeeper.api.auth import Caller
from sandkeeper.api.limits import CallerLimits
from sandkeeper.api.wire_errors import TooManyStreamsError

FLEET = "fleet"
PING = b": ping\n\n"
RETRY = b"retry: 2000\n\n"
# Blocks that wait for one reader. They are shared, so a stalled reader costs references only; but a
# higher bound keeps it longer than it is worth, and a lower one drops healthy readers in a burst.
WAITING_MAX = 4096
# Blocks that are joined into one write.
JOINED_MAX = 64
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


def render_block(*, event: str, data: bytes, seq: int | None = None) -> bytes:
    """Return one event as sent; `data` is JSON on one line."""
    head = b"" if seq is None else b"id: %d\n" % seq
    return head + b"event: " + event.encode() + b"\ndata: " + data + b"\n\n"


class EventStream:
    """One open connection: what waits for it, and whether it is to end."""

    __slots__ = ("caller", "closed", "opened", "pump", "send", "waiting")

    def __init__(self, send: Send, caller: Caller | None) -> None:
        self.send = send
        self.caller = caller
        self.waiting: deque[bytes] = deque()
        self.pump: asyncio.Task[None] | None = None
        self.opened = False
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def push(self, block: bytes) -> None:
        """Queue a block; a full queue ends the stream."""
        if len(self.waiting) >= WAITING_MAX:
            self.close()
            return
        self.waiting.append(block)
        if self.opened and self.pump is None:
            self.pump = asyncio.get_running_loop().create_task(self._drain())

    def close(self) -> None:
        if not self.closed.done():
            self.closed.set_result(None)

    async def open(self, opening: bytes) -> None:
        """Send the headers and the opening, then what was queued during that."""
        await self.send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        await self.send({"type": "http.response.body", "body": RETRY + opening, "more_body": True})
        self.opened = True
        await self._drain()

    async def _drain(self) -> None:
        try:
            while self.waiting:
                count = min(len(self.waiting), JOINED_MAX)
                body = b"".join([self.waiting.popleft() for _ in range(count)])
                await self.send({"type": "http.response.body", "body": body, "more_body": True})
        except OSError:
            self.close()
        finally:
            self.pump = None


class StreamHub:
    """All open streams, by what they listen to."""

    def __init__(self, *, connections_max: int, gauge: Gauge) -> None:
        self._connections_max = connections_max
        self._gauge = gauge
        self._topics: dict[str, set[EventStream]] = {}
        self._streams: set[EventStream] = set()
        self._closing = False

    @property
    def connections(self) -> int:
        return len(self._streams)

    def has_listeners(self, topics: Iterable[str]) -> bool:
        return any(topic in self._topics for topic in topics)

    def publish(self, topics: Iterable[str], block: bytes) -> None:
        """Queue one block for every stream of any of the topics, once each."""
        found = [self._topics[topic] for topic in topics if topic in self._topics]
        for stream in found[0] if len(found) == 1 else set[EventStream]().union(*found):
            stream.push(block)

    def close(self) -> None:
        """End every stream and take no new ones: the process is about to stop."""
        self._closing = True
        for stream in self._streams:
            stream.close()

    def end_streams(self) -> None:
        """End every stream that is open now; clients poll or come back."""
        for stream in self._streams:
            stream.close()

    def end_unadmitted(self, is_revoked: Callable[[str], bool], now: float) -> None:
        """End the streams of those whose login or token is revoked or has expired."""
        for stream in self._streams:
            caller = stream.caller
            if caller is None:
                continue
            is_over = caller.expires_at is not None and caller.expires_at <= now
            if is_over or any(is_revoked(one) for one in caller.credential_ids):
                stream.close()

    async def ping_forever(self, every_s: float) -> None:
        """Keep proxies from cutting quiet streams."""
        while True:
            await asyncio.sleep(every_s)
            for stream in self._streams:
                stream.push(PING)

    async def serve(
        self,
        receive: Receive,
        send: Send,
        *,
        topics: Iterable[str],
        opening: Callable[[], Awaitable[bytes]],
        caller: Caller | None = None,
    ) -> None:
        """Serve one connection until either side ends it, or the caller may no longer listen.

        It listens before `opening` looks, so nothing falls between the two; what arrives twice is
        dropped by its version.
        """
        if self._closing or len(self._streams) >= self._connections_max:
            raise TooManyStreamsError("This server holds as many live streams as it may.")
        stream = EventStream(send, caller)
        listened = list(topics)
        self._add(stream, listened)
        gone = asyncio.create_task(_wait_for_disconnect(receive))
        try:
            await stream.open(await opening())
            await asyncio.wait({gone, stream.closed}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._remove(stream, listened)
            for task in (gone, stream.pump):
                if task is not None and not task.done():
                    task.cancel()
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(1):
                await send({"type": "http.response.body", "body": b""})

    def _add(self, stream: EventStream, topics: list[str]) -> None:
        self._streams.add(stream)
        for topic in topics:
            self._topics.setdefault(topic, set()).add(stream)
        self._gauge.set(len(self._streams))

    def _remove(self, stream: EventStream, topics: list[str]) -> None:
        self._streams.discard(stream)
        for topic in topics:
            listeners = self._topics.get(topic)
            if listeners is not None:
                listeners.discard(stream)
                if not listeners:
                    del self._topics[topic]
        self._gauge.set(len(self._streams))


class StreamResponse(Response):
    """A live stream as the response of an endpoint; the hub sends it."""

    def __init__(
        self,
        hub: StreamHub,
        *,
        topics: Iterable[str],
        opening: Callable[[], Awaitable[bytes]],
        caller: Caller,
        limits: CallerLimits,
    ) -> None:
        super().__init__()
        self._hub = hub
        self._limits = limits
        self._topics = topics
        self._opening = opening
        self._caller = caller

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        with self._limits.stream(self._caller):
            await self._hub.serve(
                receive, send, topics=self._topics, opening=self._opening, caller=self._caller
            )


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
