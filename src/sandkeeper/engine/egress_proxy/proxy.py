"""The listeners of sandboxes with rules, and the connections to the real hosts."""

from __future__ import annotations

import asyncio
import functools
import logging
import ssl
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path

from sandkeeper.engine.egress_proxy import connection
from sandkeeper.engine.egress_proxy.authority import EgressAuthority
from sandkeeper.engine.egress_proxy.connection import Streams, UnservableError
from sandkeeper.engine.egress_proxy.rules import Rules, fill, list_secrets
from sandkeeper.engine.runtime.bubblewrap import interception
from sandkeeper.engine.runtime.contract import Egress, NotAliveError, Runtime, RuntimeFaultError

_log = logging.getLogger("sandkeeper.engine")

CONNECTIONS_MAX = 256
"""Of one sandbox at once; further ones are closed."""
_PORT, _TLS_PORT = interception.PORTS
_CONNECT_WAIT_S = 15.0
_HANDSHAKE_WAIT_S = 10.0
_RETRY_S = 30.0

ReadSecrets = Callable[[Collection[str]], Awaitable[Mapping[str, str]]]


class _Listening:
    """What is open for one sandbox."""

    def __init__(self, egress: Egress) -> None:
        self.egress = egress
        self.servers: list[asyncio.Server] = []
        self.connections: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        for server in self.servers:
            server.close()
        for task in self.connections:
            task.cancel()


class EgressProxy:
    """Opened for a sandbox at each start of its processes and each change of its rules."""

    def __init__(self, runtime: Runtime, folder: Path, read_secrets: ReadSecrets) -> None:
        """Take the `folder` for the authority, and what returns the values of secrets."""
        self._runtime = runtime
        self._folder = folder
        self._read_secrets = read_secrets
        self._listening: dict[str, _Listening] = {}
        self._not_before: dict[str, float] = {}
        self._outside = ssl.create_default_context()
        self._outside.set_alpn_protocols(["http/1.1"])

    @functools.cached_property
    def _authority(self) -> EgressAuthority:
        """Return the authority, which an engine without any rule does not need."""
        return EgressAuthority(self._folder)

    async def open(self, sandbox_id: str, egress: Egress) -> None:
        """Obey the rules from now on, instead of those before. Raises RuntimeFaultError."""
        if not egress.rules and sandbox_id not in self._listening:
            return
        self.close(sandbox_id)
        names = sorted(egress.rules)
        sockets = await self._runtime.intercept(sandbox_id, names, self._authority.pem)
        if not sockets:
            return
        listening = self._listening[sandbox_id] = _Listening(egress)
        plain, secure = sockets
        serve = functools.partial(self._accept, sandbox_id, listening)
        listening.servers = [
            await asyncio.start_server(functools.partial(serve, secure=False), sock=plain),
            await asyncio.start_server(
                functools.partial(serve, secure=True),
                sock=secure,
                ssl=self._make_context(egress.rules),
                ssl_handshake_timeout=_HANDSHAKE_WAIT_S,
            ),
        ]

    def close(self, sandbox_id: str) -> None:
        """Stop listening and end the open connections; no-op if nothing is open."""
        self._not_before.pop(sandbox_id, None)
        listening = self._listening.pop(sandbox_id, None)
        if listening is not None:
            listening.close()

    def is_missing(self, sandbox_id: str) -> bool:
        """Return whether a sandbox with rules has to be opened now."""
        is_due = time.monotonic() >= self._not_before.get(sandbox_id, 0)
        return is_due and sandbox_id not in self._listening

    async def reopen(self, sandbox_id: str, egress: Egress) -> None:
        """Open what is not open, as after a restart of the engine; log what prevents it."""
        try:
            await self.open(sandbox_id, egress)
        except RuntimeFaultError as fault:
            self._not_before[sandbox_id] = time.monotonic() + _RETRY_S
            _log.warning("network.rules of %s do not work: %s", sandbox_id, fault)

    def close_ended(self) -> None:
        """Close what is open for sandboxes that have ended."""
        for sandbox_id in [*self._listening, *self._not_before]:
            if not self._runtime.is_alive(sandbox_id):
                self.close(sandbox_id)

    async def stop(self) -> None:
        for sandbox_id in list(self._listening):
            self.close(sandbox_id)

    def _make_context(self, rules: Rules) -> ssl.SSLContext:
        """Return a context that is the host which the program asks for, if that has a rule."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)

        def choose(
            shaking: ssl.SSLObject, name: str | None, _context: ssl.SSLContext
        ) -> int | None:
            if name is None or name.lower() not in rules:
                return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME
            shaking.context = self._authority.find_context(name.lower())
            return None

        context.sni_callback = choose
        return context

    async def _accept(
        self,
        sandbox_id: str,
        listening: _Listening,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        secure: bool,
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(listening.connections) >= CONNECTIONS_MAX:
            writer.transport.abort()
            return
        listening.connections.add(task)
        try:
            choose = functools.partial(self._choose, sandbox_id, listening.egress, secure)
            await connection.serve((reader, writer), choose)
        except asyncio.CancelledError:
            # The rules were changed, or the sandbox ended.
            writer.transport.abort()
        finally:
            listening.connections.discard(task)

    async def _choose(
        self, sandbox_id: str, egress: Egress, secure: bool, asked: str
    ) -> tuple[Streams, dict[str, str]]:
        host = asked.partition(":")[0].lower()
        headers = egress.rules.get(host)
        if headers is None:
            raise UnservableError(421, f"network.rules have no host '{host[:80]}'")
        wanted = list_secrets({host: headers})
        if wanted and not secure:
            # A program inside chooses; who listens on the way must not learn them by that.
            raise UnservableError(403, f"network.rules: '{host}' gets its secrets over https only")
        secrets = await self._read_secrets(wanted)
        try:
            added = fill(headers, secrets)
        except KeyError as unknown:
            raise UnservableError(502, f"network.rules: there is no secret {unknown}") from None
        return await self._connect(sandbox_id, egress, host, secure=secure), added

    async def _connect(
        self, sandbox_id: str, egress: Egress, host: str, *, secure: bool
    ) -> Streams:
        is_allowed = egress.internet and host in map(str.lower, egress.allow_out)
        try:
            addresses = await self._runtime.find_addresses(sandbox_id, host, is_allowed=is_allowed)
        except NotAliveError:
            addresses = []
        if not addresses:
            raise UnservableError(
                403, f"'{host}' is not reachable: it has no address that this sandbox may reach"
            )
        context, name = (self._outside, host) if secure else (None, None)
        faults = []
        for address in addresses:
            try:
                async with asyncio.timeout(_CONNECT_WAIT_S):
                    return await asyncio.open_connection(
                        *(address, _TLS_PORT if secure else _PORT),
                        limit=connection.READ_BYTES,
                        ssl=context,
                        server_hostname=name,
                    )
            except (OSError, TimeoutError) as error:
                faults.append(str(error) or "no answer in time")
        raise UnservableError(502, f"'{host}' cannot be reached: {faults[-1]}")
