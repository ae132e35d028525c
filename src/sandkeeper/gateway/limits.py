"""What one preview may use of this process: requests, sockets and bytes per second."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from sandkeeper.api.limits import ENTRIES_MAX, RateLimit
from sandkeeper.settings import Settings

# What may pass at once after a quiet time, in seconds of the rate.
BURST_S = 2.0


class PreviewLimits:
    """The limits of each sandbox; a replica more raises them."""

    def __init__(self, settings: Settings) -> None:
        self._requests_per_s = settings.gateway_requests_per_s
        self._sockets_max = settings.gateway_sockets_max
        self._bytes_per_s = settings.gateway_bytes_per_s
        self._requests = RateLimit()
        self._sockets: Counter[str] = Counter()
        self._paid_until: dict[str, float] = {}

    def is_over(self, sandbox_id: str, *, is_socket: bool) -> bool:
        """Count a request; return True above a limit."""
        if is_socket and self._sockets[sandbox_id] >= self._sockets_max:
            return True
        rate = self._requests_per_s
        return bool(self._requests.spend(sandbox_id, rate=rate, burst=rate * BURST_S))

    @contextmanager
    def socket(self, sandbox_id: str, *, is_held: bool) -> Iterator[None]:
        """Hold one of the sandbox's sockets, if this is one."""
        if not is_held:
            yield
            return
        self._sockets[sandbox_id] += 1
        try:
            yield
        finally:
            self._sockets[sandbox_id] -= 1
            if not self._sockets[sandbox_id]:
                del self._sockets[sandbox_id]

    async def pay(self, sandbox_id: str, size: int) -> None:
        """Wait until so many bytes may pass; 0 in the setting never waits."""
        if not self._bytes_per_s:
            return
        now = time.monotonic()
        if len(self._paid_until) >= ENTRIES_MAX:
            self._paid_until = {one: at for one, at in self._paid_until.items() if at > now}
        until = max(self._paid_until.get(sandbox_id, now), now) + size / self._bytes_per_s
        self._paid_until[sandbox_id] = until
        wait_s = until - now - BURST_S
        if wait_s > 0:
            await asyncio.sleep(wait_s)
