"""What every handler may use: the services of this process, and who calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from fastapi import Depends, Request

from sandkeeper.api.auth import Access, Authenticator, Caller, admit, refuse_foreign_pages
from sandkeeper.api.status.broadcaster import Broadcaster
from sandkeeper.api.status.cache import StatusCache
from sandkeeper.api.status.fleet_metrics import FleetMetrics
from sandkeeper.api.status.reads import StatusReads
from sandkeeper.api.status.serializers import PresentationTable, parse_owner_slug
from sandkeeper.api.status.sse import StreamHub
from sandkeeper.background.scheduler import Scheduler
from sandkeeper.domain.owner import Owner, OwnerKind
from sandkeeper.services.access.tokens import Tokens
from sandkeeper.services.activity.buffer import ActivityBuffer
from sandkeeper.services.files.file_api import FileApi
from sandkeeper.services.files.working_files import FileCapture
from sandkeeper.services.jobs.jobs import Jobs
from sandkeeper.services.lifecycle.creation import Creation
from sandkeeper.services.lifecycle.lifecycle import Lifecycle
from sandkeeper.services.lifecycle.verification import Verification
from sandkeeper.services.monitoring.explanation import Explanations
from sandkeeper.services.monitoring.feature_flags import FeatureFlags
from sandkeeper.services.monitoring.health import HealthMonitor
from sandkeeper.services.monitoring.metrics_history import MetricsHistory
from sandkeeper.services.observe.reconciliation import Reconciliation
from sandkeeper.services.observe.webhook_registration import WebhookRegistration
from sandkeeper.services.observe.webhooks import WebhookReceiver
from sandkeeper.services.sessions.factory import SessionServices
from sandkeeper.services.wake.app import AppRunner
from sandkeeper.services.wake.factory import WakeServices
from sandkeeper.services.wake.wakes import Wakes
from sandkeeper.settings import Settings
from sandkeeper.store import Store
from sandkeeper.telemetry import Metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiContext:
    """Made once by the composition root."""

    settings: Settings
    metrics: Metrics
    clock: Callable[[], datetime]
    gate: Authenticator
    words: PresentationTable
    statuses: StatusCache
    hub: StreamHub
    live: Broadcaster
    looks: StatusReads
    gauges: FleetMetrics
    store: Store
    driver: Scheduler
    activities: ActivityBuffer
    creation: Creation
    lifecycle: Lifecycle
    waking: WakeServices
    sessions: SessionServices
    files: FileApi
    working_files: FileCapture
    verification: Verification
    reconciliation: Reconciliation
    explanations: Explanations
    webhooks: WebhookReceiver
    registration: WebhookRegistration
    switches: FeatureFlags
    tokens: Tokens
    trends: MetricsHistory
    health: HealthMonitor
    resting_providers: Callable[[], list[str]]
    """The providers whose breaker is open."""

    @property
    def wakes(self) -> Wakes:
        return self.waking.wakes

    @property
    def apps(self) -> AppRunner:
        return self.waking.apps

    @property
    def jobs(self) -> Jobs:
        return self.waking.jobs


def get_context(request: Request) -> ApiContext:
    context: ApiContext = request.app.state.context
    return context


def get_caller(request: Request) -> Caller:
    caller: Caller = request.state.caller
    return caller


def get_owner(project: str) -> Owner:
    """The owner that the address names: a project, or `kind:id`."""
    return parse_owner_slug(project)


ContextDep = Annotated[ApiContext, Depends(get_context)]
CallerDep = Annotated[Caller, Depends(get_caller)]
OwnerDep = Annotated[Owner, Depends(get_owner)]


def guard(access: Access) -> Callable[[Request], Awaitable[None]]:
    """The check that a route with this access makes before anything else."""

    async def check(request: Request) -> None:
        if access in {Access.PUBLIC, Access.SIGNED}:
            return
        caller = get_context(request).gate.identify(request.headers)
        refuse_foreign_pages(caller, request.method, request.headers)
        project = request.path_params.get("project")
        owner = parse_owner_slug(project) if project is not None else None
        job = request.path_params.get("job")
        if job is not None:
            owner = Owner(OwnerKind.JOB, job)
        admit(
            caller,
            access,
            owner_kind=owner.kind.value if owner else "",
            owner_id=owner.id if owner else None,
        )
        request.state.caller = caller

    return check
