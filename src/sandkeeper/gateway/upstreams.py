"""Connections from the gateway to the ports of sandboxes."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
import time
from typing import Final

from sandkeeper.providers.base import PortAddress
from sandkeeper.relay.upstream import Upstream

DIAL_TIMEOUT_S: Final = 10.0
# How long the addresses of a provider's host are used. Higher finds a moved one later.
RESOLVED_S: Final = 30.0
RESOLVED_MAX: Final = 1000

Found = tuple[socket.AddressFamily, tuple[str, int]]


class Unreachable(Exception):  # noqa: N818  A fact, for which there is a page.
    """The provider's address cannot be connected to."""


class Upstreams:
    """Connect to providers, and remember for a while where their hosts are."""

    def __init__(self) -> None:
        self._tls = ssl.create_default_context()
        self._tls.set_alpn_protocols(["http/1.1"])
        self._resolved: dict[tuple[str, int], tuple[float, list[Found]]] = {}

    async def dial(self, address: PortAddress) -> Upstream:
        """Return a connection, or raise Unreachable."""
        try:
            async with asyncio.timeout(DIAL_TIMEOUT_S):
                connected = await self._connect(address)
        except (OSError, TimeoutError) as error:
            raise Unreachable(str(error)) from error
        if not address.is_tls:
            return Upstream(connected)
        return Upstream(connected, self._tls, address.host)

    async def _connect(self, address: PortAddress) -> socket.socket:
        loop = asyncio.get_running_loop()
        failure: OSError | None = None
        for family, place in await self._resolve(address.host, address.port):
            made = socket.socket(family, socket.SOCK_STREAM)
            made.setblocking(False)
            try:
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                await loop.sock_connect(made, place)
            except OSError as error:
                made.close()
                failure = error
            except BaseException:
                made.close()
                raise
            else:
                return made
        raise failure or OSError(f"{address.host} has no address")

    async def _resolve(self, host: str, port: int) -> list[Found]:
        literal = _find_literal(host)
        if literal is not None:
            return [(literal, (host, port))]
        known = self._resolved.get((host, port))
        if known is not None and known[0] > time.monotonic():
            return known[1]
        answers = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        found: list[Found] = [(one[0], (str(one[4][0]), int(one[4][1]))) for one in answers]
        if len(self._resolved) >= RESOLVED_MAX:
            self._resolved.clear()
        self._resolved[host, port] = (time.monotonic() + RESOLVED_S, found)
        return found


def _find_literal(host: str) -> socket.AddressFamily | None:
    try:
        version = ipaddress.ip_address(host).version
    except ValueError:
        return None
    return socket.AF_INET if version == 4 else socket.AF_INET6
