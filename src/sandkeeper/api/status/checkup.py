"""The health page: each part of the keeper, how it does, what it is for, and what helps."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from sandkeeper.background.scheduler import Scheduler
from sandkeeper.domain.breaker import BreakerState
from sandkeeper.domain.tasks import TaskName
from sandkeeper.domain.texts.presentation import format_duration
from sandkeeper.services.composition import Services
from sandkeeper.services.monitoring.feature_flags import FeatureFlag
from sandkeeper.services.monitoring.health import HealthReport, Reading

FEED_AGE_S_MAX: Final = 5.0
"""A round of the feed begins twice a second; one that takes longer delays what pages show."""


class HealthState(StrEnum):
    """How a part does."""

    OK = "ok"
    BAD = "bad"
    OFF = "off"
    """It was switched off, or is not used."""


@dataclass(frozen=True, slots=True)
class KeeperPart:
    """One part. `since` is known where the fault has a beginning."""

    name: str
    title: str
    state: HealthState
    finding: str
    meaning: str
    action: str
    since: datetime | None = None

    def render(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "title": self.title,
            "state": self.state.value,
            "finding": self.finding,
            "meaning": self.meaning,
            "action": self.action,
            "since": self.since,
        }


class Checkup:
    """Look at every part of this process. Nothing is asked of a provider here."""

    def __init__(self, services: Services, scheduler: Scheduler) -> None:
        self._services = services
        self._scheduler = scheduler

    async def list_parts(self, report: HealthReport) -> list[KeeperPart]:
        readings = {reading.name: reading for reading in report.readings}
        return [
            *self._check_providers(),
            self._check_enforcer(readings),
            await self._check_database(),
            self._check_feed(),
            self._check_webhooks(readings),
            self._check_clocks(),
            self._check_captures(),
            *(_judge(readings[name], title) for name, title in OTHERS.items()),
        ]

    def _check_providers(self) -> list[KeeperPart]:
        down = self._services.provider_health.list_down()
        return [
            _judge_provider(f"{provider.name}/{provider.region}", down, breaker)
            for provider, breaker in self._services.deps.providers.breaker_states().items()
        ]

    def _check_enforcer(self, readings: dict[str, Reading]) -> KeeperPart:
        is_on = self._services.feature_flags.is_on(FeatureFlag.ENFORCER)
        reading = readings["enforcer_silence"]
        silent = f"Its last success is {_say_seconds(reading.value)} ago."
        return KeeperPart(
            "enforcer",
            "Enforcer",
            _state(reading) if is_on else HealthState.OFF,
            silent if is_on else "It is switched off: no idle sandbox is paused.",
            "Pauses idle sandboxes and ends what is over.",
            "Look in the log for errors of the task idle-sweep, and whether the provider answers.",
        )

    async def _check_database(self) -> KeeperPart:
        problem = await self._services.database_probe.find_problem()
        return KeeperPart(
            "database",
            "Database",
            HealthState.OK if problem is None else HealthState.BAD,
            problem or "It answers, and the last write succeeded.",
            "Holds every record. Without it nothing is changed, and pages show what memory has.",
            "Check the disk's free space, or the database server and the network to it.",
        )

    def _check_feed(self) -> KeeperPart:
        age_s = self._services.feed.age_s
        return KeeperPart(
            "feed",
            "Event feed",
            HealthState.OK if age_s <= FEED_AGE_S_MAX else HealthState.BAD,
            f"Its last round ended {_say_seconds(age_s)} ago.",
            "Brings every committed change to pages and streams.",
            "A slow database is the usual cause. Until it recovers, pages show older states.",
        )

    def _check_webhooks(self, readings: dict[str, Reading]) -> KeeperPart:
        silence, failures = readings["webhook_silence"], readings["webhook_failures"]
        is_expected = bool(self._services.deps.settings.public_url)
        if silence.red:
            finding = f"States change, but no webhook came for {_say_seconds(silence.value)}."
        elif failures.value is not None:
            finding = f"{failures.value:.1%} of the deliveries of the last hour were refused."
        elif is_expected:
            finding = "Too few deliveries in the last hour to judge."
        else:
            finding = "Not used: there is no public URL. Events are polled instead."
        is_bad = silence.red or failures.red
        fine = HealthState.OK if is_expected else HealthState.OFF
        return KeeperPart(
            "webhooks",
            "Webhooks",
            HealthState.BAD if is_bad else fine,
            finding,
            "Tell about a change at the provider within a second; polling needs longer.",
            "Register the webhook again (sandkeeper webhook register URL), and check that the "
            "public URL reaches this server.",
        )

    def _check_clocks(self) -> KeeperPart:
        skewed = self._services.clock_monitor.describe()
        return KeeperPart(
            "clocks",
            "Clocks",
            HealthState.BAD if skewed else HealthState.OK,
            " ".join(skewed) or "This machine, the database and the providers agree.",
            "A wrong clock makes sandboxes in use look idle, so nothing is paused by it.",
            "Set the clock that is named here, usually by NTP.",
        )

    def _check_captures(self) -> KeeperPart:
        keeps = self._services.deps.settings.keep_files
        tasks = {task.name: task for task in self._scheduler.statuses()}
        last = tasks[TaskName.CHECKPOINT].last_run if TaskName.CHECKPOINT in tasks else None
        detail = last.detail if last is not None else {}
        waiting = int(detail.get("failed", 0)) + int(detail.get("busy", 0))
        finding = f"{waiting} running sandboxes were not captured by the last pass."
        if not waiting:
            finding = "The last pass captured all that was due."
        return KeeperPart(
            "captures",
            "Saved files",
            HealthState.OFF if not keeps else HealthState.BAD if waiting else HealthState.OK,
            finding if keeps else "Keeping files is switched off.",
            "Files are saved outside the sandboxes, so that they survive their end.",
            "Look in the log for checkpoint_failed: a full file store and a sandbox that hangs "
            "are the usual causes.",
        )


OTHERS: Final = {
    "stale_records": "Unverified records",
    "mismatches": "Wrong pages",
    "idle_lag_p95": "Lateness of pauses",
    "background_run": "Background runs",
}
"""Readings that are parts of their own; their sentence has the meaning first, then the advice."""


def _judge(reading: Reading, title: str) -> KeeperPart:
    meaning, _, action = reading.sentence.partition(". ")
    value = "Too little was measured to judge."
    if reading.value is not None:
        is_share = reading.unit == "ratio"
        shown = f"{reading.value:.1%}" if is_share else _say_seconds(reading.value)
        limit = f"{reading.limit:.0%}" if is_share else _say_seconds(reading.limit)
        value = f"{shown}; the limit is {limit}."
    return KeeperPart(reading.name, title, _state(reading), value, f"{meaning}.", action)


def _judge_provider(name: str, down: dict[str, datetime], breaker: BreakerState) -> KeeperPart:
    since = down.get(name)
    finding = "It answers."
    if since is not None:
        finding = f"It has not answered since {since:%H:%M} UTC."
    elif breaker is BreakerState.OPEN:
        finding = "It failed often and is left alone for some seconds."
    is_bad = since is not None or breaker is BreakerState.OPEN
    return KeeperPart(
        f"provider:{name}",
        f"Provider {name}",
        HealthState.BAD if is_bad else HealthState.OK,
        finding,
        "Runs the sandboxes. While it is silent, what ran there is shown as unreachable, and "
        "nothing there is paused, woken or ended.",
        "Check its address and its status page, and the network from this server to it.",
        since,
    )


def _state(reading: Reading) -> HealthState:
    return HealthState.BAD if reading.red else HealthState.OK


def _say_seconds(seconds: float | None) -> str:
    if seconds is None:
        return "an unknown time"
    return f"{seconds:.1f} seconds" if seconds < 10 else format_duration(round(seconds))
