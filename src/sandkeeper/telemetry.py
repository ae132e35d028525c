"""The format of log lines, and every metric of the keeper.

A log line is one fact with a stable ``action``. A metric never carries an id or an owner as a
label: the number of series is bounded by the code, not by the fleet.
"""

from __future__ import annotations

import io
import logging
import sys
import time
from collections import Counter as Counts
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, Final, Literal, TextIO, cast

import structlog
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from structlog.typing import EventDict, Processor, WrappedLogger

from sandkeeper.common.log_names import LOG_NAMES
from sandkeeper.common.tracing import TRACING
from sandkeeper.domain.owner import Owner

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
ANSWER_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
FAST_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 120)
RUN_S = (0.01, 0.05, 0.1, 0.5, 1, 2, 5, 15, 30, 60, 90, 120, 300)
LAG_S = (1, 2, 5, 15, 30, 60, 120, 300)
TAIL_S = (15, 30, 60, 120, 180, 240, 300, 600, 1200, 1800, 3600)


class Metrics:
    """Every series that the keeper publishes, in a registry of its own.

    A process creates one and passes it on; two applications in one process do not share it.
    """

    def __init__(self) -> None:
        # They double the page and no rule uses them. The library left its function untyped.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._describe_fleet()
        self._describe_costs()
        self._describe_capacity()
        self._describe_work()
        self._describe_clients()
        self._describe_process()

    def render(self) -> bytes:
        """Return the page for Prometheus."""
        return generate_latest(self.registry)

    def _counter(self, name: str, words: str, *labels: str) -> Counter:
        return Counter(f"sandkeeper_{name}", words, labels, registry=self.registry)

    def _gauge(self, name: str, words: str, *labels: str) -> Gauge:
        return Gauge(f"sandkeeper_{name}", words, labels, registry=self.registry)

    def _histogram(
        self, name: str, words: str, *labels: str, buckets: tuple[float, ...] = FAST_S
    ) -> Histogram:
        return Histogram(
            f"sandkeeper_{name}", words, labels, buckets=buckets, registry=self.registry
        )

    def _describe_fleet(self) -> None:
        self.provider_up = self._gauge(
            "provider_up", "1 while the provider answers, else 0.", "provider", "region"
        )
        self.sandboxes = self._gauge("sandboxes", "Sandboxes in each state.", "state")
        self.sandboxes_stale = self._gauge(
            "sandboxes_stale", "Live sandboxes not verified for ten minutes."
        )
        self.transitions = self._counter(
            "transitions_total", "State changes.", "from_state", "to_state", "cause"
        )
        self.idle_lag = self._histogram(
            "idle_enforcement_lag_seconds",
            "Time between an idle deadline and the pause that met it.",
            buckets=LAG_S,
        )
        self.idle_overdue = self._gauge(
            "idle_overdue", "Running sandboxes past their idle deadline."
        )
        self.idle_pauses_failed = self._counter(
            "idle_pauses_failed_total", "Idle pauses that failed and are tried again."
        )
        self.feed_age = self._gauge(
            "feed_age_seconds", "Time since this replica last saw what was committed."
        )
        self.captures_waiting = self._gauge(
            "captures_waiting", "Running sandboxes whose files the last pass could not capture."
        )
        self.idle_tail = self._histogram(
            "idle_tail_seconds",
            "Time that a sandbox ran between its last activity or work and its idle pause.",
            buckets=TAIL_S,
        )
        self.idle_pauses_early = self._counter(
            "idle_pauses_early_total", "Idle pauses that were followed by a wake within a minute."
        )
        self.warmups = self._counter(
            "warmups_total", "Warm-ups by outcome, also those that were refused.", "outcome"
        )
        self.events_ahead = self._counter(
            "events_ahead_total",
            "Provider events dated over a minute after their arrival; the arrival counts.",
            "source",
        )
        self.drift = self._counter(
            "drift_total", "Corrections that the reconciler made or asked for.", "kind"
        )
        self.recreations = self._counter(
            "recreations_total", "Recreated sandboxes, by reason.", "reason"
        )
        self.files_restored = self._counter(
            "files_restored_total", "Files put back into a sandbox."
        )

    def _describe_costs(self) -> None:
        self.cost_dollars = self._gauge(
            "cost_dollars",
            "What the current month (UTC) costs so far, and its parts, in dollars.",
            "part",
        )
        self.cost_saved_dollars = self._gauge(
            "cost_saved_dollars",
            "What the current month (UTC) would have cost in addition, in dollars, "
            "if nothing were paused, or only by the provider's timeout.",
            "against",
        )
        self.budgets_spent = self._gauge(
            "budgets_spent", "Monthly budgets that are spent, of tenants and of the fleet."
        )
        self.budget_notices = self._counter(
            "budget_notices_total", "Notices that a share of a budget is spent.", "share"
        )

    def _describe_capacity(self) -> None:
        self.slots_taken = self._gauge(
            "slots_taken", "Sandboxes that run or may run, those of others included.", "region"
        )
        self.slots_max = self._gauge(
            "slots_max", "Sandboxes that may run at a time, where that is limited.", "region"
        )
        self.admissions = self._counter(
            "admissions_total",
            "Requests for a slot: served at once, after a wait, or refused.",
            "outcome",
        )
        self.admission_wait = self._histogram(
            "admission_wait_seconds", "How long requests waited in line.", buckets=RUN_S
        )
        self.evictions = self._counter(
            "evictions_total",
            "Sandboxes chosen to make room: stopped, in use after all, or failed.",
            "outcome",
        )

    def _describe_work(self) -> None:
        self.clock_skew = self._gauge(
            "clock_skew_seconds",
            "How far a clock (machine or provider) is ahead of the one that the keeper works by.",
            "clock",
            "region",
        )
        self.work_checks = self._counter(
            "work_checks_total",
            "Checks for work before an idle pause: work, idle or unknown.",
            "found",
        )
        self.folder_watches = self._gauge(
            "folder_watches", "Running sandboxes whose work folder is watched for changes."
        )
        self.captures = self._counter(
            "captures_total", "Captures of sandboxes in use, by what came of them.", "outcome"
        )
        self.operation_duration = self._histogram(
            "operation_duration_seconds", "Lifecycle operations.", "op", "outcome"
        )
        self.ready_duration = self._histogram(
            "ready_duration_seconds", "Time until the application answered.", "op"
        )
        self.webhooks_received = self._counter(
            "webhook_received_total",
            "Webhook deliveries, also those that were refused or could not be recorded.",
            "type",
            "outcome",
        )
        self.webhooks_expected = self._gauge(
            "webhooks_expected", "1 while webhooks are switched on and a public URL is set."
        )
        self.webhook_lag = self._histogram(
            "webhook_delivery_lag_seconds", "Time between an event and its record."
        )
        self.background_run = self._histogram(
            "background_run_duration_seconds", "Runs of background tasks.", "task", buckets=RUN_S
        )
        self.background_success = self._gauge(
            "background_last_success_timestamp_seconds",
            "When a background task last succeeded.",
            "task",
        )
        self.provider_requests = self._counter(
            "provider_requests_total", "Requests to the provider.", "op", "code"
        )
        self.reconciler = self._gauge(
            "reconciler",
            "1 on the replica that last compared a region's records with the provider, else 0.",
            "provider",
            "region",
        )
        self.provider_duration = self._histogram(
            "provider_request_duration_seconds", "Requests to the provider.", "op"
        )
        self.breaker_state = self._gauge(
            "breaker_state", "0 closed, 1 half open, 2 open.", "provider", "region"
        )

    def _describe_clients(self) -> None:
        self.page_views = self._counter("page_views_total", "Pages that showed a sandbox.")
        self.mismatches = self._counter(
            "status_mismatches_total", "Times a page had shown a wrong state."
        )
        self.sse_connections = self._gauge("sse_connections", "Live streams that are open.")
        self.requests = self._counter(
            "http_requests_total",
            "Requests answered, by method and class of status.",
            "method",
            "code",
        )
        self.http_duration = self._histogram(
            "http_request_duration_seconds",
            "Time until the answer began, by route.",
            "route",
            buckets=ANSWER_S,
        )
        self.preview_requests = self._counter(
            "preview_requests_total",
            "Requests to previews, by class of status; `unknown` is no sandbox's.",
            "code",
            "preview",
        )
        self.preview_duration = self._histogram(
            "preview_request_duration_seconds",
            "Time until the answer to a request to a preview was complete.",
            buckets=ANSWER_S,
        )
        self.sessions_active = self._gauge("sessions_active", "Sessions that are held.", "kind")
        self.sessions_created = self._counter("sessions_created_total", "Sessions created.", "kind")
        self.sessions_cleaned = self._counter("sessions_cleaned_total", "Sessions closed.", "kind")
        self.sessions_reused = self._counter("sessions_reused_total", "Sessions reused.", "kind")
        self.sessions_health_failures = self._counter(
            "sessions_health_check_failures_total", "Health checks that failed.", "kind"
        )
        self.pool_claims = self._counter(
            "pool_claims_total", "Claims on warm pools, hits and misses.", "outcome"
        )

    def _describe_process(self) -> None:
        self.event_loop_lag = self._histogram(
            "event_loop_lag_seconds",
            "How late the event loop ran a timer; every request waits as long.",
            buckets=ANSWER_S,
        )
        self.database_connections = self._gauge(
            "database_connections", "Connections to the database, in use or idle.", "state"
        )
        ProcessCollector(registry=self.registry)


def configure_logging(form: Literal["auto", "json", "pretty"], level: str) -> None:
    """Send every log line, ours and the libraries', to stderr in one form."""
    watched = sys.stderr.isatty()
    output = LogOutput(sys.stderr)
    pretty = form == "pretty" or (form == "auto" and watched)
    # On a terminal the time of day is enough; a file outlives the day and needs the date.
    short = pretty and watched
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        _name_the_request,
        _name_the_trace,
        _name_the_sandbox,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="%H:%M:%S" if short else "iso", utc=not short),
        structlog.processors.StackInfoRenderer(),
        output.tell_losses,
    ]
    repeats = RepeatFilter()
    last: list[Processor] = (
        [structlog.dev.ConsoleRenderer(event_key="action")]
        if pretty
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    )
    structlog.configure(
        processors=[*shared, repeats, _name_the_action, *last],
        wrapper_class=structlog.make_filtering_bound_logger(_level(level)),
        # It only writes and flushes.
        logger_factory=structlog.WriteLoggerFactory(cast(TextIO, output)),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(output)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                _name_the_action,
                *last,
            ],
        )
    )
    # The libraries' lines: the same message of the same logger is a repeat.
    handler.addFilter(lambda record: repeats.is_new(f"{record.name}: {record.msg}", ()))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(_level(level), logging.WARNING))


request_scope: ContextVar[Mapping[str, Any] | None] = ContextVar("request_scope", default=None)
"""The ASGI scope of the request that is being served; log lines are named after it."""


def name_owner(owner: Owner) -> None:
    """Name the owner in every log line that the current task writes from now on."""
    structlog.contextvars.bind_contextvars(**{owner.kind.value: owner.id})


def name_session(key: str) -> None:
    """Name the session's key in every log line that the current task writes from now on."""
    structlog.contextvars.bind_contextvars(session_key=key)


def _name_the_request(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Add the request's id, and the project, job or session that its address names."""
    scope = request_scope.get()
    if scope is not None:
        event.setdefault("request_id", scope.get("state", {}).get("request_id"))
        for name in ("project", "job", "session"):
            named = scope.get("path_params", {}).get(name)
            if named is not None:
                event.setdefault(name, named)
    return event


def _name_the_trace(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Add the id of the trace that the line belongs to, where traces are on."""
    trace_id = TRACING.find_trace_id()
    if trace_id is not None:
        event.setdefault("trace_id", trace_id)
    return event


def _name_the_sandbox(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Add the owner of the sandbox and the key of the session that the line is about."""
    LOG_NAMES.add(event)
    return event


class LogOutput(io.TextIOBase):
    """The stream of log lines: one that cannot be written is lost, and no request fails for it.

    The disk of a log can be full, and the reader of a pipe can be gone. The next line that can be
    written says how many were lost.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lost = 0

    def write(self, text: str) -> int:
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            self._lost += 1
        else:
            self._lost = 0
        return len(text)

    def tell_losses(self, _logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        """Add the number of lost lines to the next one."""
        if self._lost:
            event["lines_not_written"] = self._lost
        return event


class RepeatFilter:
    """Let a warning through once, and count its repeats instead of writing them.

    Two lines are the same when they tell the same fact of the same thing. After `window_s` the next
    one is written, with the number of those that were not. One fact of very many things is bounded
    too: `lines_max` lines in a window.
    """

    def __init__(
        self,
        *,
        window_s: float = 600.0,
        lines_max: int = 50,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._window_s = window_s
        self._lines_max = lines_max
        self._clock = clock
        self._since: dict[str, float] = {}
        self._written: dict[str, set[tuple[object, ...]]] = {}
        self._dropped: Counts[str] = Counts()

    def is_new(self, fact: str, key: tuple[object, ...]) -> bool:
        """Return whether a line is to be written; count it if not."""
        now = self._clock()
        if now - self._since.get(fact, -self._window_s) >= self._window_s:
            self._forget(now)
            self._since[fact] = now
            self._written[fact] = set()
        written = self._written[fact]
        if key in written or len(written) >= self._lines_max:
            self._dropped[fact] += 1
            return False
        written.add(key)
        return True

    def _forget(self, now: float) -> None:
        """Keep only facts of this window, so that odd messages do not fill memory."""
        for fact in [one for one, at in self._since.items() if now - at >= self._window_s]:
            if not self._dropped[fact]:
                del self._since[fact], self._written[fact], self._dropped[fact]

    def __call__(self, _logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        if event.get("level") not in ("warning", "error", "critical"):
            return event
        fact = str(event.get("event"))
        if not self.is_new(fact, tuple(event.get(name) for name in _IDENTITY)):
            raise structlog.DropEvent
        dropped = self._dropped.pop(fact, 0)
        if dropped:
            event["repeats_not_written"] = dropped
        return event


_IDENTITY: Final = ("sandbox_id", "instance_id", "task", "owner", "region", "code", "status")


def _level(name: str) -> int:
    return logging.getLevelNamesMapping()[name.upper()]


def _name_the_action(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Rename the first argument of a log call, the name of the fact, to ``action``."""
    if "event" in event:
        event["action"] = event.pop("event")
    return event
