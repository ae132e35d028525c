"""Write and read the audit log."""

from __future__ import annotations

import contextlib
import time
from typing import Any, Final

import structlog

from sandkeeper.domain.access import AuditAction, AuditEntry
from sandkeeper.domain.errors import StoreUnavailableError
from sandkeeper.services.deps import Deps

log = structlog.get_logger(__name__)

# Failed logins written per minute and process. More lets a guesser fill the disk; fewer hides the
# addresses of a distributed one. The log line is written for each.
FAILURES_PER_MINUTE: Final = 60
TEXT_MAX: Final = 200


class AuditLog:
    """Who got in, and what they changed."""

    def __init__(self, deps: Deps) -> None:
        self._store = deps.store.audit
        self._clock = deps.clock
        self._minute = 0
        self._failures = 0

    async def record(
        self, actor: str, action: AuditAction, subject: str, *, address: str = "", **data: Any
    ) -> None:
        """Write an entry; of many failed logins a minute, only the first are written."""
        log.info("audit", actor=actor, action=action.value, subject=subject, address=address)
        entry = AuditEntry(self._clock(), actor, action, subject[:TEXT_MAX], address, data)
        if action is not AuditAction.LOGIN_FAILED:
            await self._store.add(entry)
        elif not self._is_flooded():
            with contextlib.suppress(StoreUnavailableError):  # The answer is the refusal.
                await self._store.add(entry)

    async def list(self, *, before: int | None = None, limit: int = 100) -> list[AuditEntry]:
        """Return entries, newest first."""
        return await self._store.list(before=before, limit=limit)

    def _is_flooded(self) -> bool:
        minute = int(time.monotonic() // 60)
        if minute != self._minute:
            self._minute, self._failures = minute, 0
        self._failures += 1
        return self._failures > FAILURES_PER_MINUTE
