"""The last requests of each preview, written every few seconds, and read by any replica."""

from __future__ import annotations

from collections import deque
from typing import Final

from sandkeeper.domain.gateway.links import PreviewRequest
from sandkeeper.services.deps import Deps

# Lines that wait for the next write, of all sandboxes and of one. What is above is not listed: it
# would push out itself.
WAITING_MAX: Final = 5_000
OF_ONE_MAX: Final = 200
PATH_MAX: Final = 300


class RequestLog:
    """Collect requests in memory; a crash loses those of the last seconds."""

    def __init__(self, deps: Deps) -> None:
        self._requests = deps.store.preview_requests
        self._waiting: dict[str, deque[PreviewRequest]] = {}
        self._count = 0

    def note(self, request: PreviewRequest) -> None:
        """Add one request; above the bound the oldest of its sandbox, or this one, is left out."""
        lines = self._waiting.get(request.sandbox_id)
        if lines is None:
            lines = self._waiting[request.sandbox_id] = deque(maxlen=OF_ONE_MAX)
        if len(lines) < OF_ONE_MAX:
            if self._count >= WAITING_MAX:
                return
            self._count += 1
        lines.append(request)

    async def flush(self) -> int:
        """Write what waits and return how many lines; on failure they are lost."""
        waiting, self._waiting, self._count = self._waiting, {}, 0
        lines = [one for some in waiting.values() for one in some]
        if lines:
            await self._requests.append(sorted(lines, key=lambda one: one.at))
        return len(lines)

    async def list(self, sandbox_id: str, *, limit: int) -> list[PreviewRequest]:
        """Return the sandbox's last requests, newest first."""
        await self.flush()
        return await self._requests.list(sandbox_id, limit=limit)
