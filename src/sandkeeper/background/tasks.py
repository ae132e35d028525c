"""Every background task of a keeper: its name, what it runs, how often, and its feature flag.

The names are stable: they are metric labels, CLI arguments and selectors of the alert rules.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from sandkeeper.background.checkpoint import Checkpoint, DueCaptures
from sandkeeper.background.continuous_capture import ContinuousCapture
from sandkeeper.background.idle_sweep import IdleSweep
from sandkeeper.background.scheduler import Detail, Run, Scheduler, TaskOutcome, TaskRun
from sandkeeper.domain.events import PolicyChanged, SandboxCreated, StateChanged, WakeProgressed
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import State
from sandkeeper.domain.tasks import TaskName
from sandkeeper.services.activity.buffer import ActivityBuffer
from sandkeeper.services.activity.feed import Signal
from sandkeeper.services.composition import Services
from sandkeeper.services.lifecycle.heartbeat import BEAT_PERIOD_S
from sandkeeper.services.monitoring.feature_flags import FeatureFlag
from sandkeeper.services.monitoring.provider_health import CHECK_PERIOD_S, REFRESH_PERIOD_S
from sandkeeper.store import LoggedEvent

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

FLAGS_PERIOD_S = 5.0
# How soon a wrong clock is noticed. Shorter asks the provider more often for nothing.
CLOCK_PERIOD_S = 10.0
# How late another replica learns of a revocation. Shorter reads one row more often.
TOKENS_PERIOD_S = 1.0
# How late a replica learns of a new data key, which encrypts nothing in its first minute.
ENCRYPTION_PERIOD_S = 5.0
METRICS_PERIOD_S = 60.0
# How late a replica learns of a new domain. Shorter reads a small table more often.
DOMAINS_PERIOD_S = 5.0
# How late a preview's requests are listed. Shorter costs busy previews more writes.
REQUESTS_PERIOD_S = 2.0
# How late costs are. Shorter reads the new part of the log more often.
COSTS_PERIOD_S = 60.0
# How exactly the beginning of use is known to simulations. Shorter writes more often.
HISTORY_PERIOD_S = 15.0
# How soon an interrupted wake is noticed. Shorter queries the database more often for nothing.
INTERRUPTED_PERIOD_S = 1.0
PREWARMS_PERIOD_S = 5.0
# Between two passes over a log that is longer than one pass removes. Shorter delays other writers.
PRUNE_REST_S = 10.0
# How soon the pass of a replica that died is begun again. Shorter asks more often while one lives.
TAKE_OVER_S = 2.0
# How late a due capture may start. Shorter looks at an empty queue more often.
CAPTURE_PERIOD_S = 1.0
# Passive activity is written this often. Shorter makes every poll of every page cost a write;
# longer shows the count later, and loses more of it in a crash.
PASSIVE_FLUSH_S = 10.0
# How often unanswered starts are settled, and the limits read that another replica learned. Shorter
# asks the database more often for what changes seldom.
CAPACITY_PERIOD_S = 10.0

# After these events the earliest deadline may have moved forward, so the sweep runs again. A row
# that a wake holds has no deadline; it has one when the wake releases it.
MOVES_DEADLINES = frozenset(
    {SandboxCreated.type, StateChanged.type, PolicyChanged.type, WakeProgressed.type}
)


def make_scheduler(services: Services, *, end_streams: Callable[[], None]) -> Scheduler:
    """Return the scheduler with every task. `end_streams` ends streams of revoked tokens."""
    settings, flags = services.deps.settings, services.feature_flags

    def flag(name: FeatureFlag) -> Callable[[], bool]:
        return lambda: flags.is_on(name)

    scheduler = Scheduler(clock=services.deps.clock, on_run=_record_runs(services))
    every = scheduler.register
    every(TaskName.RECOVERY, _recover(services), period_s=BEAT_PERIOD_S)
    every(TaskName.FLUSH, _flush(services.activities), period_s=settings.flush_period_s)
    every(TaskName.CLOCK, _check_clocks(services), period_s=CLOCK_PERIOD_S)
    every(
        TaskName.IDLE_SWEEP,
        make_sweep(services).run,
        period_s=settings.sweep_period_s,
        is_enabled=flag(FeatureFlag.ENFORCER),
    )
    every(
        TaskName.RECONCILE,
        _reconcile(services),
        period_s=settings.reconcile_period_s,
        is_enabled=flag(FeatureFlag.RECONCILER),
    )
    every(
        TaskName.CATCH_UP,
        _poll_events(services),
        period_s=settings.catch_up_period_s,
        is_enabled=flag(FeatureFlag.CATCH_UP),
    )
    every(TaskName.PROVIDER_CHECK, services.provider_health.check, period_s=CHECK_PERIOD_S)
    every(TaskName.PROVIDER_NEWS, services.provider_health.refresh, period_s=REFRESH_PERIOD_S)
    every(TaskName.SWITCHES, _refresh_flags(services), period_s=FLAGS_PERIOD_S)
    every(TaskName.TOKENS, _refresh_tokens(services, end_streams), period_s=TOKENS_PERIOD_S)
    every(TaskName.ENCRYPTION, _report(services.reencryption.run), period_s=ENCRYPTION_PERIOD_S)
    every(
        TaskName.DOMAINS,
        _count(services.preview_domains.refresh, "domains"),
        period_s=DOMAINS_PERIOD_S,
    )
    every(
        TaskName.PREVIEW_REQUESTS,
        _count(services.request_log.flush, "written"),
        period_s=REQUESTS_PERIOD_S,
    )
    every(TaskName.CAPACITY, services.slot_settlement.run, period_s=CAPACITY_PERIOD_S)
    every(TaskName.TRENDS, services.metrics_history.sample, period_s=METRICS_PERIOD_S)
    every(TaskName.COSTS, _count_costs(services), period_s=COSTS_PERIOD_S)
    every(
        TaskName.ACTIVITY_HISTORY,
        _report(services.activity_history.record),
        period_s=HISTORY_PERIOD_S,
    )
    every(TaskName.WAKE_DRIVER, _resume_interrupted(services), period_s=INTERRUPTED_PERIOD_S)
    every(TaskName.WARM_UPS, services.prewarms.finish_due, period_s=PREWARMS_PERIOD_S)
    every(TaskName.APP_WATCH, services.app_monitor.check, period_s=settings.app_watch_period_s)
    _register_captures(services, scheduler)
    every(TaskName.POOL, _report(services.pools.fill), period_s=settings.pool_period_s)
    _register_cleanups(services, scheduler)
    return scheduler


def _register_cleanups(services: Services, scheduler: Scheduler) -> None:
    """Add the tasks that end or remove what is old; a wrong clock makes everything old."""
    settings = services.deps.settings
    clean_up = _report(services.session_cleaner.clean_up)
    for name, run, period_s in (
        (TaskName.PRUNE, _prune(services), settings.prune_period_s),
        (TaskName.PRUNE_FILES, _report(services.file_retention.prune), settings.prune_period_s),
        (TaskName.SESSION_CLEANUP, clean_up, settings.session_cleanup_period_s),
    ):
        scheduler.register(
            name,
            run,
            period_s=period_s,
            is_enabled=lambda: services.clock_monitor.may_sweep,
        )


def _register_captures(services: Services, scheduler: Scheduler) -> None:
    """Add the captures; the continuous one hears of activity, of new runs and of changed files."""
    deps = services.deps
    settings = deps.settings
    watches = services.folder_watches
    captures = DueCaptures(deps, services.files, watches)
    capturing = ContinuousCapture(deps, captures, watches)
    if settings.keep_files:
        services.activities.on_act(capturing.follow)
        services.feed.subscribe(capturing.on_events)
    scheduler.register(
        TaskName.CHECKPOINT,
        Checkpoint(deps, captures).run,
        period_s=settings.files_checkpoint_s,
        is_enabled=lambda: settings.keep_files,
    )
    scheduler.register(
        TaskName.CAPTURE,
        capturing.run,
        period_s=CAPTURE_PERIOD_S,
        is_enabled=lambda: settings.keep_files,
        on_stop=capturing.stop,
    )


def make_sweep(services: Services) -> IdleSweep:
    """Return the idle sweep over these services."""

    async def find_out(held: Sandbox) -> None:
        """Ask the provider about a row that is not certain."""
        if held.state is State.STARTING:
            await services.creation.finish(held)
        else:
            await services.verification.verify_held(held)

    return IdleSweep(
        services.deps,
        services.claims,
        services.lifecycle,
        services.activities,
        services.lost_activity,
        services.clock_monitor,
        find_out=find_out,
        end_instead=services.end_instead,
    )


def wake_tasks_by_feed(services: Services, scheduler: Scheduler) -> None:
    """Run the sweep or the pool task soon after what makes them due, instead of by period."""
    tasks = {
        Signal.LEASE_RELEASED: [TaskName.IDLE_SWEEP],
        Signal.POOL_NEEDS_FILL: [TaskName.POOL],
        Signal.WORK_FREED: [TaskName.IDLE_SWEEP, TaskName.WAKE_DRIVER, TaskName.POOL],
    }

    def on_events(events: Sequence[LoggedEvent]) -> None:
        if any(event.type in MOVES_DEADLINES for event in events):
            scheduler.wake_up(TaskName.IDLE_SWEEP)

    def on_signal(signal: Signal) -> None:
        for name in tasks[signal]:
            scheduler.wake_up(name)

    services.feed.subscribe(on_events)
    services.feed.on_signal(on_signal)


def _record_runs(services: Services) -> Callable[[TaskRun], None]:
    metrics, health = services.deps.metrics, services.health

    def record(run: TaskRun) -> None:
        metrics.background_run.labels(run.task).observe(run.duration_s)
        if run.succeeded:
            metrics.background_success.labels(run.task).set_to_current_time()
        health.record_run(task=run.task, duration_s=run.duration_s, succeeded=run.succeeded)

    return record


def _recover(services: Services) -> Run:
    """Return the pass over the replicas, which runs again when the next heartbeat expires."""

    async def task() -> TaskOutcome:
        detail = await services.recovery.run()
        return TaskOutcome(detail=detail, again_in_s=services.recovery.next_expiry_s)

    return task


def _check_clocks(services: Services) -> Run:
    async def task() -> Mapping[str, Detail]:
        await services.clock_monitor.check()
        return {"skewS": services.clock_monitor.skew_s}

    return task


def _report(run: Callable[[], Awaitable[DataclassInstance]]) -> Run:
    """Return a task whose detail is the report dataclass that `run` returns."""

    async def task() -> Mapping[str, Detail]:
        return asdict(await run())

    return task


def _count(run: Callable[[], Awaitable[int]], what: str) -> Run:
    """Return a task whose detail is the count that `run` returns, under this name."""

    async def task() -> Mapping[str, Detail]:
        return {what: await run()}

    return task


def _count_costs(services: Services) -> Run:
    async def task() -> Mapping[str, Detail]:
        report = await services.cost_roll_up.run()
        await services.cost_reports.measure()
        await services.budgets.check()
        may_pause = services.feature_flags.is_on(FeatureFlag.ENFORCER)
        paused = 0
        if may_pause and services.clock_monitor.may_sweep:
            paused = await services.budget_pauses.run()
        return asdict(report) | {"paused": paused}

    return task


def _prune(services: Services) -> Run:
    """Return the pass that removes what is old, which runs again soon if something is left."""

    async def task() -> TaskOutcome:
        pruned = await services.retention.prune()
        detail = asdict(pruned)
        detail["isComplete"] = detail.pop("is_complete")
        return TaskOutcome(detail, again_in_s=None if pruned.is_complete else PRUNE_REST_S)

    return task


def _flush(activities: ActivityBuffer) -> Run:
    last_passive = time.monotonic()

    async def task() -> Mapping[str, Detail]:
        nonlocal last_passive
        includes_passive = time.monotonic() - last_passive >= PASSIVE_FLUSH_S
        written = await activities.flush(passive=includes_passive)
        if includes_passive:
            last_passive = time.monotonic()
        return {"written": written}

    return task


def _reconcile(services: Services) -> Run:
    """Return the pass over the regions that no other replica has compared in this period."""
    period_s = services.deps.settings.reconcile_period_s

    async def task() -> TaskOutcome:
        passes = await services.reconciliation.run_due(period_s=period_s)
        counts: Counter[str] = Counter()
        for report in passes.reports:
            counts.update(report.counts)
        detail: dict[str, Detail] = dict(counts)
        now = services.deps.clock()
        waits_s = []
        for region, other in passes.others.items():
            age_s = (now - other.started_at).total_seconds()
            detail[region] = f"{other.holder}, {age_s:.0f} s ago"
            is_over = other.finished_at is not None
            waits_s.append(max(period_s - age_s, 0.0) if is_over else TAKE_OVER_S)
        return TaskOutcome(detail, again_in_s=min(waits_s, default=None))

    return task


def _poll_events(services: Services) -> Run:
    async def task() -> Mapping[str, Detail]:
        reports = await services.event_polling.run()
        return {
            "read": sum(report.read for report in reports),
            "changed": sum(report.changed for report in reports),
            "unsupported": sum(not report.supported for report in reports),
        }

    return task


def _refresh_flags(services: Services) -> Run:
    async def task() -> Mapping[str, Detail]:
        await services.feature_flags.refresh()
        await services.provider_features.refresh()
        return {name: int(on) for name, on in services.feature_flags.all().items()}

    return task


def _refresh_tokens(services: Services, end_streams: Callable[[], None]) -> Run:
    async def task() -> Mapping[str, Detail]:
        revoked = await services.tokens.refresh()
        keys = await services.api_keys.refresh()
        end_streams()
        return {"revoked": revoked, "keys": keys}

    return task


def _resume_interrupted(services: Services) -> Run:
    async def task() -> Mapping[str, Detail]:
        return {
            "wakes": await services.wakes.resume_interrupted(),
            "rebuilds": await services.jobs.resume_interrupted(),
        }

    return task
