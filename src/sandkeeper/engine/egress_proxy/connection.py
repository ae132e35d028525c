"""One connection of a sandbox's program to a host with a rule: HTTP/1.1, request after request.

Each request gets a connection of its own to the real host. Bodies are passed on as they come, both
ways at once, so streams work; after an upgrade (WebSocket) bytes are passed on as they are.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import h11
import orjson

READ_BYTES = 64 * 1024
HEAD_MAX_BYTES = 64 * 1024
SILENCE_MAX_S = 600.0
"""After so long without a byte in a direction that is waited for, the connection is closed."""
_CLOSE_WAIT_S = 5.0
_DROPPED = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding"}
)

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Headers = dict[str, str]
Choose = Callable[[str], Awaitable[tuple[Streams, Headers]]]
"""Opens a connection to the host of a request, as in its Host header, and gives the headers to add.
Raises UnservableError."""


class UnservableError(Exception):
    """A request cannot be sent on; the program inside gets the status and the message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class _Side:
    """One of the two connections, with what is known of its protocol."""

    def __init__(self, role: type[h11.CLIENT | h11.SERVER], streams: Streams) -> None:
        self.reader, self.writer = streams
        self.protocol = h11.Connection(role, max_incomplete_event_size=HEAD_MAX_BYTES)

    async def next(self) -> object:
        """Return the next event; raises h11.RemoteProtocolError, OSError, TimeoutError."""
        while True:
            event = self.protocol.next_event()
            if event is not h11.NEED_DATA:
                return event
            if self.protocol.they_are_waiting_for_100_continue:
                await self.send(h11.InformationalResponse(status_code=100, headers=[]))
            async with asyncio.timeout(SILENCE_MAX_S):
                self.protocol.receive_data(await self.reader.read(READ_BYTES))

    async def send(self, event: h11.Event) -> None:
        data = self.protocol.send(event)
        if data:
            self.writer.write(data)
            async with asyncio.timeout(SILENCE_MAX_S):
                await self.writer.drain()

    async def close(self) -> None:
        """Close the connection after what was sent on it."""
        self.writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_CLOSE_WAIT_S):
                await self.writer.wait_closed()


async def serve(inside: Streams, choose: Choose) -> None:
    """Serve a connection to its end."""
    client = _Side(h11.SERVER, inside)
    try:
        while await _serve_request(client, choose):
            client.protocol.start_next_cycle()
    except (h11.ProtocolError, OSError, TimeoutError):
        # Either side broke off or spoke something else; so does the other.
        inside[1].transport.abort()
    finally:
        await client.close()


async def _serve_request(client: _Side, choose: Choose) -> bool:
    """Pass one request on; return whether another one may follow on the connection."""
    request = await client.next()
    if not isinstance(request, h11.Request):
        return False
    names = dict(request.headers)
    try:
        streams, added = await choose(names.get(b"host", b"").decode("latin-1"))
    except UnservableError as refused:
        await _refuse(client, refused)
        return False
    server = _Side(h11.CLIENT, streams)
    # The body may still be on its way when the answer comes.
    sending = asyncio.create_task(_send_request(client, server, request, added))
    try:
        is_switched = await _pass_answer(server, client)
        if is_switched:
            await _pass_bytes(client, server)
            return False
        if not sending.done():
            return False
        await sending
    finally:
        server.writer.transport.abort()
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
    states = (client.protocol.our_state, client.protocol.their_state)
    return states == (h11.DONE, h11.DONE)


async def _refuse(client: _Side, refused: UnservableError) -> None:
    body = orjson.dumps({"code": refused.status, "message": str(refused)})
    headers = [
        ("content-type", "application/json"),
        ("content-length", str(len(body))),
        ("connection", "close"),
    ]
    await client.send(h11.Response(status_code=refused.status, headers=headers))
    await client.send(h11.Data(data=body))
    await client.send(h11.EndOfMessage())


async def _send_request(client: _Side, server: _Side, request: h11.Request, added: Headers) -> None:
    set_here = {name.encode() for name in added}
    is_upgrade = any(name == b"upgrade" for name, _ in request.headers)
    is_chunked = any(name == b"transfer-encoding" for name, _ in request.headers)
    # With both, the host might see another end of the body than we do.
    dropped = _DROPPED | {b"expect"} | ({b"content-length"} if is_chunked else set())
    headers = [
        (name, value)
        for name, value in request.headers
        if name not in dropped and name not in set_here
    ]
    headers += [(name.encode(), value.encode("latin-1")) for name, value in added.items()]
    headers.append((b"connection", b"upgrade" if is_upgrade else b"close"))
    if is_chunked:
        headers.append((b"transfer-encoding", b"chunked"))
    await server.send(h11.Request(method=request.method, target=request.target, headers=headers))
    while isinstance(event := await client.next(), h11.Data | h11.EndOfMessage):
        await server.send(event)
        if isinstance(event, h11.EndOfMessage):
            return


async def _pass_answer(server: _Side, client: _Side) -> bool:
    """Pass the answer on; return whether it was that the connection is something else now."""
    while True:
        event = await server.next()
        if isinstance(event, h11.InformationalResponse):
            if event.status_code == 101:
                await client.send(event)
                return True
        elif isinstance(event, h11.Response):
            headers = [(n, v) for n, v in event.headers if n not in _DROPPED]
            answer = h11.Response(
                status_code=event.status_code, headers=headers, reason=event.reason
            )
            await client.send(answer)
        elif isinstance(event, h11.Data | h11.EndOfMessage):
            await client.send(event)
            if isinstance(event, h11.EndOfMessage):
                return False
        else:
            raise h11.RemoteProtocolError("the host ended the connection")


async def _pass_bytes(client: _Side, server: _Side) -> None:
    """Pass bytes on both ways until either side ends."""

    async def pass_on(source: _Side, target: _Side) -> None:
        data = source.protocol.trailing_data[0]
        while True:
            target.writer.write(data)
            await target.writer.drain()
            data = await source.reader.read(READ_BYTES)
            if not data:
                return

    ways = [
        asyncio.create_task(pass_on(client, server)),
        asyncio.create_task(pass_on(server, client)),
    ]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        with contextlib.suppress(OSError):
            await asyncio.gather(*ways, return_exceptions=True)
