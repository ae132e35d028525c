"""uvicorn's HTTP protocol with bounds: a head and a body must arrive, and a head must be small.

uvicorn itself waits for the rest of a request for ever, puts no bound on the size of a head, and
answers what it cannot parse with plain text.
"""

from __future__ import annotations

import asyncio
import sys
from http import HTTPStatus

import orjson
from httptools import HttpParserInvalidMethodError
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# From the first byte of a connection or request to the end of its head. A slow phone needs about
# one second; higher lets one sender keep that many connections open for nothing.
HEAD_TIMEOUT_S = 10.0
# Between two pieces of a body. Higher keeps the request of a sender that is gone.
BODY_IDLE_S = 30.0
# Cookies and tokens fit in a tenth of it.
HEAD_BYTES_MAX = 64 * 1024
HEAD_TOO_LARGE = "The head of the request is too large."


class BoundedHttpProtocol(HttpToolsProtocol):
    """Close a connection whose head does not arrive in time or has no end.

    The rest of a body whose request was answered must arrive in time, too: no one waits for it.
    """

    head_timeout_s = HEAD_TIMEOUT_S
    unread_body_s = BODY_IDLE_S
    body_idle_s: float | None = None
    _timer: asyncio.TimerHandle | None = None
    _in_head = True
    _in_body = False
    _head_bytes = 0
    _parsed_bytes = 0
    _header_names: list[bytes]

    @classmethod
    def render_refusal(cls, status: HTTPStatus, message: str) -> tuple[str, bytes]:
        """Return the media type and body of an answer to what is no request; E2B's, by default."""
        return "application/json", orjson.dumps({"code": status.value, "message": message})

    def send_400_response(self, msg: str) -> None:
        """Refuse what cannot be parsed; an unknown method is not implemented, rather than wrong."""
        if self.transport.is_closing():
            return
        status, message = HTTPStatus.BAD_REQUEST, msg
        if self._parsed_bytes > HEAD_BYTES_MAX:
            message = HEAD_TOO_LARGE
        if isinstance(sys.exception(), HttpParserInvalidMethodError):
            status, message = HTTPStatus.NOT_IMPLEMENTED, "This method is unknown."
        media_type, body = self.render_refusal(status, message)
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\n"
            f"content-type: {media_type}\r\ncontent-length: {len(body)}\r\n"
            "x-content-type-options: nosniff\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Expect a first head in time."""
        super().connection_made(transport)
        self._start_timer(self.head_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Pass the data on; then expect what is missing of its request in time."""
        was_in_head = self._in_head
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX:
                self.send_400_response(HEAD_TOO_LARGE)
                self._stop_timer()
            elif not was_in_head or self._timer is None:
                self._start_timer(self.head_timeout_s)
        elif self._in_body and self.body_idle_s is not None:
            if self._timer is None or not self.cycle.response_complete:
                self._start_timer(self.body_idle_s)
        elif self._timer is not None and not self._is_answered_early:
            self._stop_timer()

    @property
    def _is_answered_early(self) -> bool:
        return self._in_body and self.cycle.response_complete

    def on_response_complete(self) -> None:
        """Expect the rest of the body in time, however it drips in."""
        super().on_response_complete()
        if self._is_answered_early:
            self._start_timer(self.unread_body_s)

    def on_message_begin(self) -> None:
        """Note that a head begins."""
        self._in_head = True
        self._head_bytes = self._parsed_bytes = 0
        super().on_message_begin()
        # For the proxy: uvicorn lowers the names, and some servers look at them as they were.
        self.scope["sandkeeper.header_names"] = self._header_names = []  # type: ignore[typeddict-unknown-key]

    def on_url(self, url: bytes) -> None:
        """Bound a head that arrives in one piece, too."""
        self._count_parsed(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Bound a head that arrives in one piece, too."""
        self._count_parsed(len(name) + len(value) + 4)
        self._header_names.append(name)
        super().on_header(name, value)

    def _count_parsed(self, size: int) -> None:
        self._parsed_bytes += size
        if self._parsed_bytes > HEAD_BYTES_MAX:
            raise ValueError(HEAD_TOO_LARGE)  # The parser stops, and the request is refused.

    def on_headers_complete(self) -> None:
        """Note that the head is complete; a body may follow."""
        self._in_head = False
        self._in_body = True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Note that the request is complete."""
        self._in_body = False
        super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection to another protocol."""
        self._in_body = False
        super().handle_websocket_upgrade()

    def _start_timer(self, delay_s: float) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(delay_s, self._on_timeout)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timeout(self) -> None:
        self._timer = None
        if self.body_idle_s is not None and self._in_body and self.flow.read_paused:
            self._start_timer(self.body_idle_s)  # The application is slow, not the sender.
        else:
            self.transport.close()


class BoundedBodyProtocol(BoundedHttpProtocol):
    """Close a connection whose body stops arriving, too; no request of the keeper pauses."""

    body_idle_s = BODY_IDLE_S
