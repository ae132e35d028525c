"""One port for HTTP and TLS: the first byte of a connection tells which it is."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable

_log = logging.getLogger("sandkeeper.engine")

HANDSHAKE = 0x16
"""The first byte of every TLS connection; no method of HTTP begins with it."""
FIRST_BYTE_WITHIN_S = 10.0
"""A connection that says nothing is closed, as one is that does not finish its head."""
_ACCEPT_AT_ONCE = 100
_REST_S = 1.0
"""A pause in accepting while the process has no descriptors left."""


class TlsListener:
    """Accepts connections and hands each, with or without TLS, to a protocol of its own.

    Has the two methods of asyncio's server that uvicorn calls at its end.
    """

    def __init__(
        self,
        listener: socket.socket,
        make_protocol: Callable[[], asyncio.Protocol],
        context: ssl.SSLContext,
    ) -> None:
        self._listener = listener
        self._make_protocol = make_protocol
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[None]] = set()

    def start(self, backlog: int) -> None:
        self._listener.setblocking(False)
        self._listener.listen(backlog)
        self._loop.add_reader(self._listener, self._accept)

    def close(self) -> None:
        self._loop.remove_reader(self._listener)
        for task in self._opening:
            task.cancel()

    async def wait_closed(self) -> None:
        await asyncio.gather(*self._opening, return_exceptions=True)

    def _accept(self) -> None:
        for _ in range(_ACCEPT_AT_ONCE):
            try:
                connection, _address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                _log.warning("no connection can be accepted for now: %s", error)
                self._loop.remove_reader(self._listener)
                self._loop.call_later(_REST_S, self._accept_again)
                return
            connection.setblocking(False)
            task = self._loop.create_task(self._open(connection))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    def _accept_again(self) -> None:
        if self._listener.fileno() >= 0:
            self._loop.add_reader(self._listener, self._accept)

    async def _open(self, connection: socket.socket) -> None:
        try:
            async with asyncio.timeout(FIRST_BYTE_WITHIN_S):
                first = await self._peek(connection)
            if first:
                is_tls = first[0] == HANDSHAKE
                await self._loop.connect_accepted_socket(
                    self._make_protocol,
                    connection,
                    ssl=self._context if is_tls else None,
                    ssl_handshake_timeout=FIRST_BYTE_WITHIN_S if is_tls else None,
                )
                return
        except (OSError, TimeoutError):
            # A client that left, or that does not trust our certificate: its own error says so.
            pass
        except BaseException:
            connection.close()
            raise
        connection.close()

    async def _peek(self, connection: socket.socket) -> bytes:
        """Return the first byte without taking it; nothing if the client left."""
        with contextlib.suppress(BlockingIOError):
            return connection.recv(1, socket.MSG_PEEK)
        readable = asyncio.Event()
        self._loop.add_reader(connection, readable.set)
        try:
            await readable.wait()
        finally:
            self._loop.remove_reader(connection)
        return connection.recv(1, socket.MSG_PEEK)
