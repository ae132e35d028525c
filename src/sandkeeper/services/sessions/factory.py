"""What the sessions are made of, for the composition root."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from sandkeeper.domain.policy import IdleAction
from sandkeeper.domain.session import Profile, SessionKind
from sandkeeper.providers.registry import ProviderRegistry
from sandkeeper.services.activity.buffer import ActivityBuffer
from sandkeeper.services.lifecycle.creation import Creation
from sandkeeper.services.lifecycle.lifecycle import Lifecycle
from sandkeeper.services.lifecycle.verification import Verification
from sandkeeper.services.sessions import desktop_display
from sandkeeper.services.sessions.cleanup import SessionCleaner
from sandkeeper.services.sessions.desktop_stream import DesktopStreams
from sandkeeper.services.sessions.health_checks import HealthChecker
from sandkeeper.services.sessions.leases import Leases
from sandkeeper.services.sessions.pools import Pools
from sandkeeper.services.sessions.sdk_handles import SdkHandleCache
from sandkeeper.services.sessions.sessions import Sessions
from sandkeeper.services.sessions.stats import SessionStats
from sandkeeper.services.wake.wakes import Wakes
from sandkeeper.settings import Settings
from sandkeeper.store import Store
from sandkeeper.telemetry import Metrics


@dataclass(frozen=True, slots=True)
class SessionServices:
    """Everything about sessions that others use."""

    sessions: Sessions
    closing: SessionCleaner
    leases: Leases
    pools: Pools
    checks: HealthChecker
    counts: SessionStats
    streams: DesktopStreams


def make_session_services(
    settings: Settings,
    *,
    store: Store,
    regions: ProviderRegistry,
    creation: Creation,
    lifecycle: Lifecycle,
    verification: Verification,
    wakes: Wakes,
    activities: ActivityBuffer,
    metrics: Metrics,
    clock: Callable[[], datetime],
) -> SessionServices:
    """Sessions, leases and pools with the settings in force."""
    natives, profiles = SdkHandleCache(regions), make_profiles(settings)
    counts = SessionStats(store=store, metrics=metrics)
    checks = HealthChecker(
        natives, timeout_s=settings.session_check_timeout_s, on_failure=counts.count_failure
    )
    leases = Leases(store=store, activities=activities, clock=clock, ttl_s=settings.session_lease_s)
    pools = Pools(
        store=store,
        creation=creation,
        lifecycle=lifecycle,
        checks=HealthChecker(natives, timeout_s=settings.session_check_timeout_s),
        metrics=metrics,
        clock=clock,
        age_max_s=settings.pool_age_max_s,
        failures_max=settings.pool_failures_max,
        targets=settings.pools,
        profiles=profiles.values(),
    )
    closing = SessionCleaner(store=store, lifecycle=lifecycle, counts=counts, clock=clock)
    sessions = Sessions(
        store=store,
        creation=creation,
        lifecycle=lifecycle,
        verification=verification,
        wakes=wakes,
        leases=leases,
        natives=natives,
        checks=checks,
        pools=pools,
        closing=closing,
        counts=counts,
        activities=activities,
        clock=clock,
        profiles=profiles,
        on_idle=IdleAction(settings.session_on_idle),
        asleep_s=settings.session_asleep_s,
        sessions_max=settings.sessions_max or None,
    )
    streams = DesktopStreams(
        store=store,
        sessions=sessions,
        natives=natives,
        regions=regions,
        ready_timeout_s=settings.stream_ready_timeout_ms / 1000,
    )
    return SessionServices(sessions, closing, leases, pools, checks, counts, streams)


def make_profiles(settings: Settings) -> dict[SessionKind, Profile]:
    """What each kind of session is by the settings."""
    execution = Profile(
        kind=SessionKind.EXECUTION,
        template=settings.session_template,
        idle_timeout_s=settings.session_idle_timeout_s,
        lifetime_s=settings.lifecycle_timeout_s,
        code_timeout_s=settings.code_timeout_s,
        idle_min_s=settings.idle_timeout_min_s,
        idle_max_s=settings.idle_timeout_max_s,
        is_adaptive=settings.session_idle == "adaptive",
    )
    desktop = replace(
        execution,
        kind=SessionKind.DESKTOP,
        template=settings.desktop_template,
        idle_timeout_s=settings.desktop_idle_timeout_s,
        lifetime_s=settings.desktop_lifetime_s,
        env=desktop_display.ENV,
    )
    return {profile.kind: profile for profile in (execution, desktop)}
