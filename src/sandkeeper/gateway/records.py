"""What is noted when a request is over: use or traffic, a line of the list, figures."""

from __future__ import annotations

import structlog

from sandkeeper.domain.activity import ActivityClass
from sandkeeper.domain.gateway.links import PreviewRequest
from sandkeeper.domain.gateway.requests import RequestKind, find_use
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.gateway.visit import Visit
from sandkeeper.services.composition import Services
from sandkeeper.services.gateway.request_log import PATH_MAX
from sandkeeper.services.gateway.urls import LINK_PATH

log = structlog.get_logger(__name__)

SOURCE = "preview"


class VisitRecords:
    """Note requests to previews; nothing here waits for the database."""

    def __init__(self, services: Services) -> None:
        self._activities = services.activities
        self._metrics = services.deps.metrics
        self._clock = services.deps.clock
        self._requests = services.request_log

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

    def note_answer(
        self, visit: Visit, status: int, took_ms: int, received: int = 0, sent: int = 0
    ) -> None:
        """Count an answer, and list it if there is a sandbox."""
        whose = "unknown" if visit.entry is None else "known"
        self._metrics.preview_requests.labels(f"{status // 100}xx", whose).inc()
        self._metrics.preview_duration.observe(took_ms / 1000)
        if visit.entry is None:
            return
        line = PreviewRequest(
            sandbox_id=visit.entry.sandbox.id,
            at=self._clock(),
            method=visit.scope.get("method", "GET"),
            path=_clean(visit.scope["path"]),
            status=status,
            took_ms=took_ms,
            received=received,
            sent=sent,
            kind=visit.kind.value,
            who=visit.visitor.name,
        )
        self._requests.note(line)


def _clean(path: str) -> str:
    """Return a path as it may be stored and shown; what a link's holder must keep is left out."""
    if path.startswith(LINK_PATH):
        path = f"{LINK_PATH}…"
    return "".join(one if one.isprintable() else "?" for one in path[:PATH_MAX])
