"""One WebSocket, message by message in both directions."""

from __future__ import annotations

import asyncio

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage, InvalidURI
from websockets.typing import Subprotocol

from sandkeeper.relay.asgi import Fields, Receive, Scope, Send
from sandkeeper.relay.headers import check_fields, target_of
from sandkeeper.relay.upstream import Upstream, UpstreamClosedError

MESSAGE_MAX_BYTES = 64 * 1024 * 1024
"""A message is held whole while it passes."""

OPEN_WITHIN_S = 30.0
CLOSE_WITHIN_S = 2.0
HANDSHAKE = frozenset({b"host", b"sec-websocket-key", b"sec-websocket-version"})
NEGOTIATED = frozenset({b"sec-websocket-extensions", b"sec-websocket-protocol"})
NO_STATUS = 1005
ABNORMAL = 1006


async def relay_socket(
    upstream: Upstream, fields: Fields, scope: Scope, receive: Receive, send: Send
) -> None:
    """Open the same WebSocket inside with these fields; pass messages until either side closes it.

    Takes ownership of `upstream` and closes it. Raises UpstreamClosedError before anything was
    sent to the client.
    """
    kept = [
        (name.decode("latin-1"), value.decode("latin-1"))
        for name, value in fields
        if name.lower() not in HANDSHAKE | NEGOTIATED
    ]
    host = dict(fields)[b"host"].decode("latin-1")
    scheme = "ws" if upstream.tls is None else "wss"
    try:
        check_fields(fields)
        inside = await connect(
            f"{scheme}://{host}{target_of(scope).decode('latin-1')}",
            sock=upstream.socket,
            ssl=upstream.tls,
            server_hostname=upstream.server_name if upstream.tls is not None else None,
            subprotocols=[Subprotocol(name) for name in scope.get("subprotocols", ())] or None,
            additional_headers=kept,
            user_agent_header=None,
            origin=None,
            compression=None,
            max_size=MESSAGE_MAX_BYTES,
            ping_interval=None,
            open_timeout=OPEN_WITHIN_S,
            close_timeout=CLOSE_WITHIN_S,
            proxy=None,
        )
    except (InvalidHandshake, InvalidMessage, InvalidURI, OSError, EOFError) as error:
        upstream.socket.close()
        raise UpstreamClosedError from error
    except BaseException:
        upstream.socket.close()
        raise
    async with inside:
        # The first message is the client's connect.
        await receive()
        await send({"type": "websocket.accept", "subprotocol": inside.subprotocol})
        outward = asyncio.create_task(_pass_out(inside, send))
        try:
            await _pass_in(inside, receive, outward)
        except asyncio.CancelledError:
            # The sandbox stopped: a closing handshake with a frozen server would only time out.
            inside.transport.abort()
            raise
        finally:
            outward.cancel()
            await asyncio.gather(outward, return_exceptions=True)


async def _pass_in(inside: ClientConnection, receive: Receive, outward: asyncio.Task[None]) -> None:
    """Pass the client's messages in until it closes, or the server inside has."""
    while True:
        coming = asyncio.ensure_future(receive())
        await asyncio.wait({coming, outward}, return_when=asyncio.FIRST_COMPLETED)
        if not coming.done():
            coming.cancel()
            return
        message = coming.result()
        if message["type"] == "websocket.disconnect":
            code = message.get("code") or NO_STATUS
            await inside.close(1000 if code in (NO_STATUS, ABNORMAL) else code)
            return
        try:
            text = message.get("text")
            await inside.send(text if text is not None else message["bytes"])
        except ConnectionClosed:
            await outward
            return


async def _pass_out(inside: ClientConnection, send: Send) -> None:
    """Pass the server's messages out until it closes."""
    try:
        async for message in inside:
            if isinstance(message, str):
                await send({"type": "websocket.send", "text": message})
            else:
                await send({"type": "websocket.send", "bytes": message})
    except ConnectionClosed:
        pass
    code = inside.close_code or NO_STATUS
    if code in (NO_STATUS, ABNORMAL):
        code = 1000 if code == NO_STATUS else 1011
    await send({"type": "websocket.close", "code": code, "reason": inside.close_reason or ""})
