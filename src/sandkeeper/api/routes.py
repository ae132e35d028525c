"""The whole URL table. Each route has its access, its handler and the shape of its answer."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pydantic import BaseModel

from sandkeeper.api.auth import Access
from sandkeeper.api.handlers import (
    admin,
    files,
    fleet,
    jobs,
    sandboxes,
    sessions,
    wakes,
    webhook_registration,
)
from sandkeeper.api.handlers import login as callers
from sandkeeper.api.schemas import (
    access as access_schemas,
)
from sandkeeper.api.schemas import (
    files as file_schemas,
)
from sandkeeper.api.schemas import (
    sandboxes as sandbox_schemas,
)
from sandkeeper.api.schemas import (
    sessions as session_schemas,
)
from sandkeeper.api.schemas import (
    wakes as wake_schemas,
)
from sandkeeper.api.status import routes as status_routes

PUBLIC, SIGNED, CALLER = Access.PUBLIC, Access.SIGNED, Access.CALLER
LOOK, ACT, OVERSEE, OPERATE = Access.READ_ONE, Access.WRITE_ONE, Access.READ_ALL, Access.ADMIN


@dataclass(frozen=True, slots=True)
class RouteEntry:
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
        RouteEntry("GET", job, LOOK, jobs.get, wake_schemas.JobOut),
        RouteEntry("GET", f"{job}/status", LOOK, jobs.get, wake_schemas.JobOut),
        RouteEntry("PATCH", job, OPERATE, jobs.change, wake_schemas.JobOut),
        RouteEntry("POST", f"{job}/ready", OPERATE, jobs.ready, wake_schemas.JobOut),
        RouteEntry("POST", f"{job}/snapshot", ACT, jobs.snapshot, wake_schemas.Snapshot),
        RouteEntry("POST", f"{job}/resume", ACT, jobs.resume, wake_schemas.Resumed),
        RouteEntry("POST", f"{job}/rebuild", ACT, jobs.rebuild, wake_schemas.Rebuilt),
    )
)

ROUTES: Final = (
    RouteEntry(
        "GET", "/api/sandboxes", OVERSEE, sandboxes.list_sandboxes, sandbox_schemas.SandboxPage
    ),
    RouteEntry("PUT", SANDBOX, OPERATE, sandboxes.create, sandbox_schemas.Status),
    RouteEntry("DELETE", SANDBOX, OPERATE, sandboxes.kill, sandbox_schemas.Status),
    RouteEntry("GET", f"{SANDBOX}/status", LOOK, status_routes.StatusRoute, sandbox_schemas.Status),
    RouteEntry(
        "POST",
        f"{SANDBOX}/activity",
        LOOK,
        status_routes.ActivityRoute,
        sandbox_schemas.ActivityOut,
        202,
        sandbox_schemas.ActivityRequest,
    ),
    RouteEntry("POST", f"{SANDBOX}/wake", ACT, wakes.wake, wake_schemas.WakeOut, 202),
    RouteEntry("GET", f"{SANDBOX}/wake", LOOK, wakes.read_wake, wake_schemas.WakeOut),
    RouteEntry("POST", f"{SANDBOX}/warm", ACT, wakes.warm, wake_schemas.WarmResult, 202),
    RouteEntry("GET", f"{SANDBOX}/log", LOOK, wakes.log, wake_schemas.AppLogOut),
    RouteEntry("POST", f"{SANDBOX}/pause", ACT, sandboxes.pause, sandbox_schemas.Status),
    RouteEntry("POST", f"{SANDBOX}/verify", LOOK, sandboxes.verify, sandbox_schemas.Status),
    RouteEntry("POST", f"{SANDBOX}/extend", ACT, sandboxes.extend, sandbox_schemas.Status),
    RouteEntry("POST", f"{SANDBOX}/mismatch", LOOK, sandboxes.mismatch, None, 202),
    RouteEntry("GET", f"{SANDBOX}/history", LOOK, sandboxes.history, sandbox_schemas.History),
    RouteEntry(
        "GET", f"{SANDBOX}/explain", LOOK, sandboxes.explain, sandbox_schemas.ExplanationOut
    ),
    RouteEntry("GET", f"{SANDBOX}/events", LOOK, status_routes.SandboxEvents, EVENTS),
    RouteEntry("GET", f"{SANDBOX}/files", LOOK, files.list_files, file_schemas.FileList),
    RouteEntry("GET", f"{SANDBOX}/files/{{path:path}}", LOOK, files.read_file, FILE),
    RouteEntry(
        "PUT", f"{SANDBOX}/files/{{path:path}}", ACT, files.write_file, file_schemas.FileEdit
    ),
    RouteEntry(
        "DELETE", f"{SANDBOX}/files/{{path:path}}", ACT, files.delete_file, file_schemas.FileEdit
    ),
    RouteEntry("POST", f"{SANDBOX}/capture", ACT, files.capture, file_schemas.Capture),
    RouteEntry("GET", f"{SANDBOX}/archive", LOOK, files.read_archive, ARCHIVE),
    RouteEntry("PUT", f"{SANDBOX}/archive", ACT, files.write_archive, file_schemas.FileEdit),
    RouteEntry(
        "POST", f"{SANDBOX}/leases", OPERATE, sessions.take_lease, session_schemas.Leased, 201
    ),
    RouteEntry("POST", LEASE, OPERATE, sessions.renew_lease, session_schemas.LeaseOut),
    RouteEntry("DELETE", LEASE, OPERATE, sessions.release_lease, None, 204),
    RouteEntry(
        "GET", "/api/sessions", OVERSEE, sessions.list_sessions, session_schemas.SessionPage
    ),
    RouteEntry(
        "POST",
        "/api/sessions/acquire",
        OPERATE,
        sessions.acquire,
        session_schemas.SessionAcquired,
    ),
    RouteEntry(
        "GET", "/api/sessions/metrics", OVERSEE, sessions.metrics, session_schemas.SandboxMetrics
    ),
    RouteEntry("GET", SESSION, OVERSEE, sessions.show, session_schemas.SessionOut),
    RouteEntry("DELETE", SESSION, OPERATE, sessions.close, None, 204),
    RouteEntry("POST", f"{SESSION}/touch", OPERATE, sessions.touch, session_schemas.SessionOut),
    RouteEntry("POST", f"{SESSION}/release", OPERATE, sessions.release, session_schemas.SessionOut),
    RouteEntry(
        "POST", f"{SESSION}/transfer", OPERATE, sessions.transfer, session_schemas.SessionOut
    ),
    RouteEntry(
        "GET", f"{SESSION}/stream", OPERATE, sessions.show_stream, session_schemas.StreamOut
    ),
    RouteEntry(
        "POST", f"{SESSION}/stream", OPERATE, sessions.start_stream, session_schemas.StreamOut
    ),
    RouteEntry("DELETE", f"{SESSION}/stream", OPERATE, sessions.stop_stream, None, 204),
    RouteEntry("GET", "/api/pools", OVERSEE, sessions.list_pools, session_schemas.PoolList),
    RouteEntry("PUT", "/api/pools", OPERATE, sessions.set_pool, session_schemas.PoolOut),
    RouteEntry("POST", "/api/jobs", OPERATE, jobs.create, wake_schemas.JobOut, 201),
    RouteEntry("POST", "/api/generation", OPERATE, jobs.create, wake_schemas.JobOut, 201),
    RouteEntry("GET", "/api/dashboard", OVERSEE, jobs.dashboard, wake_schemas.Dashboard),
    *JOB_ROUTES,
    RouteEntry("GET", "/api/fleet/summary", OVERSEE, fleet.summary, sandbox_schemas.FleetSummary),
    RouteEntry("GET", "/api/fleet/health", OVERSEE, fleet.health, sandbox_schemas.HealthOut),
    RouteEntry("GET", "/api/fleet/trends", OVERSEE, fleet.trends, sandbox_schemas.TrendsOut),
    RouteEntry("GET", "/api/fleet/history", OVERSEE, fleet.history, sandbox_schemas.History),
    RouteEntry(
        "GET", "/api/fleet/deliveries", OVERSEE, fleet.deliveries, sandbox_schemas.DeliveryPage
    ),
    RouteEntry("GET", "/api/fleet/leaks", OVERSEE, fleet.leaks, sandbox_schemas.LeakPage),
    RouteEntry("GET", "/api/fleet/events", OVERSEE, status_routes.FleetEvents, EVENTS),
    RouteEntry("POST", "/api/fleet/bulk", OPERATE, fleet.bulk, sandbox_schemas.BulkResult),
    RouteEntry(
        "POST", "/api/fleet/reconcile", OPERATE, fleet.reconcile, sandbox_schemas.ReconcileResult
    ),
    RouteEntry(
        "POST",
        "/api/webhooks/e2b",
        SIGNED,
        status_routes.WebhookRoute,
        sandbox_schemas.WebhookReceipt,
    ),
    RouteEntry(
        "GET",
        "/api/webhooks",
        OVERSEE,
        webhook_registration.list_all,
        sandbox_schemas.Registrations,
    ),
    RouteEntry(
        "POST",
        "/api/webhooks",
        OPERATE,
        webhook_registration.register,
        sandbox_schemas.Registrations,
    ),
    RouteEntry(
        "POST",
        "/api/webhooks/test",
        OPERATE,
        webhook_registration.test,
        sandbox_schemas.WebhookReceipt,
    ),
    RouteEntry(
        "DELETE",
        "/api/webhooks",
        OPERATE,
        webhook_registration.unregister,
        sandbox_schemas.Registrations,
    ),
    RouteEntry(
        "POST",
        "/api/client-tokens",
        OPERATE,
        callers.issue_client_token,
        access_schemas.ClientToken,
        201,
    ),
    RouteEntry(
        "GET",
        "/api/client-tokens",
        OPERATE,
        callers.list_client_tokens,
        access_schemas.ListedTokenPage,
    ),
    RouteEntry(
        "DELETE", "/api/client-tokens/{token_id}", OPERATE, callers.revoke_client_token, None, 204
    ),
    RouteEntry(
        "POST",
        "/api/stream-tickets",
        CALLER,
        callers.issue_stream_ticket,
        sandbox_schemas.Token,
        201,
    ),
    RouteEntry(
        "POST", "/api/login-passes", OVERSEE, callers.issue_pass, sandbox_schemas.Token, 201
    ),
    RouteEntry("POST", "/api/login", PUBLIC, callers.log_in, sandbox_schemas.Me),
    RouteEntry("POST", "/api/logout", PUBLIC, callers.log_out, None, 204),
    RouteEntry("GET", "/api/logins", OPERATE, callers.list_logins, access_schemas.LoginPage),
    RouteEntry("DELETE", "/api/logins/{token_id}", OPERATE, callers.revoke_login, None, 204),
    RouteEntry("GET", "/api/me", CALLER, callers.me, sandbox_schemas.Me),
    RouteEntry(
        "GET", "/api/presentation", PUBLIC, admin.presentation, sandbox_schemas.PresentationOut
    ),
    RouteEntry("GET", "/api/switches", OVERSEE, admin.read_switches, sandbox_schemas.SwitchesOut),
    RouteEntry("PATCH", "/api/switches", OPERATE, admin.turn_switches, sandbox_schemas.SwitchesOut),
    RouteEntry("POST", "/api/tasks/{name}/run", OPERATE, admin.run_task, sandbox_schemas.RunReport),
    RouteEntry("GET", "/healthz", PUBLIC, admin.healthz, sandbox_schemas.Alive),
    RouteEntry("GET", "/readyz", PUBLIC, admin.readyz, sandbox_schemas.Readiness),
    RouteEntry("GET", "/metrics", PUBLIC, admin.metrics, METRICS),
)
"""`/openapi.json` is beside it and public too; pages and files are in `web`, and hold no data."""

LARGE_BODIES: Final = re.compile(r"/api/sandboxes/[^/]+/(files/.+|archive)", re.DOTALL)
"""Routes whose body may be a file or an archive."""
