"""The connection to the server that is asked."""

from __future__ import annotations

import asyncio
import socket
import ssl
from dataclasses import dataclass

READ_BYTES = 64 * 1024


class UpstreamClosedError(Exception):
    """The server asked ended the connection, or spoke something else than HTTP."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """A connected socket, and the TLS to speak on it. The relay that gets it closes it."""

    socket: socket.socket
    tls: ssl.SSLContext | None = None
    server_name: str | None = None

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return the connection's two ends; close the socket if that fails."""
        try:
            return await asyncio.open_connection(
                sock=self.socket,
                limit=READ_BYTES,
                ssl=self.tls,
                server_hostname=self.server_name if self.tls is not None else None,
            )
        except OSError as error:
            self.socket.close()
            raise UpstreamClosedError from error
        except BaseException:
            self.socket.close()
            raise
