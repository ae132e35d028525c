"""The health of the keeper itself: eight readings, each with its limit and the action beyond it.

The same limits ship as Prometheus rules; here they are computed from what this process saw in the
last hour, so that the dashboard's header and `doctor` need no Prometheus. A reading with too little
data says so (`value` is None) and is never red.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from sandkeeper.domain.clock import SKEW_MAX
from sandkeeper.domain.tasks import TaskName

WINDOW = timedelta(hours=1)

WEBHOOK_FAILURES_MAX = 0.05
WEBHOOKS_MIN = 20
RUN_S_MAX = 90.0
STALE_SHARE_MAX = 0.10
MISMATCH_SHARE_MAX = 0.02
PAGE_VIEWS_MIN = 50
ENFORCER_SILENT_S_MAX = 300.0
WEBHOOK_SILENT_S_MAX = 1800.0
IDLE_LAG_S_P95_MAX = 120.0
CLOCK_SKEW_S_MAX = SKEW_MAX.total_seconds()

# How many durations of one kind are remembered. Higher costs memory in a busy hour; lower makes the
# percentile cover only the last minutes.
SAMPLES_MAX = 2_000


@dataclass(frozen=True, slots=True)
class Reading:
    """One measured value and its limit. `unit` is `ratio` or `s`."""

    name: str
    value: float | None
    limit: float
    unit: str
    red: bool
    sentence: str


@dataclass(frozen=True, slots=True)
class HealthReport:
    """All readings at one moment."""

    as_of: datetime
    readings: tuple[Reading, ...]

    @property
    def is_well(self) -> bool:
        return not any(reading.red for reading in self.readings)


@dataclass(frozen=True, slots=True)
class Staleness:
    """The number of live records, and of those that were not verified for ten minutes."""

    live: int
    stale: int


class HealthMonitor:
    """Collect what happened and compare it with the limits.

    `count_stale` is called for a report. Webhook silence is judged only where webhooks are
    expected.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], datetime],
        count_stale: Callable[[datetime], Awaitable[Staleness]],
        expects_webhooks: Callable[[], bool] = lambda: False,
        enforces: Callable[[], bool] = lambda: True,
        read_skew_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._clock = clock
        self._count_stale = count_stale
        self._expects_webhooks = expects_webhooks
        self._enforces = enforces
        self._read_skew_s = read_skew_s
        self._started_at = clock()
        self._webhooks = _Hour()
        self._webhook_failures = _Hour()
        self._page_views = _Hour()
        self._mismatches = _Hour()
        self._lags: deque[tuple[datetime, float]] = deque(maxlen=SAMPLES_MAX)
        self._runs: deque[tuple[datetime, str, float]] = deque(maxlen=SAMPLES_MAX)
        self._enforced_at: datetime | None = None
        self._webhook_at: datetime | None = None
        self._changed_otherwise_at: datetime | None = None

    def record_webhook(self, *, accepted: bool) -> None:
        now = self._clock()
        self._webhooks.add(now)
        if accepted:
            self._webhook_at = now
        else:
            self._webhook_failures.add(now)

    def record_change(self, *, by_webhook: bool) -> None:
        """Record that a state changed, and whether a webhook reported it."""
        if not by_webhook:
            self._changed_otherwise_at = self._clock()

    def record_page_view(self) -> None:
        self._page_views.add(self._clock())

    def record_mismatch(self) -> None:
        self._mismatches.add(self._clock())

    def record_idle_lag(self, lag_s: float) -> None:
        self._lags.append((self._clock(), lag_s))

    def record_run(self, *, task: str, duration_s: float, succeeded: bool) -> None:
        now = self._clock()
        self._runs.append((now, task, duration_s))
        if succeeded and task == TaskName.IDLE_SWEEP:
            self._enforced_at = now

    async def report(self, staleness: Staleness | None = None) -> HealthReport:
        """Return every reading; `staleness` is given by a caller who has just counted."""
        now = self._clock()
        if staleness is None:
            staleness = await self._count_stale(now)
        return HealthReport(
            as_of=now,
            readings=(
                self._read_webhook_failures(now),
                self._read_runs(now),
                _read_share(
                    "stale_records",
                    staleness.stale,
                    of=staleness.live,
                    at_least=1,
                    limit=STALE_SHARE_MAX,
                    sentence="Live records not verified for ten minutes. Check whether the "
                    "reconciler runs and the provider answers.",
                ),
                _read_share(
                    "mismatches",
                    self._mismatches.total(now),
                    of=self._page_views.total(now),
                    at_least=PAGE_VIEWS_MIN,
                    limit=MISMATCH_SHARE_MAX,
                    sentence="Pages that found what they showed to be wrong. Compare our states "
                    "with the provider's by a reconciliation.",
                ),
                self._read_enforcer(now),
                self._read_webhook_silence(now),
                self._read_lag(now),
                _read_seconds(
                    "clock_skew",
                    self._read_skew_s(),
                    limit=CLOCK_SKEW_S_MAX,
                    sentence="The largest difference between our clock and the machine's, the "
                    "database's or the provider's. Set the clock that GET /readyz names.",
                ),
            ),
        )

    def _read_webhook_failures(self, now: datetime) -> Reading:
        return _read_share(
            "webhook_failures",
            self._webhook_failures.total(now),
            of=self._webhooks.total(now),
            at_least=WEBHOOKS_MIN,
            limit=WEBHOOK_FAILURES_MAX,
            sentence="Webhooks refused in the last hour. A wrong secret is the usual cause: "
            "register the webhook again.",
        )

    def _read_runs(self, now: datetime) -> Reading:
        recent = [duration for at, _, duration in self._runs if now - at <= WINDOW]
        return _read_seconds(
            "background_run",
            max(recent, default=None),
            limit=RUN_S_MAX,
            sentence="The longest background run of the last hour. The provider is slow, or one "
            "replica does the work of several.",
        )

    def _read_enforcer(self, now: datetime) -> Reading:
        silent_s = (now - (self._enforced_at or self._started_at)).total_seconds()
        return _read_seconds(
            "enforcer_silence",
            silent_s if self._enforces() else None,
            limit=ENFORCER_SILENT_S_MAX,
            sentence="Time since the idle sweep last succeeded. Until it does, no idle sandbox is "
            f"paused: check the log for errors of the task {TaskName.IDLE_SWEEP}.",
        )

    def _read_webhook_silence(self, now: datetime) -> Reading:
        silent_s: float | None = None
        changed_at = self._changed_otherwise_at
        if self._expects_webhooks() and changed_at is not None:
            since = self._webhook_at or self._started_at
            if changed_at > since:
                silent_s = (now - since).total_seconds()
        return _read_seconds(
            "webhook_silence",
            silent_s,
            limit=WEBHOOK_SILENT_S_MAX,
            sentence="States change, but no webhook reports it. Check whether it is registered and "
            "the public URL reaches this server.",
        )

    def _read_lag(self, now: datetime) -> Reading:
        recent = sorted(lag for at, lag in self._lags if now - at <= WINDOW)
        p95 = recent[int(0.95 * (len(recent) - 1))] if recent else None
        return _read_seconds(
            "idle_lag_p95",
            p95,
            limit=IDLE_LAG_S_P95_MAX,
            sentence="How late idle sandboxes were paused (95th percentile). The provider is "
            "slow or limits the rate.",
        )


def limits() -> Mapping[str, float]:
    """Return the limit of each reading by its name; the Prometheus rules have the same."""
    return {
        "webhook_failures": WEBHOOK_FAILURES_MAX,
        "background_run": RUN_S_MAX,
        "stale_records": STALE_SHARE_MAX,
        "mismatches": MISMATCH_SHARE_MAX,
        "enforcer_silence": ENFORCER_SILENT_S_MAX,
        "webhook_silence": WEBHOOK_SILENT_S_MAX,
        "idle_lag_p95": IDLE_LAG_S_P95_MAX,
        "clock_skew": CLOCK_SKEW_S_MAX,
    }


def _read_share(
    name: str, part: int, *, of: int, at_least: int, limit: float, sentence: str
) -> Reading:
    value = part / of if of >= at_least else None
    return Reading(
        name=name,
        value=value,
        limit=limit,
        unit="ratio",
        red=value is not None and value > limit,
        sentence=sentence,
    )


def _read_seconds(name: str, value: float | None, *, limit: float, sentence: str) -> Reading:
    return Reading(
        name=name,
        value=value,
        limit=limit,
        unit="s",
        red=value is not None and value > limit,
        sentence=sentence,
    )


class _Hour:
    """A count over the last hour, stored by the minute."""

    def __init__(self) -> None:
        self._minutes: deque[tuple[datetime, int]] = deque(maxlen=61)

    def add(self, now: datetime) -> None:
        minute = now.replace(second=0, microsecond=0)
        if self._minutes and self._minutes[-1][0] >= minute:
            last, count = self._minutes.pop()
            self._minutes.append((last, count + 1))
        else:
            self._minutes.append((minute, 1))

    def total(self, now: datetime) -> int:
        return sum(count for minute, count in self._minutes if now - minute <= WINDOW)
