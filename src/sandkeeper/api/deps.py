"""What every handler may use: the services of this process, and who calls."""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Path, Request
from starlette.datastructures import Headers
from starlette.types import Scope

from sandkeeper.api.auth import (
    Access,
    Authenticator,
    Caller,
    admit,
    make_authenticator,
    refuse_foreign_pages,
)
from sandkeeper.api.limits import CallerLimits
from sandkeeper.api.status.broadcaster import Broadcaster
from sandkeeper.api.status.cache import StatusCache
from sandkeeper.api.status.checkup import Checkup
from sandkeeper.api.status.fleet_metrics import FleetMetrics
from sandkeeper.api.status.reads import StatusReads
from sandkeeper.api.status.serializers import (
    ADDRESS_MAX,
    ADDRESS_PATTERN,
    PresentationTable,
    parse_owner_slug,
)
from sandkeeper.api.status.sse import StreamHub
from sandkeeper.api.wire_errors import ApiError
from sandkeeper.background.scheduler import Scheduler
from sandkeeper.background.tasks import make_scheduler
from sandkeeper.common.dashboard_host import is_local_name, parse_hostname
from sandkeeper.domain.errors import AccessError, UnauthenticatedError
from sandkeeper.domain.owner import Owner, OwnerKind
from sandkeeper.services.composition import Services
from sandkeeper.services.deps import Deps
from sandkeeper.services.gateway.passes import PreviewPasses
from sandkeeper.settings import Settings


@dataclass(frozen=True, slots=True)
class ApiContext:
    """The services of this process, and what the API keeps beside them."""

    services: Services
    scheduler: Scheduler
    authenticator: Authenticator
    limits: CallerLimits
    presentation: PresentationTable
    statuses: StatusCache
    hub: StreamHub
    broadcaster: Broadcaster
    status_reads: StatusReads
    fleet_metrics: FleetMetrics
    preview_passes: PreviewPasses

    @property
    def deps(self) -> Deps:
        return self.services.deps


def make_context(services: Services) -> ApiContext:
    """Return the context of a keeper's API, and subscribe it to the feed."""
    deps = services.deps
    presentation = PresentationTable.from_settings(
        deps.settings, services.provider_health.find_down_since
    )
    statuses = StatusCache(
        sandboxes=deps.store.sandboxes,
        words=presentation,
        entries_max=deps.settings.status_cache_max,
        clock=deps.clock,
    )
    hub = StreamHub(
        connections_max=deps.settings.sse_connections_max, gauge=deps.metrics.sse_connections
    )
    broadcaster = Broadcaster(store=deps.store, statuses=statuses, hub=hub)
    services.feed.follow(broadcaster.publish)
    services.provider_health.on_change(broadcaster.publish_all)

    def is_revoked(token_id: str) -> bool:
        return services.tokens.is_revoked(token_id) or services.api_keys.is_revoked(token_id)

    authenticator = make_authenticator(
        deps.settings, is_revoked=is_revoked, find_key=services.api_keys.find
    )
    scheduler = make_scheduler(
        services,
        end_streams=lambda: hub.end_unadmitted(is_revoked, deps.clock().timestamp()),
    )
    return ApiContext(
        services=services,
        scheduler=scheduler,
        authenticator=authenticator,
        limits=CallerLimits(deps.settings),
        presentation=presentation,
        statuses=statuses,
        hub=hub,
        broadcaster=broadcaster,
        status_reads=StatusReads(services, statuses),
        fleet_metrics=FleetMetrics(services, Checkup(services, scheduler)),
        preview_passes=PreviewPasses(deps.settings, is_revoked=is_revoked),
    )


def get_context(request: Request) -> ApiContext:
    context: ApiContext = request.app.state.context
    return context


def get_caller(request: Request) -> Caller:
    caller: Caller = request.state.caller
    return caller


ProjectAddress = Annotated[str, Path(max_length=ADDRESS_MAX, pattern=ADDRESS_PATTERN)]


def get_owner(project: ProjectAddress) -> Owner:
    """Return the owner that the URL names: a project, or `kind:id`."""
    return parse_owner_slug(project)


ContextDep = Annotated[ApiContext, Depends(get_context)]
CallerDep = Annotated[Caller, Depends(get_caller)]
OwnerDep = Annotated[Owner, Depends(get_owner)]


def authorize(
    context: ApiContext,
    access: Access,
    scope: Scope,
    *,
    headers: Mapping[str, str],
    stream_token: str | None = None,
) -> Caller:
    """Return the caller if it may use a route with this access and these path parameters."""
    try:
        caller = context.authenticator.identify(headers, stream_token=stream_token)
    except UnauthenticatedError:
        if stream_token is not None or "authorization" in headers or "cookie" in headers:
            context.limits.count_failure(get_address(scope))
        raise
    context.limits.count_request(caller)
    refuse_foreign_pages(caller, scope["method"], headers)
    params = scope["path_params"]
    project, job = params.get("project"), params.get("job")
    owner = parse_owner_slug(project) if project is not None else None
    if job is not None:
        owner = Owner(OwnerKind.JOB, job)
    admit(
        caller,
        access,
        owner_kind=owner.kind.value if owner else "",
        owner_id=owner.id if owner else None,
    )
    return caller


def get_address(scope: Scope) -> str:
    """Return the address of the peer; the one that it names if it is a trusted proxy."""
    client = scope.get("client")
    return str(client[0]) if client else ""


def may_monitor(context: ApiContext, scope: Scope) -> bool:
    """Return whether the caller may see metrics and the details of readiness."""
    headers = Headers(scope=scope)
    if is_open_to_monitoring(context.deps.settings, headers):
        return True
    try:
        authorize(context, Access.MONITOR, scope, headers=headers)
    except (AccessError, ApiError):
        return False
    return True


def is_open_to_monitoring(settings: Settings, headers: Mapping[str, str]) -> bool:
    """Return whether metrics and the details of readiness need no key.

    On loopback a page of another site could read them under a name of its own that it points here:
    they are open under this machine's names and the configured one only.
    """
    if settings.public_metrics:
        return True
    host = headers.get("host", "")
    own = parse_hostname(settings.public_url.partition("://")[2].partition("/")[0])
    if not is_local_name(host) and (not own or parse_hostname(host) != own):
        return False
    try:
        return ipaddress.ip_address(settings.host).is_loopback
    except ValueError:
        return settings.host == "localhost"


def guard(access: Access, *, is_stream: bool = False) -> Callable[[Request], Awaitable[None]]:
    """Return the check that a route with this access makes before anything else."""

    async def check(request: Request) -> None:
        if access in {Access.PUBLIC, Access.SIGNED}:
            return
        settings = get_context(request).deps.settings
        if access is Access.MONITOR and is_open_to_monitoring(settings, request.headers):
            return
        request.state.caller = authorize(
            get_context(request),
            access,
            request.scope,
            headers=request.headers,
            stream_token=request.query_params.get("token") if is_stream else None,
        )

    return check
