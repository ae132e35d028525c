"""The whole URL table. Each route has its access, its handler and the shape of its answer."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

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
        Entry("GET", job, LOOK, jobs.get, wake_schemas.Job),
        Entry("GET", f"{job}/status", LOOK, jobs.get, wake_schemas.Job),
        Entry("PATCH", job, OPERATE, jobs.change, wake_schemas.Job),
        Entry("POST", f"{job}/ready", OPERATE, jobs.ready, wake_schemas.Job),
        Entry("POST", f"{job}/snapshot", ACT, jobs.snapshot, wake_schemas.Snapshot),
        Entry("POST", f"{job}/resume", ACT, jobs.resume, wake_schemas.Resumed),
        Entry("POST", f"{job}/rebuild", ACT, jobs.rebuild, wake_schemas.Rebuilt),
    )
)

ROUTES: Final = (
    Entry("GET", "/api/sandboxes", OVERSEE, sandboxes.list_sandboxes, sandbox_schemas.SandboxPage),
    Entry("PUT", SANDBOX, OPERATE, sandboxes.create, sandbox_schemas.Status),
    Entry("DELETE", SANDBOX, OPERATE, sandboxes.kill, sandbox_schemas.Status),
    Entry("GET", f"{SANDBOX}/status", LOOK, status_routes.StatusRoute, sandbox_schemas.Status),
    Entry(
        "POST",
        f"{SANDBOX}/activity",
        LOOK,
        status_routes.ActivityRoute,
        sandbox_schemas.Activity,
        202,
        sandbox_schemas.ActivityAsked,
    ),
    Entry("POST", f"{SANDBOX}/wake", ACT, wakes.wake, wake_schemas.Wake, 202),
    Entry("GET", f"{SANDBOX}/wake", LOOK, wakes.read_wake, wake_schemas.Wake),
    Entry("POST", f"{SANDBOX}/warm", ACT, wakes.warm, wake_schemas.Warmed, 202),
    Entry("GET", f"{SANDBOX}/log", LOOK, wakes.log, wake_schemas.AppLog),
    Entry("POST", f"{SANDBOX}/pause", ACT, sandboxes.pause, sandbox_schemas.Status),
    Entry("POST", f"{SANDBOX}/verify", LOOK, sandboxes.verify, sandbox_schemas.Status),
    Entry("POST", f"{SANDBOX}/extend", ACT, sandboxes.extend, sandbox_schemas.Status),
    Entry("POST", f"{SANDBOX}/mismatch", LOOK, sandboxes.mismatch, None, 202),
    Entry("GET", f"{SANDBOX}/history", LOOK, sandboxes.history, sandbox_schemas.History),
    Entry("GET", f"{SANDBOX}/explain", LOOK, sandboxes.explain, sandbox_schemas.Explanation),
    Entry("GET", f"{SANDBOX}/events", LOOK, status_routes.SandboxEvents, EVENTS),
    Entry("GET", f"{SANDBOX}/files", LOOK, files.list_files, file_schemas.FileList),
    Entry("GET", f"{SANDBOX}/files/{{path:path}}", LOOK, files.read_file, FILE),
    Entry("PUT", f"{SANDBOX}/files/{{path:path}}", ACT, files.write_file, file_schemas.FileEdit),
    Entry(
        "DELETE", f"{SANDBOX}/files/{{path:path}}", ACT, files.delete_file, file_schemas.FileEdit
    ),
    Entry("POST", f"{SANDBOX}/capture", ACT, files.capture, file_schemas.Capture),
    Entry("GET", f"{SANDBOX}/archive", LOOK, files.read_archive, ARCHIVE),
    Entry("PUT", f"{SANDBOX}/archive", ACT, files.write_archive, file_schemas.FileEdit),
    Entry("POST", f"{SANDBOX}/leases", OPERATE, sessions.take_lease, session_schemas.Leased, 201),
    Entry("POST", LEASE, OPERATE, sessions.renew_lease, session_schemas.Lease),
    Entry("DELETE", LEASE, OPERATE, sessions.release_lease, None, 204),
    Entry("GET", "/api/sessions", OVERSEE, sessions.list_sessions, session_schemas.SessionPage),
    Entry(
        "POST",
        "/api/sessions/acquire",
        OPERATE,
        sessions.acquire,
        session_schemas.SessionAcquired,
    ),
    Entry(
        "GET", "/api/sessions/metrics", OVERSEE, sessions.metrics, session_schemas.SandboxMetrics
    ),
    Entry("GET", SESSION, OVERSEE, sessions.show, session_schemas.Session),
    Entry("DELETE", SESSION, OPERATE, sessions.close, None, 204),
    Entry("POST", f"{SESSION}/touch", OPERATE, sessions.touch, session_schemas.Session),
    Entry("POST", f"{SESSION}/release", OPERATE, sessions.release, session_schemas.Session),
    Entry("POST", f"{SESSION}/transfer", OPERATE, sessions.transfer, session_schemas.Session),
    Entry("GET", f"{SESSION}/stream", OPERATE, sessions.show_stream, session_schemas.Stream),
    Entry("POST", f"{SESSION}/stream", OPERATE, sessions.start_stream, session_schemas.Stream),
    Entry("DELETE", f"{SESSION}/stream", OPERATE, sessions.stop_stream, None, 204),
    Entry("GET", "/api/pools", OVERSEE, sessions.list_pools, session_schemas.Pools),
    Entry("PUT", "/api/pools", OPERATE, sessions.set_pool, session_schemas.Pool),
    Entry("POST", "/api/jobs", OPERATE, jobs.create, wake_schemas.Job, 201),
    Entry("POST", "/api/generation", OPERATE, jobs.create, wake_schemas.Job, 201),
    Entry("GET", "/api/dashboard", OVERSEE, jobs.dashboard, wake_schemas.Dashboard),
    *JOB_ROUTES,
    Entry("GET", "/api/fleet/summary", OVERSEE, fleet.summary, sandbox_schemas.FleetSummary),
    Entry("GET", "/api/fleet/health", OVERSEE, fleet.health, sandbox_schemas.Health),
    Entry("GET", "/api/fleet/trends", OVERSEE, fleet.trends, sandbox_schemas.Trends),
    Entry("GET", "/api/fleet/history", OVERSEE, fleet.history, sandbox_schemas.History),
    Entry("GET", "/api/fleet/deliveries", OVERSEE, fleet.deliveries, sandbox_schemas.DeliveryPage),
    Entry("GET", "/api/fleet/leaks", OVERSEE, fleet.leaks, sandbox_schemas.LeakPage),
    Entry("GET", "/api/fleet/events", OVERSEE, status_routes.FleetEvents, EVENTS),
    Entry("POST", "/api/fleet/bulk", OPERATE, fleet.bulk, sandbox_schemas.BulkResult),
    Entry("POST", "/api/fleet/reconcile", OPERATE, fleet.reconcile, sandbox_schemas.Reconciled),
    Entry(
        "POST",
        "/api/webhooks/e2b",
        SIGNED,
        status_routes.WebhookRoute,
        sandbox_schemas.WebhookReceipt,
    ),
    Entry(
        "GET",
        "/api/webhooks",
        OVERSEE,
        webhook_registration.list_all,
        sandbox_schemas.Registrations,
    ),
    Entry(
        "POST",
        "/api/webhooks",
        OPERATE,
        webhook_registration.register,
        sandbox_schemas.Registrations,
    ),
    Entry(
        "POST",
        "/api/webhooks/test",
        OPERATE,
        webhook_registration.test,
        sandbox_schemas.WebhookReceipt,
    ),
    Entry(
        "DELETE",
        "/api/webhooks",
        OPERATE,
        webhook_registration.unregister,
        sandbox_schemas.Registrations,
    ),
    Entry(
        "POST",
        "/api/client-tokens",
        OPERATE,
        callers.issue_client_token,
        access_schemas.ClientToken,
        201,
    ),
    Entry(
        "GET",
        "/api/client-tokens",
        OPERATE,
        callers.list_client_tokens,
        access_schemas.ListedTokenPage,
    ),
    Entry(
        "DELETE", "/api/client-tokens/{token_id}", OPERATE, callers.revoke_client_token, None, 204
    ),
    Entry(
        "POST",
        "/api/stream-tickets",
        CALLER,
        callers.issue_stream_ticket,
        sandbox_schemas.Token,
        201,
    ),
    Entry("POST", "/api/login-passes", OVERSEE, callers.issue_pass, sandbox_schemas.Token, 201),
    Entry("POST", "/api/login", PUBLIC, callers.log_in, sandbox_schemas.Me),
    Entry("POST", "/api/logout", PUBLIC, callers.log_out, None, 204),
    Entry("GET", "/api/logins", OPERATE, callers.list_logins, access_schemas.LoginPage),
    Entry("DELETE", "/api/logins/{token_id}", OPERATE, callers.revoke_login, None, 204),
    Entry("GET", "/api/me", CALLER, callers.me, sandbox_schemas.Me),
    Entry("GET", "/api/presentation", PUBLIC, admin.presentation, sandbox_schemas.Presentation),
    Entry("GET", "/api/switches", OVERSEE, admin.read_switches, sandbox_schemas.Switches),
    Entry("PATCH", "/api/switches", OPERATE, admin.turn_switches, sandbox_schemas.Switches),
    Entry("POST", "/api/tasks/{name}/run", OPERATE, admin.run_task, sandbox_schemas.RunReport),
    Entry("GET", "/healthz", PUBLIC, admin.healthz, sandbox_schemas.Alive),
    Entry("GET", "/readyz", PUBLIC, admin.readyz, sandbox_schemas.Readiness),
    Entry("GET", "/metrics", PUBLIC, admin.metrics, METRICS),
)
"""`/openapi.json` is beside it and public too; pages and files are in `web`, and hold no data."""

LARGE_BODIES: Final = re.compile(r"/api/sandboxes/[^/]+/(files/.+|archive)", re.DOTALL)
"""Routes whose body may be a file or an archive."""
