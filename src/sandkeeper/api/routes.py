"""The whole URL table. Each route has its access, its handler and the shape of its answer."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sandkeeper.api import access as callers
from sandkeeper.api import (
    files,
    fleet,
    hot,
    jobs,
    operations,
    registrations,
    sandboxes,
    schemas,
    schemas_access,
    schemas_files,
    schemas_sessions,
    schemas_wakes,
    sessions,
    wakes,
)
from sandkeeper.api.auth import Access

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic import BaseModel

PUBLIC, SIGNED, CALLER = Access.PUBLIC, Access.SIGNED, Access.CALLER
LOOK, ACT, OVERSEE, OPERATE = Access.LOOK, Access.ACT, Access.OVERSEE, Access.OPERATE


@dataclass(frozen=True, slots=True)
class Entry:
    """One route. `handler` is a function for FastAPI, or a `HotRoute` class that is bare ASGI."""

    method: str
    path: str
    access: Access
    handler: Callable[..., object]
    answer: type[BaseModel] | str | None = None
    """The shape of the JSON, the media type of what is not JSON, or None where there is no body."""
    status: int = 200
    body: type[BaseModel] | None = None
    """Named for hot routes only: FastAPI reads the others' from their signature."""


EVENTS: Final = "text/event-stream"
FILE: Final = "application/octet-stream"
ARCHIVE: Final = "application/x-tar"
METRICS: Final = "text/plain"

SANDBOX: Final = "/api/sandboxes/{project}"
SESSION: Final = "/api/sessions/{session}"
LEASE: Final = "/api/leases/{lease}"

# The same under both: host applications call a job a generation, too.
JOB_ROUTES: Final = tuple(
    entry
    for job in ("/api/jobs/{job}", "/api/generation/{job}")
    for entry in (
        Entry("GET", job, LOOK, jobs.get, schemas_wakes.Job),
        Entry("GET", f"{job}/status", LOOK, jobs.get, schemas_wakes.Job),
        Entry("PATCH", job, OPERATE, jobs.change, schemas_wakes.Job),
        Entry("POST", f"{job}/ready", OPERATE, jobs.ready, schemas_wakes.Job),
        Entry("POST", f"{job}/snapshot", ACT, jobs.snapshot, schemas_wakes.Snapshot),
        Entry("POST", f"{job}/resume", ACT, jobs.resume, schemas_wakes.Resumed),
        Entry("POST", f"{job}/rebuild", ACT, jobs.rebuild, schemas_wakes.Rebuilt),
    )
)

ROUTES: Final = (
    Entry("GET", "/api/sandboxes", OVERSEE, sandboxes.list_sandboxes, schemas.SandboxPage),
    Entry("PUT", SANDBOX, OPERATE, sandboxes.create, schemas.Status),
    Entry("DELETE", SANDBOX, OPERATE, sandboxes.kill, schemas.Status),
    Entry("GET", f"{SANDBOX}/status", LOOK, hot.StatusRoute, schemas.Status),
    Entry(
        "POST",
        f"{SANDBOX}/activity",
        LOOK,
        hot.ActivityRoute,
        schemas.Activity,
        202,
        schemas.ActivityAsked,
    ),
    Entry("POST", f"{SANDBOX}/wake", ACT, wakes.wake, schemas_wakes.Wake, 202),
    Entry("GET", f"{SANDBOX}/wake", LOOK, wakes.read_wake, schemas_wakes.Wake),
    Entry("POST", f"{SANDBOX}/warm", ACT, wakes.warm, schemas_wakes.Warmed, 202),
    Entry("GET", f"{SANDBOX}/log", LOOK, wakes.log, schemas_wakes.AppLog),
    Entry("POST", f"{SANDBOX}/pause", ACT, sandboxes.pause, schemas.Status),
    Entry("POST", f"{SANDBOX}/verify", LOOK, sandboxes.verify, schemas.Status),
    Entry("POST", f"{SANDBOX}/extend", ACT, sandboxes.extend, schemas.Status),
    Entry("POST", f"{SANDBOX}/mismatch", LOOK, sandboxes.mismatch, None, 202),
    Entry("GET", f"{SANDBOX}/history", LOOK, sandboxes.history, schemas.History),
    Entry("GET", f"{SANDBOX}/explain", LOOK, sandboxes.explain, schemas.Explanation),
    Entry("GET", f"{SANDBOX}/events", LOOK, hot.SandboxEvents, EVENTS),
    Entry("GET", f"{SANDBOX}/files", LOOK, files.list_files, schemas_files.FileList),
    Entry("GET", f"{SANDBOX}/files/{{path:path}}", LOOK, files.read_file, FILE),
    Entry("PUT", f"{SANDBOX}/files/{{path:path}}", ACT, files.write_file, schemas_files.FileEdit),
    Entry(
        "DELETE", f"{SANDBOX}/files/{{path:path}}", ACT, files.delete_file, schemas_files.FileEdit
    ),
    Entry("POST", f"{SANDBOX}/capture", ACT, files.capture, schemas_files.Capture),
    Entry("GET", f"{SANDBOX}/archive", LOOK, files.read_archive, ARCHIVE),
    Entry("PUT", f"{SANDBOX}/archive", ACT, files.write_archive, schemas_files.FileEdit),
    Entry("POST", f"{SANDBOX}/leases", OPERATE, sessions.take_lease, schemas_sessions.Leased, 201),
    Entry("POST", LEASE, OPERATE, sessions.renew_lease, schemas_sessions.Lease),
    Entry("DELETE", LEASE, OPERATE, sessions.release_lease, None, 204),
    Entry("GET", "/api/sessions", OVERSEE, sessions.list_sessions, schemas_sessions.SessionPage),
    Entry(
        "POST",
        "/api/sessions/acquire",
        OPERATE,
        sessions.acquire,
        schemas_sessions.SessionAcquired,
    ),
    Entry(
        "GET", "/api/sessions/metrics", OVERSEE, sessions.metrics, schemas_sessions.SandboxMetrics
    ),
    Entry("GET", SESSION, OVERSEE, sessions.show, schemas_sessions.Session),
    Entry("DELETE", SESSION, OPERATE, sessions.close, None, 204),
    Entry("POST", f"{SESSION}/touch", OPERATE, sessions.touch, schemas_sessions.Session),
    Entry("POST", f"{SESSION}/release", OPERATE, sessions.release, schemas_sessions.Session),
    Entry("POST", f"{SESSION}/transfer", OPERATE, sessions.transfer, schemas_sessions.Session),
    Entry("GET", f"{SESSION}/stream", OPERATE, sessions.show_stream, schemas_sessions.Stream),
    Entry("POST", f"{SESSION}/stream", OPERATE, sessions.start_stream, schemas_sessions.Stream),
    Entry("DELETE", f"{SESSION}/stream", OPERATE, sessions.stop_stream, None, 204),
    Entry("GET", "/api/pools", OVERSEE, sessions.list_pools, schemas_sessions.Pools),
    Entry("PUT", "/api/pools", OPERATE, sessions.set_pool, schemas_sessions.Pool),
    Entry("POST", "/api/jobs", OPERATE, jobs.create, schemas_wakes.Job, 201),
    Entry("POST", "/api/generation", OPERATE, jobs.create, schemas_wakes.Job, 201),
    Entry("GET", "/api/dashboard", OVERSEE, jobs.dashboard, schemas_wakes.Dashboard),
    *JOB_ROUTES,
    Entry("GET", "/api/fleet/summary", OVERSEE, fleet.summary, schemas.FleetSummary),
    Entry("GET", "/api/fleet/health", OVERSEE, fleet.health, schemas.Health),
    Entry("GET", "/api/fleet/trends", OVERSEE, fleet.trends, schemas.Trends),
    Entry("GET", "/api/fleet/history", OVERSEE, fleet.history, schemas.History),
    Entry("GET", "/api/fleet/deliveries", OVERSEE, fleet.deliveries, schemas.DeliveryPage),
    Entry("GET", "/api/fleet/leaks", OVERSEE, fleet.leaks, schemas.LeakPage),
    Entry("GET", "/api/fleet/events", OVERSEE, hot.FleetEvents, EVENTS),
    Entry("POST", "/api/fleet/bulk", OPERATE, fleet.bulk, schemas.BulkResult),
    Entry("POST", "/api/fleet/reconcile", OPERATE, fleet.reconcile, schemas.Reconciled),
    Entry("POST", "/api/webhooks/e2b", SIGNED, hot.WebhookRoute, schemas.WebhookReceipt),
    Entry("GET", "/api/webhooks", OVERSEE, registrations.list_all, schemas.Registrations),
    Entry("POST", "/api/webhooks", OPERATE, registrations.register, schemas.Registrations),
    Entry("POST", "/api/webhooks/test", OPERATE, registrations.test, schemas.WebhookReceipt),
    Entry("DELETE", "/api/webhooks", OPERATE, registrations.unregister, schemas.Registrations),
    Entry(
        "POST",
        "/api/client-tokens",
        OPERATE,
        callers.issue_client_token,
        schemas_access.ClientToken,
        201,
    ),
    Entry(
        "GET",
        "/api/client-tokens",
        OPERATE,
        callers.list_client_tokens,
        schemas_access.ListedTokenPage,
    ),
    Entry(
        "DELETE", "/api/client-tokens/{token_id}", OPERATE, callers.revoke_client_token, None, 204
    ),
    Entry("POST", "/api/stream-tickets", CALLER, callers.issue_stream_ticket, schemas.Token, 201),
    Entry("POST", "/api/login-passes", OVERSEE, callers.issue_pass, schemas.Token, 201),
    Entry("POST", "/api/login", PUBLIC, callers.log_in, schemas.Me),
    Entry("POST", "/api/logout", PUBLIC, callers.log_out, None, 204),
    Entry("GET", "/api/logins", OPERATE, callers.list_logins, schemas_access.LoginPage),
    Entry("DELETE", "/api/logins/{token_id}", OPERATE, callers.revoke_login, None, 204),
    Entry("GET", "/api/me", CALLER, callers.me, schemas.Me),
    Entry("GET", "/api/presentation", PUBLIC, operations.presentation, schemas.Presentation),
    Entry("GET", "/api/switches", OVERSEE, operations.read_switches, schemas.Switches),
    Entry("PATCH", "/api/switches", OPERATE, operations.turn_switches, schemas.Switches),
    Entry("POST", "/api/tasks/{name}/run", OPERATE, operations.run_task, schemas.RunReport),
    Entry("GET", "/healthz", PUBLIC, operations.healthz, schemas.Alive),
    Entry("GET", "/readyz", PUBLIC, operations.readyz, schemas.Readiness),
    Entry("GET", "/metrics", PUBLIC, operations.metrics, METRICS),
)
"""`/openapi.json` is beside it and public too; pages and files are in `web`, and hold no data."""

LARGE_BODIES: Final = re.compile(r"/api/sandboxes/[^/]+/(files/.+|archive)", re.DOTALL)
"""Routes whose body may be a file or an archive."""
