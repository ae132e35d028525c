"""The composition root: the one place that names concrete classes.

settings → store → providers → services → background → ASGI application. Nothing here decides
anything; whoever wants to know what is made of what reads this file from top to bottom.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import structlog
from starlette.types import ASGIApp

from sandkeeper.api.app import create_asgi_app
from sandkeeper.api.auth import Authenticator
from sandkeeper.api.deps import ApiContext
from sandkeeper.api.status.broadcaster import Broadcaster
from sandkeeper.api.status.cache import StatusCache
from sandkeeper.api.status.fleet_metrics import FleetMetrics
from sandkeeper.api.status.reads import StatusReads
from sandkeeper.api.status.serializers import PresentationTable
from sandkeeper.api.status.sse import StreamHub
from sandkeeper.background.app_watch import AppWatchTask
from sandkeeper.background.catch_up import CatchUpTask
from sandkeeper.background.checkpoint import Checkpoint, PruneFiles
from sandkeeper.background.flush import Flush
from sandkeeper.background.idle_sweep import NAME as SWEEP
from sandkeeper.background.idle_sweep import IdleSweep
from sandkeeper.background.pool import NAME as POOL
from sandkeeper.background.pool import FillPools
from sandkeeper.background.prune import Prune
from sandkeeper.background.reconcile import ReconcileTask
from sandkeeper.background.scheduler import Scheduler, TaskRun
from sandkeeper.background.session_cleanup import SessionCleanup
from sandkeeper.background.tasks import RefreshSwitches, RefreshTokens, SampleTrends
from sandkeeper.background.wake_driver import WakeDriver
from sandkeeper.background.warm_ups import SettleWarmUps
from sandkeeper.core import Core, find_resting, make_core, name_replica, provider_connections
from sandkeeper.domain.errors import SandkeeperError
from sandkeeper.domain.events import (
    PolicyChanged,
    SandboxCreated,
    StateChanged,
    WakeProgressed,
)
from sandkeeper.hosting.data_dir import load_or_create_operator_key
from sandkeeper.providers.e2b.provider import E2BConnection
from sandkeeper.services.access.tokens import Tokens
from sandkeeper.services.activity.buffer import ActivityBuffer
from sandkeeper.services.activity.feed import Feed
from sandkeeper.services.files.factory import FileServices, make_file_services
from sandkeeper.services.jobs.credits import CreditHook
from sandkeeper.services.lifecycle.claims import Claims
from sandkeeper.services.lifecycle.creation import Creation
from sandkeeper.services.lifecycle.lifecycle import Lifecycle, nothing_before_pause
from sandkeeper.services.lifecycle.verification import Verification
from sandkeeper.services.monitoring.explanation import Explanations
from sandkeeper.services.monitoring.feature_flags import FeatureFlag, FeatureFlags
from sandkeeper.services.monitoring.health import HealthMonitor
from sandkeeper.services.monitoring.metrics_history import MetricsHistory
from sandkeeper.services.monitoring.retention import RecordRetention
from sandkeeper.services.observe.event_polling import EventPolling
from sandkeeper.services.observe.leaks import LeakHandler
from sandkeeper.services.observe.observations import Observations
from sandkeeper.services.observe.reconciliation import Reconciliation
from sandkeeper.services.observe.webhook_registration import WebhookRegistration
from sandkeeper.services.observe.webhooks import WebhookReceiver
from sandkeeper.services.sessions.factory import SessionServices, make_session_services
from sandkeeper.services.wake.factory import WakeServices, make_wake_services
from sandkeeper.services.wake.wakes import Wakes
from sandkeeper.settings import Settings
from sandkeeper.store import LoggedEvent, open_store
from sandkeeper.telemetry import Metrics
from sandkeeper.web import web_routes

log = structlog.get_logger(__name__)

# After these the earliest deadline may have moved forward, so the sweep looks again. A row that a
# wake holds has none; when the wake lets it go, it does.
DEADLINES_MOVE = frozenset(
    {SandboxCreated.type, StateChanged.type, PolicyChanged.type, WakeProgressed.type}
)
SWITCHES_PERIOD_S = 5.0
# How late another replica knows of a revocation. Shorter reads one row of the database more often.
TOKENS_PERIOD_S = 1.0
TRENDS_PERIOD_S = 60.0
REGISTER_AGAIN_S = 30.0
# How soon an abandoned wake is noticed. Shorter asks the database for nothing more often.
WAKE_DRIVER_PERIOD_S = 1.0
WARM_UPS_PERIOD_S = 5.0


@dataclass(frozen=True, slots=True)
class Application:
    """A running keeper: what answers requests, and what works behind them."""

    asgi: ASGIApp
    context: ApiContext

    def prepare_to_stop(self) -> None:
        """End what would never end by itself."""
        self.context.hub.close()


@dataclass(frozen=True, slots=True)
class Showing:
    """What keeps answers ready."""

    words: PresentationTable
    statuses: StatusCache
    hub: StreamHub
    live: Broadcaster


@dataclass(frozen=True, slots=True)
class Knowing:
    """What reads and writes the record, without acting on the provider."""

    trends: MetricsHistory
    switches: FeatureFlags
    observations: Observations
    activities: ActivityBuffer
    claims: Claims
    health: HealthMonitor
    verification: Verification
    registration: WebhookRegistration
    files: FileServices


@asynccontextmanager
async def open_application(
    settings: Settings,
    connections: Mapping[str, E2BConnection] | None = None,
    credit: CreditHook | None = None,
) -> AsyncIterator[Application]:
    """A keeper that works while the context is open: background, feed and all.

    Leaving it writes the activity that waits, and leaves every sandbox as it is. `credit` is the
    host application's own hook, in the place of the URL in the settings.
    """
    metrics = Metrics()
    async with open_store(settings.database_url) as store:
        core = await make_core(
            settings, metrics, store, connections or provider_connections(settings)
        )
        showing = _make_showing(core)
        knowing = _make_knowing(core, showing)
        context = _make_context(core, showing, knowing, credit)
        _register_tasks(core, knowing, context)
        await context.switches.refresh()
        await context.tokens.refresh()
        async with contextlib.AsyncExitStack() as stack:
            for provider in core.regions:
                stack.push_async_callback(provider.close)
            stack.push_async_callback(context.creation.wait)
            stack.push_async_callback(context.waking.close)
            stack.push_async_callback(context.sessions.checks.close)
            stack.push_async_callback(context.verification.close)
            stack.push_async_callback(_flush_last, context)
            await stack.enter_async_context(_make_feed(context, knowing))
            await stack.enter_async_context(context.driver)
            for work in (
                context.hub.ping_forever(settings.sse_ping_s),
                _register_webhook(context),
            ):
                stack.push_async_callback(_cancel, asyncio.create_task(work))
            pages = web_routes(has_own_host=not settings.public_url)
            yield Application(create_asgi_app(context, pages), context)


async def sweep_once(settings: Settings) -> TaskRun:
    """One idle sweep without a server, for a cron."""
    quiet = settings.model_copy(
        update={"enforcer": False, "reconciler": False, "catch_up": False, "public_url": ""}
    )
    async with open_application(quiet) as application:
        return await application.context.driver.run_now(SWEEP)


def _make_showing(core: Core) -> Showing:
    settings = core.settings
    words = PresentationTable(
        poll_running_ms=settings.poll_running_ms,
        poll_starting_ms=settings.poll_starting_ms,
        poll_waking_ms=settings.poll_waking_ms,
    )
    statuses = StatusCache(
        sandboxes=core.store.sandboxes, words=words, entries_max=settings.status_cache_max
    )
    hub = StreamHub(
        connections_max=settings.sse_connections_max, gauge=core.metrics.sse_connections
    )
    live = Broadcaster(store=core.store, statuses=statuses, hub=hub)
    return Showing(words, statuses, hub, live)


def _make_knowing(core: Core, showing: Showing) -> Knowing:
    settings, store, clock = core.settings, core.store, core.clock
    trends = MetricsHistory(store=store, metrics=core.metrics, clock=clock)
    defaults = {switch: bool(getattr(settings, switch.value)) for switch in FeatureFlag}
    switches = FeatureFlags(store=store, clock=clock, defaults=defaults)
    observations = Observations(store, metrics=core.metrics, clock=clock)
    return Knowing(
        trends=trends,
        switches=switches,
        observations=observations,
        activities=ActivityBuffer(sandboxes=showing.live, clock=clock),
        claims=Claims(store=store, clock=clock, replica=name_replica(), lease_s=settings.lease_s),
        health=HealthMonitor(
            clock=clock,
            count_stale=trends.count_stale,
            expects_webhooks=lambda: (
                bool(settings.public_url) and switches.is_on(FeatureFlag.WEBHOOKS)
            ),
            enforces=lambda: switches.is_on(FeatureFlag.ENFORCER),
        ),
        verification=Verification(
            store=store,
            regions=core.regions,
            observations=observations,
            clock=clock,
            stale_after_s=settings.stale_after_s,
        ),
        registration=WebhookRegistration(store=store, regions=core.regions, clock=clock),
        files=make_file_services(settings, store=store, regions=core.regions, clock=clock),
    )


def _make_lifecycle(core: Core, knowing: Knowing) -> Lifecycle:
    capture = knowing.files.working.capture_before_pause
    return Lifecycle(
        before_pause=capture if core.settings.keep_files else nothing_before_pause,
        store=core.store,
        claims=knowing.claims,
        regions=core.regions,
        observations=knowing.observations,
        activities=knowing.activities,
        health=knowing.health,
        metrics=core.metrics,
        clock=core.clock,
    )


def _make_creation(core: Core, knowing: Knowing) -> Creation:
    return Creation(
        store=core.store,
        claims=knowing.claims,
        regions=core.regions,
        observations=knowing.observations,
        metrics=core.metrics,
        clock=core.clock,
        keeper=core.keeper,
    )


def _make_wakes(
    core: Core,
    knowing: Knowing,
    creation: Creation,
    lifecycle: Lifecycle,
    credit: CreditHook | None,
) -> WakeServices:
    return make_wake_services(
        core.settings,
        store=core.store,
        regions=core.regions,
        claims=knowing.claims,
        observations=knowing.observations,
        creation=creation,
        lifecycle=lifecycle,
        files=knowing.files.working,
        metrics=core.metrics,
        clock=core.clock,
        credit=credit,
    )


def _make_sessions(
    core: Core, knowing: Knowing, creation: Creation, lifecycle: Lifecycle, wakes: Wakes
) -> SessionServices:
    return make_session_services(
        core.settings,
        store=core.store,
        regions=core.regions,
        creation=creation,
        lifecycle=lifecycle,
        verification=knowing.verification,
        wakes=wakes,
        activities=knowing.activities,
        metrics=core.metrics,
        clock=core.clock,
    )


def _make_reconciliation(core: Core, knowing: Knowing) -> Reconciliation:
    return Reconciliation(
        store=core.store,
        regions=core.regions,
        observations=knowing.observations,
        leaks=LeakHandler(
            store=core.store,
            metrics=core.metrics,
            clock=core.clock,
            replica=knowing.claims.replica,
            removals_per_hour_max=core.settings.leaks_removed_per_hour,
        ),
        metrics=core.metrics,
        clock=core.clock,
    )


def _make_context(
    core: Core, showing: Showing, knowing: Knowing, credit: CreditHook | None
) -> ApiContext:
    store, metrics, clock = core.store, core.metrics, core.clock
    creation, lifecycle = _make_creation(core, knowing), _make_lifecycle(core, knowing)
    waking = _make_wakes(core, knowing, creation, lifecycle, credit)
    ttl_max_s = core.settings.client_token_ttl_max_s
    tokens = Tokens(store=store, clock=clock, client_ttl_max_s=ttl_max_s)
    return ApiContext(
        settings=core.settings,
        metrics=metrics,
        clock=clock,
        gate=_make_gate(core.settings, tokens),
        words=showing.words,
        statuses=showing.statuses,
        hub=showing.hub,
        live=showing.live,
        looks=StatusReads(
            store=store,
            statuses=showing.statuses,
            activities=knowing.activities,
            verification=knowing.verification,
            switches=knowing.switches,
            health=knowing.health,
            metrics=metrics,
        ),
        gauges=FleetMetrics(store=store, trends=knowing.trends, health=knowing.health, clock=clock),
        store=store,
        driver=Scheduler(clock=clock, on_run=_note_runs(metrics, knowing.health)),
        activities=knowing.activities,
        creation=creation,
        lifecycle=lifecycle,
        waking=waking,
        sessions=_make_sessions(core, knowing, creation, lifecycle, waking.wakes),
        files=knowing.files.editing,
        working_files=knowing.files.working,
        verification=knowing.verification,
        reconciliation=_make_reconciliation(core, knowing),
        explanations=Explanations(store=store, activities=knowing.activities, clock=clock),
        webhooks=WebhookReceiver(
            store=store,
            regions=core.regions,
            observations=knowing.observations,
            secret=knowing.registration.secret,
            metrics=metrics,
            clock=clock,
        ),
        registration=knowing.registration,
        switches=knowing.switches,
        tokens=tokens,
        trends=knowing.trends,
        health=knowing.health,
        resting_providers=lambda: find_resting(core),
    )


def _register_tasks(core: Core, knowing: Knowing, context: ApiContext) -> None:
    """Every background task, its period and the switch that turns it off."""
    settings, driver, clock = core.settings, context.driver, core.clock
    switches = context.switches
    sweep = IdleSweep(
        claims=knowing.claims,
        lifecycle=context.lifecycle,
        creation=context.creation,
        verification=context.verification,
        activities=context.activities,
        clock=clock,
        batch=settings.sweep_batch,
        concurrency=settings.sweep_concurrency,
    )
    catch_up = EventPolling(
        store=core.store, regions=core.regions, observations=knowing.observations, clock=clock
    )
    pruning = RecordRetention(
        store=core.store,
        clock=clock,
        retention_ended_s=settings.retention_ended_s,
        retention_events_s=settings.retention_events_s,
    )
    driver.register(Flush(context.activities), period_s=settings.flush_period_s)
    driver.register(
        sweep,
        period_s=settings.sweep_period_s,
        is_enabled=lambda: switches.is_on(FeatureFlag.ENFORCER),
    )
    driver.register(
        ReconcileTask(context.reconciliation),
        period_s=settings.reconcile_period_s,
        is_enabled=lambda: switches.is_on(FeatureFlag.RECONCILER),
    )
    driver.register(
        CatchUpTask(catch_up),
        period_s=settings.catch_up_period_s,
        is_enabled=lambda: switches.is_on(FeatureFlag.CATCH_UP),
    )
    driver.register(RefreshSwitches(switches), period_s=SWITCHES_PERIOD_S)
    tokens, hub = context.tokens, context.hub
    refresh = RefreshTokens(tokens, lambda: hub.end_unadmitted(tokens.is_revoked, time.time()))
    driver.register(refresh, period_s=TOKENS_PERIOD_S)
    driver.register(SampleTrends(knowing.trends), period_s=TRENDS_PERIOD_S)
    driver.register(Prune(pruning), period_s=settings.prune_period_s)
    waking = context.waking
    driver.register(WakeDriver(waking.wakes, waking.jobs), period_s=WAKE_DRIVER_PERIOD_S)
    driver.register(SettleWarmUps(waking.warming), period_s=WARM_UPS_PERIOD_S)
    driver.register(AppWatchTask(waking.watch), period_s=settings.app_watch_period_s)
    period_s, working = settings.files_checkpoint_s, knowing.files.working
    checkpoint = Checkpoint(store=core.store, working=working, clock=clock, period_s=period_s)
    driver.register(checkpoint, period_s=period_s, is_enabled=lambda: settings.keep_files)
    pools, sessions = context.sessions.pools, context.sessions
    pools.on_need = lambda: driver.wake_up(POOL)
    sessions.leases.on_release = lambda: driver.wake_up(SWEEP)
    driver.register(FillPools(pools), period_s=settings.pool_period_s)
    driver.register(SessionCleanup(sessions.closing), period_s=settings.session_cleanup_period_s)
    driver.register(PruneFiles(knowing.files.retention), period_s=settings.prune_period_s)


def _make_feed(context: ApiContext, knowing: Knowing) -> Feed:
    """The log's listeners: what is shown, what is counted, and the sweep's next look."""
    feed = Feed(events=context.store.events)
    feed.subscribe(context.live.on_events)

    def notice(events: Sequence[LoggedEvent]) -> None:
        for event in events:
            if event.type == StateChanged.type:
                by_webhook = event.data.get("source") == "webhook"
                knowing.health.record_change(by_webhook=by_webhook)
            if event.type == SandboxCreated.type and event.data.get("recreated"):
                context.metrics.recreations.labels(event.reason or "unknown").inc()
        if any(event.type in DEADLINES_MOVE for event in events):
            context.driver.wake_up(SWEEP)

    feed.subscribe(notice)
    return feed


def _make_gate(settings: Settings, tokens: Tokens) -> Authenticator:
    given = settings.operator_key
    key = given.get_secret_value() if given else load_or_create_operator_key(settings.data)
    return Authenticator(
        operator_key=key,
        viewer_keys=[viewer.get_secret_value() for viewer in settings.viewer_keys],
        is_revoked=tokens.is_revoked,
        client_ttl_max_s=settings.client_token_ttl_max_s,
    )


def _note_runs(metrics: Metrics, health: HealthMonitor) -> Callable[[TaskRun], None]:
    def note(run: TaskRun) -> None:
        metrics.background_run.labels(run.task).observe(run.duration_s)
        if run.succeeded:
            metrics.background_success.labels(run.task).set_to_current_time()
        health.record_run(task=run.task, duration_s=run.duration_s, succeeded=run.succeeded)

    return note


async def _register_webhook(context: ApiContext) -> None:
    """Register at the start when a public URL is configured; an unreachable provider is retried."""
    url = context.settings.public_url
    while url and context.switches.is_on(FeatureFlag.WEBHOOKS):
        try:
            await context.registration.register(url)
        except SandkeeperError as error:
            log.warning("webhook_not_registered", error=str(error))
            await asyncio.sleep(REGISTER_AGAIN_S)
        else:
            return


async def _flush_last(context: ApiContext) -> None:
    try:
        await context.activities.flush()
    except SandkeeperError as error:
        log.warning("activity_lost_at_stop", error=str(error), waiting=context.activities.waiting)


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
