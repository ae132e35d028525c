"""What is noted when a request is over: use or traffic, a line of the list, figures."""

from __future__ import annotations

import structlog

from sandkeeper.api.status.cache import CachedStatus
from sandkeeper.domain.activity import ActivityClass
from sandkeeper.domain.gateway.requests import RequestKind, find_use
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.services.composition import Services

log = structlog.get_logger(__name__)

SOURCE = "preview"


class VisitRecords:
    """Note requests to previews; nothing here waits for the database."""

    def __init__(self, services: Services) -> None:
        self._activities = services.activities
        self._metrics = services.deps.metrics

    def note_use(self, sandbox: Sandbox, kind: RequestKind) -> None:
        """Count a request as use or as traffic, by the sandbox's policy."""
        counts = find_use(kind, sandbox.policy.preview_use)
        self._activities.record(sandbox.id, kind=counts, source=f"{SOURCE} {kind.value}")

    def note_message(self, sandbox: Sandbox, kind: RequestKind) -> None:
        """Count what a user sent over a socket; a development server's socket has no user."""
        is_use = kind is RequestKind.SOCKET and sandbox.policy.preview_use.counts_messages
        self._activities.record(
            sandbox.id,
            kind=ActivityClass.INTENT if is_use else ActivityClass.PASSIVE,
            source=f"{SOURCE} {kind.value}",
        )

    def note_answer(self, entry: CachedStatus | None, status: int, took_ms: int) -> None:
        """Count an answer."""
        whose = "unknown" if entry is None else "known"
        self._metrics.preview_requests.labels(f"{status // 100}xx", whose).inc()
        self._metrics.preview_duration.observe(took_ms / 1000)
