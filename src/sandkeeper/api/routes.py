"""The whole URL table. Each route has its access, its handler and the shape of its answer."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel

from sandkeeper.api.auth import Access
from sandkeeper.api.handlers import (
    admin,
    file_versions,
    files,
    fleet,
    jobs,
    keys,
    sandboxes,
    sessions,
    wakes,
    webhook_registration,
)
from sandkeeper.api.handlers import login as callers
from sandkeeper.api.handlers.usage import budgets, capacity, costs
from sandkeeper.api.previews import handlers as previews
from sandkeeper.api.schemas import access as access_schemas
from sandkeeper.api.schemas import admin as admin_schemas
from sandkeeper.api.schemas import capacity as capacity_schemas
from sandkeeper.api.schemas import costs as cost_schemas
from sandkeeper.api.schemas import files as file_schemas
from sandkeeper.api.schemas import fleet as fleet_schemas
from sandkeeper.api.schemas import previews as preview_schemas
from sandkeeper.api.schemas import sandboxes as sandbox_schemas
from sandkeeper.api.schemas import sessions as session_schemas
from sandkeeper.api.schemas import wakes as wake_schemas
from sandkeeper.api.schemas import webhooks as webhook_schemas
from sandkeeper.api.status import routes as status_routes

PUBLIC, SIGNED, CALLER = Access.PUBLIC, Access.SIGNED, Access.CALLER
READ_ONE, WRITE_ONE, OPERATE_ONE = Access.READ_ONE, Access.WRITE_ONE, Access.OPERATE_ONE
READ_ALL, OPERATE, ADMIN = Access.READ_ALL, Access.OPERATE, Access.ADMIN


@dataclass(frozen=True, slots=True)
class RouteEntry:
    """One route: who may call it, which function handles it, and what it answers with."""

    method: str
    path: str
    access: Access
    handler: Callable[..., Any]
    answer: type[BaseModel] | str | None = None
    """The shape of the JSON, the media type of what is not JSON, or None where there is no body."""
    status: int = 200
    body: type[BaseModel] | None = None
    """The request's body, for plain routes only: FastAPI reads the others' from their signature."""
    is_plain: bool = False
    """True for a Starlette endpoint (`Request` to `Response`), or `StatusRoute`, which is ASGI."""


EVENTS: Final = "text/event-stream"
FILE: Final = "application/octet-stream"
ARCHIVE: Final = "application/x-tar"
METRICS: Final = "text/plain"

SANDBOX: Final = "/api/sandboxes/{project}"
SESSION: Final = "/api/sessions/{session}"
LEASE: Final = "/api/leases/{lease}"
TERMINAL: Final = f"{SANDBOX}/terminal"
"""The one WebSocket, for operators: see `terminal`."""

# The same under both: host applications call a job a generation, too.
JOB_ROUTES: Final = tuple(
    entry
    for job in ("/api/jobs/{job}", "/api/generation/{job}")
    for entry in (
        RouteEntry("GET", job, READ_ONE, jobs.get, wake_schemas.JobOut),
        RouteEntry("GET", f"{job}/status", READ_ONE, jobs.get, wake_schemas.JobOut),
        RouteEntry("PATCH", job, OPERATE, jobs.change, wake_schemas.JobOut),
        RouteEntry("POST", f"{job}/ready", OPERATE, jobs.ready, wake_schemas.JobOut),
        RouteEntry("POST", f"{job}/snapshot", WRITE_ONE, jobs.snapshot, wake_schemas.Snapshot),
        RouteEntry("POST", f"{job}/resume", WRITE_ONE, jobs.resume, wake_schemas.Resumed),
        RouteEntry("POST", f"{job}/rebuild", WRITE_ONE, jobs.rebuild, wake_schemas.Rebuilt),
    )
)

ROUTES: Final = (
    RouteEntry(
        "GET", "/api/sandboxes", READ_ALL, sandboxes.list_sandboxes, sandbox_schemas.SandboxPage
    ),
    RouteEntry("PUT", SANDBOX, OPERATE_ONE, sandboxes.create, sandbox_schemas.Status, 201),
    RouteEntry("DELETE", SANDBOX, OPERATE_ONE, sandboxes.kill, sandbox_schemas.Status),
    RouteEntry("POST", f"{SANDBOX}/adopt", OPERATE, sandboxes.adopt, sandbox_schemas.AdoptionOut),
    RouteEntry(
        "GET",
        f"{SANDBOX}/status",
        READ_ONE,
        status_routes.StatusRoute,
        sandbox_schemas.Status,
        is_plain=True,
    ),
    RouteEntry(
        "POST",
        f"{SANDBOX}/activity",
        READ_ONE,
        status_routes.activity,
        sandbox_schemas.ActivityOut,
        202,
        sandbox_schemas.ActivityRequest,
        is_plain=True,
    ),
    RouteEntry("POST", f"{SANDBOX}/wake", WRITE_ONE, wakes.wake, wake_schemas.WakeOut, 202),
    RouteEntry("GET", f"{SANDBOX}/wake", READ_ONE, wakes.read_wake, wake_schemas.WakeOut),
    RouteEntry("POST", f"{SANDBOX}/warm", WRITE_ONE, wakes.warm, wake_schemas.WarmResult, 202),
    RouteEntry("GET", f"{SANDBOX}/log", READ_ONE, wakes.log, wake_schemas.AppLogOut),
    RouteEntry("POST", f"{SANDBOX}/pause", WRITE_ONE, sandboxes.pause, sandbox_schemas.Status),
    RouteEntry("POST", f"{SANDBOX}/verify", READ_ONE, sandboxes.verify, sandbox_schemas.Status),
    RouteEntry("POST", f"{SANDBOX}/extend", WRITE_ONE, sandboxes.extend, sandbox_schemas.Status),
    RouteEntry(
        "POST", f"{SANDBOX}/report-mismatch", READ_ONE, sandboxes.report_mismatch, None, 202
    ),
    RouteEntry("GET", f"{SANDBOX}/history", READ_ONE, sandboxes.history, sandbox_schemas.History),
    RouteEntry(
        "GET", f"{SANDBOX}/explain", READ_ONE, sandboxes.explain, sandbox_schemas.ExplanationOut
    ),
    RouteEntry(
        "GET",
        f"{SANDBOX}/requests",
        READ_ONE,
        previews.list_requests,
        preview_schemas.PreviewRequestList,
    ),
    RouteEntry(
        "POST",
        f"{SANDBOX}/links",
        OPERATE_ONE,
        previews.create_link,
        preview_schemas.NewShareLink,
        201,
    ),
    RouteEntry(
        "GET", f"{SANDBOX}/links", OPERATE_ONE, previews.list_links, preview_schemas.ShareLinkList
    ),
    RouteEntry(
        "DELETE", f"{SANDBOX}/links/{{link_id}}", OPERATE_ONE, previews.revoke_link, None, 204
    ),
    RouteEntry(
        "POST",
        "/api/preview-visits",
        CALLER,
        previews.begin_visit,
        preview_schemas.PreviewVisit,
    ),
    RouteEntry("GET", "/api/domains", READ_ALL, previews.list_domains, preview_schemas.DomainList),
    RouteEntry(
        "POST", "/api/domains", OPERATE, previews.add_domain, preview_schemas.DomainOut, 201
    ),
    RouteEntry("DELETE", "/api/domains/{host}", OPERATE, previews.remove_domain, None, 204),
    RouteEntry("GET", "/api/gateway/ask", PUBLIC, previews.ask, None),
    RouteEntry(
        "GET", f"{SANDBOX}/events", READ_ONE, status_routes.sandbox_events, EVENTS, is_plain=True
    ),
    RouteEntry("GET", f"{SANDBOX}/files", READ_ONE, files.list_files, file_schemas.FileList),
    RouteEntry("GET", f"{SANDBOX}/files/{{path:path}}", READ_ONE, files.read_file, FILE),
    RouteEntry(
        "PUT", f"{SANDBOX}/files/{{path:path}}", WRITE_ONE, files.write_file, file_schemas.FileEdit
    ),
    RouteEntry(
        "DELETE",
        f"{SANDBOX}/files/{{path:path}}",
        WRITE_ONE,
        files.delete_file,
        file_schemas.FileEdit,
    ),
    RouteEntry("POST", f"{SANDBOX}/capture", WRITE_ONE, files.capture, file_schemas.CaptureOut),
    RouteEntry("GET", f"{SANDBOX}/archive", READ_ONE, files.read_archive, ARCHIVE),
    RouteEntry("PUT", f"{SANDBOX}/archive", WRITE_ONE, files.write_archive, file_schemas.FileEdit),
    RouteEntry(
        "GET",
        f"{SANDBOX}/versions",
        READ_ONE,
        file_versions.list_versions,
        file_schemas.VersionPage,
    ),
    RouteEntry(
        "GET",
        f"{SANDBOX}/versions/{{number}}/diff",
        READ_ONE,
        file_versions.compare,
        file_schemas.VersionDiff,
    ),
    RouteEntry(
        "GET",
        f"{SANDBOX}/versions/{{number}}/diff/{{path:path}}",
        READ_ONE,
        file_versions.compare_file,
        file_schemas.FileDiff,
    ),
    RouteEntry(
        "POST", f"{SANDBOX}/restore", WRITE_ONE, file_versions.restore, file_schemas.RestoreOut
    ),
    RouteEntry(
        "POST", f"{SANDBOX}/fork", OPERATE_ONE, file_versions.fork, file_schemas.ForkOut, 201
    ),
    RouteEntry(
        "POST",
        f"{SANDBOX}/checkpoints",
        WRITE_ONE,
        file_versions.add_checkpoint,
        file_schemas.CheckpointOut,
        201,
    ),
    RouteEntry(
        "DELETE",
        f"{SANDBOX}/checkpoints/{{name:path}}",
        WRITE_ONE,
        file_versions.remove_checkpoint,
        None,
        204,
    ),
    RouteEntry(
        "POST", f"{SANDBOX}/leases", OPERATE_ONE, sessions.take_lease, session_schemas.Leased, 201
    ),
    RouteEntry("POST", LEASE, OPERATE, sessions.renew_lease, session_schemas.LeaseOut),
    RouteEntry("DELETE", LEASE, OPERATE, sessions.release_lease, None, 204),
    RouteEntry(
        "GET", "/api/sessions", READ_ALL, sessions.list_sessions, session_schemas.SessionPage
    ),
    RouteEntry(
        "POST",
        "/api/sessions/acquire",
        OPERATE,
        sessions.acquire,
        session_schemas.SessionAcquired,
    ),
    RouteEntry(
        "GET", "/api/sessions/metrics", READ_ALL, sessions.metrics, session_schemas.SandboxMetrics
    ),
    RouteEntry("GET", SESSION, READ_ALL, sessions.show, session_schemas.SessionOut),
    RouteEntry("DELETE", SESSION, OPERATE, sessions.close, None, 204),
    RouteEntry("POST", f"{SESSION}/touch", OPERATE, sessions.touch, session_schemas.SessionOut),
    RouteEntry(
        "POST", f"{SESSION}/release", OPERATE, sessions.release, session_schemas.SessionReleased
    ),
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
    RouteEntry("GET", "/api/pools", READ_ALL, sessions.list_pools, session_schemas.PoolList),
    RouteEntry("PUT", "/api/pools", OPERATE, sessions.set_pool, session_schemas.PoolOut),
    RouteEntry("POST", "/api/jobs", OPERATE, jobs.create, wake_schemas.JobOut, 201),
    RouteEntry("POST", "/api/generation", OPERATE, jobs.create, wake_schemas.JobOut, 201),
    RouteEntry("GET", "/api/dashboard", READ_ALL, jobs.dashboard, wake_schemas.Dashboard),
    *JOB_ROUTES,
    RouteEntry("GET", "/api/costs", READ_ALL, costs.report, cost_schemas.CostReportOut),
    RouteEntry(
        "GET", "/api/costs/simulation", READ_ALL, costs.simulate, cost_schemas.SimulationOut
    ),
    RouteEntry("GET", "/api/capacity", READ_ALL, capacity.show, capacity_schemas.CapacityOut),
    RouteEntry("GET", "/api/quotas", READ_ALL, capacity.list_quotas, capacity_schemas.QuotaList),
    RouteEntry("PUT", "/api/quotas", ADMIN, capacity.set_quota, capacity_schemas.QuotaOut),
    RouteEntry("GET", "/api/budgets", READ_ALL, budgets.list_budgets, cost_schemas.BudgetList),
    RouteEntry("PUT", "/api/budgets", ADMIN, budgets.set_budget, cost_schemas.BudgetOut),
    RouteEntry("DELETE", "/api/budgets/{tenant}", ADMIN, budgets.remove_budget, None, 204),
    RouteEntry("GET", "/api/fleet/summary", READ_ALL, fleet.summary, fleet_schemas.FleetSummary),
    RouteEntry("GET", "/api/fleet/health", READ_ALL, fleet.health, fleet_schemas.HealthOut),
    RouteEntry("GET", "/api/fleet/trends", READ_ALL, fleet.trends, fleet_schemas.TrendsOut),
    RouteEntry("GET", "/api/fleet/history", READ_ALL, fleet.history, sandbox_schemas.History),
    RouteEntry(
        "GET", "/api/fleet/deliveries", READ_ALL, fleet.deliveries, webhook_schemas.DeliveryPage
    ),
    RouteEntry("GET", "/api/fleet/leaks", READ_ALL, fleet.leaks, fleet_schemas.LeakPage),
    RouteEntry(
        "GET", "/api/fleet/events", READ_ALL, status_routes.fleet_events, EVENTS, is_plain=True
    ),
    RouteEntry("POST", "/api/fleet/bulk", OPERATE, fleet.bulk, fleet_schemas.BulkResult),
    RouteEntry(
        "POST", "/api/fleet/reconcile", OPERATE, fleet.reconcile, fleet_schemas.ReconcileResult
    ),
    RouteEntry(
        "POST",
        "/api/webhooks/e2b",
        SIGNED,
        status_routes.webhook,
        webhook_schemas.WebhookReceipt,
        is_plain=True,
    ),
    RouteEntry(
        "GET",
        "/api/webhooks",
        READ_ALL,
        webhook_registration.list_all,
        webhook_schemas.Registrations,
    ),
    RouteEntry(
        "POST",
        "/api/webhooks",
        ADMIN,
        webhook_registration.register,
        webhook_schemas.Registrations,
    ),
    RouteEntry(
        "POST",
        "/api/webhooks/test",
        ADMIN,
        webhook_registration.test,
        webhook_schemas.WebhookReceipt,
    ),
    RouteEntry(
        "DELETE",
        "/api/webhooks",
        ADMIN,
        webhook_registration.unregister,
        webhook_schemas.Registrations,
    ),
    RouteEntry(
        "POST",
        "/api/client-tokens",
        Access.OPERATE_SOME,
        callers.issue_client_token,
        access_schemas.ClientToken,
        201,
    ),
    RouteEntry(
        "GET",
        "/api/client-tokens",
        ADMIN,
        callers.list_client_tokens,
        access_schemas.ListedTokenPage,
    ),
    RouteEntry(
        "DELETE", "/api/client-tokens/{token_id}", ADMIN, callers.revoke_client_token, None, 204
    ),
    RouteEntry("POST", "/api/keys", ADMIN, keys.create_key, access_schemas.NewKey, 201),
    RouteEntry("GET", "/api/keys", ADMIN, keys.list_keys, access_schemas.KeyList),
    RouteEntry("DELETE", "/api/keys/{key_id}", ADMIN, keys.revoke_key, None, 204),
    RouteEntry(
        "POST",
        "/api/keys/{key_id}/rotate",
        ADMIN,
        keys.rotate_key,
        access_schemas.NewKey,
        201,
    ),
    RouteEntry("GET", "/api/audit", ADMIN, keys.list_audit, access_schemas.AuditPage),
    RouteEntry(
        "POST",
        "/api/stream-tokens",
        CALLER,
        callers.issue_stream_token,
        access_schemas.Token,
        201,
    ),
    RouteEntry(
        "POST", "/api/login-codes", READ_ALL, callers.issue_login_code, access_schemas.Token, 201
    ),
    RouteEntry("GET", "/api/login", PUBLIC, callers.show_sign_in, access_schemas.SignIn),
    RouteEntry("POST", "/api/login", PUBLIC, callers.log_in, access_schemas.Me),
    RouteEntry("POST", "/api/logout", PUBLIC, callers.log_out, None, 204),
    RouteEntry("GET", "/api/logins", ADMIN, callers.list_logins, access_schemas.LoginPage),
    RouteEntry("DELETE", "/api/logins/{token_id}", ADMIN, callers.revoke_login, None, 204),
    RouteEntry("GET", "/api/me", CALLER, callers.me, access_schemas.Me),
    RouteEntry(
        "GET", "/api/presentation", PUBLIC, admin.presentation, admin_schemas.PresentationOut
    ),
    RouteEntry("GET", "/api/switches", READ_ALL, admin.read_switches, admin_schemas.SwitchesOut),
    RouteEntry("PATCH", "/api/switches", ADMIN, admin.turn_switches, admin_schemas.SwitchesOut),
    RouteEntry("POST", "/api/tasks/{name}/run", ADMIN, admin.run_task, admin_schemas.RunReport),
    RouteEntry("GET", "/healthz", PUBLIC, admin.healthz, admin_schemas.Alive),
    RouteEntry("GET", "/readyz", PUBLIC, admin.readyz, admin_schemas.Readiness),
    RouteEntry("GET", "/metrics", Access.MONITOR, admin.metrics, METRICS),
)
"""`/openapi.json` is beside it and public too; pages and files are in `web`, and hold no data."""

LARGE_BODIES: Final = re.compile(r"/api/sandboxes/[^/]+/(files/.+|archive)", re.DOTALL)
"""Routes whose body may be a file or an archive."""

VERBS: Final = frozenset(
    {
        sandboxes.create,
        sandboxes.adopt,
        sandboxes.kill,
        sandboxes.pause,
        sandboxes.verify,
        sandboxes.extend,
        wakes.wake,
        wakes.warm,
        jobs.snapshot,
        jobs.resume,
        jobs.rebuild,
        fleet.bulk,
        fleet.reconcile,
        admin.run_task,
    }
)
"""What changes a sandbox at its caller's word. Its answer comes when every replica shows it."""
