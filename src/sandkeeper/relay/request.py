"""One HTTP request and its answer, streamed both ways."""

from __future__ import annotations

import asyncio
import contextlib

import httptools

from sandkeeper.relay.asgi import Fields, Receive, Scope, Send, header
from sandkeeper.relay.headers import (
    UnsafeHeadError,
    build_response_headers,
    has_chunks,
    render_request_head,
)
from sandkeeper.relay.upstream import READ_BYTES, Upstream, UpstreamClosedError

HEAD_MAX_BYTES = 256 * 1024
"""An answer whose head is longer than this is no answer."""

STATUS_MAX = 599


class _ResponseParser:
    """Collects what the parser finds. Bodies of HEAD and of 1xx answers do not exist."""

    def __init__(self, *, host: str, is_head_only: bool) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._host = host
        self._is_head_only = is_head_only
        self._fields: list[tuple[bytes, bytes]] = []
        self.status = 0
        self.fields: list[tuple[bytes, bytes]] | None = None
        self.body: list[bytes] = []
        self.is_complete = False
        self._is_chunked = False

    def feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            # After a complete answer, or a HEAD's, whatever follows is of no interest.
            if not self.is_complete:
                raise UpstreamClosedError from error

    def end(self) -> None:
        """End a response without a length: the server closed the connection."""
        names = {name for name, _ in self.fields or ()}
        if self.fields is not None and not names & {b"content-length"} and not self._is_chunked:
            self.is_complete = True

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields.append((name, value))

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        if self.status > STATUS_MAX:
            raise httptools.HttpParserError(f"{self.status} is not a status of HTTP")
        if self.status >= 200:
            self._is_chunked = any(name.lower() == b"transfer-encoding" for name, _ in self._fields)
            self.fields = build_response_headers(self._fields, self._host)
            self.is_complete = self._is_head_only
        self._fields = []

    def on_body(self, data: bytes) -> None:
        if not self._is_head_only:
            self.body.append(data)

    def on_message_complete(self) -> None:
        if self.status >= 200:
            self.is_complete = True


async def relay(
    upstream: Upstream, fields: Fields, scope: Scope, receive: Receive, send: Send
) -> None:
    """Pass the request in with these fields and the answer out, then close `upstream`.

    Raises UpstreamClosedError before anything went out, and UnsafeHeadError before anything went
    in. When the server inside breaks off in the middle, so does the answer: returning without its
    end makes the server that runs this drop the connection.
    """
    try:
        head = render_request_head(scope, fields)
    except UnsafeHeadError:
        upstream.socket.close()
        raise
    reader, writer = await upstream.open()
    sending = asyncio.create_task(_send_request(writer, head, scope, receive))
    try:
        await _pass_answer(reader, scope, send)
    finally:
        # Abort the connection first: a cancellation may interrupt the wait below.
        writer.transport.abort()
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


async def _send_request(
    writer: asyncio.StreamWriter, head: bytes, scope: Scope, receive: Receive
) -> None:
    """Send the head and the body as it comes, then wait for the client to disconnect."""
    is_chunked = has_chunks(scope)
    writer.write(head)
    # A server may answer and close before it has read everything; its answer counts.
    with contextlib.suppress(ConnectionError):
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return
            data = message.get("body", b"")
            if data and is_chunked:
                writer.write(b"%x\r\n%b\r\n" % (len(data), data))
            elif data:
                writer.write(data)
            if not message.get("more_body", False):
                if is_chunked:
                    writer.write(b"0\r\n\r\n")
                break
            await writer.drain()
        await writer.drain()
    await _watch_for_leaving(receive)


async def _watch_for_leaving(receive: Receive) -> None:
    # The request's own `receive` cancels the request when the client disconnects.
    while (await receive())["type"] != "http.disconnect":
        pass


async def _pass_answer(reader: asyncio.StreamReader, scope: Scope, send: Send) -> None:
    host = header(scope, b"host") or ""
    answer = _ResponseParser(host=host, is_head_only=scope["method"] == "HEAD")
    is_started = False
    seen = 0
    while not answer.is_complete:
        try:
            data = await reader.read(READ_BYTES)
        except ConnectionError:
            data = b""
        seen += len(data)
        if data:
            answer.feed(data)
        else:
            answer.end()
        if answer.fields is None:
            if not data or seen > HEAD_MAX_BYTES:
                raise UpstreamClosedError
            continue
        if not is_started:
            is_started = True
            await send(
                {
                    "type": "http.response.start",
                    "status": answer.status,
                    "headers": answer.fields,
                }
            )
        body, answer.body = b"".join(answer.body), []
        if body or answer.is_complete:
            more = not answer.is_complete
            await send({"type": "http.response.body", "body": body, "more_body": more})
        if not data and not answer.is_complete:
            return
