"""Each reading turns red past its limit, and says nothing while too little is known."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sandkeeper.services.monitoring.health import (
    HealthMonitor,
    HealthReport,
    Reading,
    Staleness,
    limits,
)


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def advance(self, **by: float) -> None:
        self.now += timedelta(**by)


def make_health(clock: Clock, *, live: int = 0, stale: int = 0) -> HealthMonitor:
    async def count_stale(now: datetime) -> Staleness:
        return Staleness(live=live, stale=stale)

    return HealthMonitor(clock=clock, count_stale=count_stale, expects_webhooks=lambda: True)


def reading(report: HealthReport, name: str) -> Reading:
    return next(reading for reading in report.readings if reading.name == name)


async def test_a_fresh_keeper_is_well_and_reads_every_limit() -> None:
    report = await make_health(Clock()).report()
    assert report.is_well
    assert {reading.name: reading.limit for reading in report.readings} == limits()
    assert all(reading.sentence.endswith(".") for reading in report.readings)


async def test_webhook_failures_count_from_twenty_on_and_for_one_hour() -> None:
    clock = Clock()
    health = make_health(clock)
    health.record_webhook(accepted=False)
    assert reading(await health.report(), "webhook_failures").value is None
    for _ in range(19):
        health.record_webhook(accepted=True)
    at_the_limit = reading(await health.report(), "webhook_failures")
    assert (at_the_limit.value, at_the_limit.red) == (0.05, False)
    health.record_webhook(accepted=False)
    assert reading(await health.report(), "webhook_failures").red
    clock.advance(minutes=62)
    assert reading(await health.report(), "webhook_failures").value is None


async def test_more_than_a_tenth_of_stale_records_is_red() -> None:
    assert not reading(await make_health(Clock(), live=10, stale=1).report(), "stale_records").red
    assert reading(await make_health(Clock(), live=10, stale=2).report(), "stale_records").red


async def test_mismatches_are_judged_against_page_views() -> None:
    health = make_health(Clock())
    for _ in range(2):
        health.record_mismatch()
    for _ in range(50):
        health.record_page_view()
    assert reading(await health.report(), "mismatches").value == 0.04
    assert reading(await health.report(), "mismatches").red


async def test_a_long_run_and_a_silent_enforcer_are_red() -> None:
    clock = Clock()
    health = make_health(clock)
    health.record_run(task="reconcile", duration_s=91, succeeded=True)
    assert reading(await health.report(), "background_run").red
    clock.advance(minutes=4)
    health.record_run(task="idle-sweep", duration_s=1, succeeded=True)
    clock.advance(minutes=4)
    health.record_run(task="idle-sweep", duration_s=1, succeeded=False)
    assert not reading(await health.report(), "enforcer_silence").red
    clock.advance(minutes=2)
    assert reading(await health.report(), "enforcer_silence").value == 360
    assert reading(await health.report(), "enforcer_silence").red


async def test_webhook_silence_matters_only_while_states_change_otherwise() -> None:
    clock = Clock()
    health = make_health(clock)
    health.record_webhook(accepted=True)
    clock.advance(minutes=40)
    assert reading(await health.report(), "webhook_silence").value is None
    health.record_change(by_webhook=False)
    assert reading(await health.report(), "webhook_silence").red
    health.record_webhook(accepted=False)
    assert reading(await health.report(), "webhook_silence").red, "anybody may send what is refused"


async def test_the_idle_lag_is_the_95th_percentile() -> None:
    health = make_health(Clock())
    for _ in range(96):
        health.record_idle_lag(1)
    for _ in range(4):
        health.record_idle_lag(500)
    assert reading(await health.report(), "idle_lag_p95").value == 1
    for _ in range(10):
        health.record_idle_lag(500)
    assert reading(await health.report(), "idle_lag_p95").red
