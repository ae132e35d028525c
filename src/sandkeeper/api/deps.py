"""What every handler may use: the services of this process, and who calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, Request

from sandkeeper.api.auth import Access, Caller, Gate, admit, refuse_foreign_pages
from sandkeeper.api.status.serializers import parse_address
from sandkeeper.domain.sandbox import Owner, OwnerKind

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import datetime

    from sandkeeper.api.status.broadcaster import Live
    from sandkeeper.api.status.cache import Statuses
    from sandkeeper.api.status.fleet_metrics import Gauges
    from sandkeeper.api.status.reads import Looks
    from sandkeeper.api.status.serializers import Words
    from sandkeeper.api.status.sse import Hub
    from sandkeeper.background.scheduler import Driver
    from sandkeeper.services.access.tokens import Tokens
    from sandkeeper.services.activity.buffer import Activities
    from sandkeeper.services.files.file_api import Editing
    from sandkeeper.services.files.working_files import Working
    from sandkeeper.services.jobs.jobs import Jobs
    from sandkeeper.services.lifecycle.creation import Creation
    from sandkeeper.services.lifecycle.lifecycle import Lifecycle
    from sandkeeper.services.lifecycle.verification import Verification
    from sandkeeper.services.monitoring.explanation import Explanations
    from sandkeeper.services.monitoring.feature_flags import Switches
    from sandkeeper.services.monitoring.health import Health
    from sandkeeper.services.monitoring.metrics_history import Trends
    from sandkeeper.services.observe.reconciliation import Reconciliation
    from sandkeeper.services.observe.webhook_registration import Registration
    from sandkeeper.services.observe.webhooks import Webhooks
    from sandkeeper.services.sessions.factory import SessionServices
    from sandkeeper.services.wake.app import Apps
    from sandkeeper.services.wake.factory import WakeServices
    from sandkeeper.services.wake.wakes import Wakes
    from sandkeeper.settings import Settings
    from sandkeeper.store import Store
    from sandkeeper.telemetry import Metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Made once by the composition root."""

    settings: Settings
    metrics: Metrics
    clock: Callable[[], datetime]
    gate: Gate
    words: Words
    statuses: Statuses
    hub: Hub
    live: Live
    looks: Looks
    gauges: Gauges
    store: Store
    driver: Driver
    activities: Activities
    creation: Creation
    lifecycle: Lifecycle
    waking: WakeServices
    sessions: SessionServices
    files: Editing
    working_files: Working
    verification: Verification
    reconciliation: Reconciliation
    explanations: Explanations
    webhooks: Webhooks
    registration: Registration
    switches: Switches
    tokens: Tokens
    trends: Trends
    health: Health
    resting_providers: Callable[[], list[str]]
    """The providers whose breaker is open."""

    @property
    def wakes(self) -> Wakes:
        return self.waking.wakes

    @property
    def apps(self) -> Apps:
        return self.waking.apps

    @property
    def jobs(self) -> Jobs:
        return self.waking.jobs


def get_context(request: Request) -> Context:
    context: Context = request.app.state.context
    return context


def get_caller(request: Request) -> Caller:
    caller: Caller = request.state.caller
    return caller


def get_owner(project: str) -> Owner:
    """The owner that the address names: a project, or `kind:id`."""
    return parse_address(project)


ContextNow = Annotated[Context, Depends(get_context)]
CallerNow = Annotated[Caller, Depends(get_caller)]
OwnerNow = Annotated[Owner, Depends(get_owner)]


def guard(access: Access) -> Callable[[Request], Awaitable[None]]:
    """The check that a route with this access makes before anything else."""

    async def check(request: Request) -> None:
        if access in {Access.PUBLIC, Access.SIGNED}:
            return
        caller = get_context(request).gate.identify(request.headers)
        refuse_foreign_pages(caller, request.method, request.headers)
        project = request.path_params.get("project")
        owner = parse_address(project) if project is not None else None
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
