"""Costs: counting in any steps gives the same exact sums, and every split of them the whole."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandkeeper.domain.costs.metering import (
    Count,
    Meter,
    MeteredEvent,
    UsageAccount,
    UsageAmounts,
    advance,
    follow,
    make_account,
    split_days,
    sum_by_day,
)
from sandkeeper.domain.costs.prices import (
    PUBLISHED,
    Cost,
    Price,
    compute_cost,
    find_price,
    format_dollars,
    split_by_price,
)
from sandkeeper.domain.owner import Owner, OwnerKind
from sandkeeper.domain.policy import Launch, Policy
from sandkeeper.domain.states import State
from support.records import record

START = datetime(2026, 2, 28, 22, 30, tzinfo=UTC)
SANDBOX = record(
    State.RUNNING,
    vcpus=2,
    memory_mb=512,
    tenant="acme",
    launch=Launch(template="base"),
    policy=Policy(lifetime_s=3600),
)
LIVE = {State.RUNNING, State.PAUSED, State.KILLED, State.STARTING, State.UNKNOWN}


def changed(at: datetime, state: State, **data: Any) -> MeteredEvent:
    return MeteredEvent(
        "sandbox.state_changed", SANDBOX.id, SANDBOX.owner, at, {"new_state": state.value, **data}
    )


def explained(at: datetime) -> MeteredEvent:
    return MeteredEvent("sandbox.end_explained", SANDBOX.id, SANDBOX.owner, at, {})


def total(counts: list[Count]) -> UsageAmounts:
    return sum((one.usage for one in counts), UsageAmounts())


def run(events: list[MeteredEvent], *, peeks: list[datetime] = []) -> list[Count]:  # noqa: B006
    """Follow the events; before each, count to a moment that may turn out to be too late."""
    meter: Meter | None = None
    counts: list[Count] = []
    for number, event in enumerate(events):
        if meter is not None and number < len(peeks):
            meter, more = advance(meter, max(meter.since, peeks[number]))
            counts += more
        meter, more = follow(meter, event, SANDBOX)
        counts += more
    return counts


@st.composite
def stories(draw: st.DrawFn) -> tuple[list[MeteredEvent], list[datetime]]:
    at, events, peeks = START, [], []
    for _ in range(draw(st.integers(1, 12))):
        at += timedelta(milliseconds=draw(st.integers(0, 40 * 3_600_000)))
        state = draw(st.sampled_from(sorted(LIVE)))
        events.append(changed(at, state, idle_s=draw(st.integers(0, 90_000))))
        peeks.append(at + timedelta(milliseconds=draw(st.integers(-3_600_000, 3_600_000))))
    events.append(changed(at + timedelta(hours=1), State.KILLED))
    return events, peeks


@given(stories())
@settings(deadline=None)
def test_counting_in_other_steps_or_too_far_ends_in_the_same_sums(
    story: tuple[list[MeteredEvent], list[datetime]],
) -> None:
    events, peeks = story
    assert sum_by_day(run(events)) == sum_by_day(run(events, peeks=peeks))


@given(stories())
@settings(deadline=None)
def test_the_sum_over_every_split_is_the_whole_and_what_the_events_say(
    story: tuple[list[MeteredEvent], list[datetime]],
) -> None:
    events, peeks = story
    rows = sum_by_day(run(events, peeks=peeks))
    expected: dict[State, timedelta] = defaultdict(timedelta)
    state, since = State.STARTING, START
    for event in events:
        new = State(event.data["new_state"])
        if new is not State.UNKNOWN:
            expected[state] += event.at - since
            state, since = new, event.at
    whole = sum(rows.values(), UsageAmounts())
    assert whole.running_ms == expected[State.RUNNING] // timedelta(milliseconds=1)
    assert whole.paused_ms == expected[State.PAUSED] // timedelta(milliseconds=1)
    assert 0 <= whole.idle_ms <= whole.running_ms
    assert 0 <= whole.timeout_ms <= whole.paused_ms
    price = PUBLISHED[0]
    for key in (lambda row: row[0], lambda row: row[2].tenant, lambda row: row[1]):
        split: dict[object, Cost] = defaultdict(Cost)
        for row, usage in rows.items():
            split[key(row)] += compute_cost(usage, price, vcpus=2, memory_mb=512)
        assert sum(split.values(), Cost()) == compute_cost(whole, price, vcpus=2, memory_mb=512)


def test_a_day_ends_at_midnight_in_utc_whatever_zone_an_instant_is_in() -> None:
    zone = datetime.fromisoformat("2026-03-01T05:00:00+05:30")
    spans = list(split_days(zone - timedelta(hours=1), zone + timedelta(hours=1)))
    assert [(day, end - begin) for day, begin, end in spans] == [
        (date(2026, 2, 28), timedelta(minutes=90)),
        (date(2026, 3, 1), timedelta(minutes=30)),
    ]
    assert list(split_days(START, START)) == []


def test_an_end_that_is_explained_later_takes_back_what_was_counted_too_much() -> None:
    hour = timedelta(hours=1)
    found = [changed(START, State.RUNNING), changed(START + 5 * hour, State.KILLED)]
    assert total(run(found)).running_ms == 5 * 3_600_000
    assert total(run([*found, explained(START + 2 * hour)])).running_ms == 2 * 3_600_000
    assert total(run([*found, explained(START - hour)])).running_ms == 0
    assert total(run([*found, explained(START + 9 * hour)])).running_ms == 5 * 3_600_000


def test_asleep_within_the_lifetime_of_the_run_saves_against_a_provider_timeout() -> None:
    minute = timedelta(minutes=1)
    counts = run(
        [
            changed(START, State.RUNNING),
            changed(START + 10 * minute, State.PAUSED, idle_s=180),
            changed(START + 200 * minute, State.RUNNING),
            changed(START + 201 * minute, State.PAUSED, idle_s=60, unused=True),
            changed(START + 211 * minute, State.KILLED),
        ]
    )
    usage = total(counts)
    assert (usage.running_ms, usage.paused_ms) == (11 * 60_000, 200 * 60_000)
    assert usage.timeout_ms == (50 + 10) * 60_000, "the first run would have ended after an hour"
    assert (usage.idle_ms, usage.unused_ms) == (3 * 60_000, 60_000)


def test_a_pool_pays_until_a_session_claims_its_member() -> None:
    claimed = SANDBOX.evolve(owner=Owner(OwnerKind.SESSION, "ada"), tenant="acme")
    pool = Owner(OwnerKind.POOL, "base/1")
    minute = timedelta(minutes=1)
    meter: Meter | None = None
    counts: list[Count] = []
    for event in (
        MeteredEvent(
            "sandbox.state_changed", SANDBOX.id, pool, START, {"new_state": State.RUNNING.value}
        ),
        MeteredEvent("sandbox.owner_changed", SANDBOX.id, claimed.owner, START + 7 * minute, {}),
        MeteredEvent(
            "sandbox.state_changed",
            SANDBOX.id,
            claimed.owner,
            START + 9 * minute,
            {"new_state": State.PAUSED.value, "idle_s": 3600},
        ),
    ):
        meter, more = follow(meter, event, claimed)
        counts += more
    by_owner: dict[tuple[Owner, str], UsageAmounts] = defaultdict(UsageAmounts)
    for one in counts:
        by_owner[one.account.owner, one.account.tenant] += one.usage
    assert by_owner[pool, "default"] == UsageAmounts(running_ms=7 * 60_000)
    assert by_owner[claimed.owner, "acme"] == UsageAmounts(
        running_ms=2 * 60_000, idle_ms=2 * 60_000
    )


def test_e2bs_published_price_gives_the_published_example() -> None:
    hour = UsageAmounts(running_ms=3_600_000)
    cost = compute_cost(hour, PUBLISHED[0], vcpus=2, memory_mb=512)
    assert format_dollars(cost.total) == "0.108900000"
    assert compute_cost(hour, PUBLISHED[0], vcpus=0, memory_mb=0) == cost, "the default size"
    asleep = compute_cost(UsageAmounts(paused_ms=3_600_000), PUBLISHED[0], vcpus=2, memory_mb=512)
    assert (asleep.total, asleep.saved_never_paused) == (0, cost.total)


def test_the_local_engine_costs_nothing_until_it_has_a_price() -> None:
    day = date(2026, 3, 1)
    free = find_price(PUBLISHED, provider="engine", region="default", day=day)
    usage = UsageAmounts(running_ms=3_600_000)
    assert compute_cost(usage, free, vcpus=2, memory_mb=512) == Cost()
    own = Price("engine", date(2026, 1, 1), vcpu_s=Decimal("0.1"))
    assert find_price((*PUBLISHED, own), provider="engine", region="", day=day) == own


@pytest.mark.parametrize(
    ("region", "day", "vcpu_s"),
    [("eu", date(2026, 1, 31), "1"), ("eu", date(2026, 2, 1), "2"), ("us", date(2026, 2, 1), "3")],
)
def test_the_most_exact_price_counts_from_its_day_on(region: str, day: date, vcpu_s: str) -> None:
    prices = (
        *PUBLISHED,
        Price("e2b", date(2026, 1, 1), vcpu_s=Decimal(3)),
        Price("e2b", date(2026, 1, 1), vcpu_s=Decimal(1), region="eu"),
        Price("e2b", date(2026, 2, 1), vcpu_s=Decimal(2), region="eu"),
        Price("*", date(2026, 1, 15), vcpu_s=Decimal(9), region="eu"),
    )
    assert find_price(prices, provider="e2b", region=region, day=day).vcpu_s == Decimal(vcpu_s)
    spans = list(split_by_price(prices, date(2026, 1, 10), date(2026, 2, 28)))
    assert [begin.isoformat() for begin, _ in spans] == ["2026-01-10", "2026-01-15", "2026-02-01"]
    assert spans[-1][1] == date(2026, 2, 28)


def test_an_amount_is_rounded_only_where_it_is_shown() -> None:
    assert format_dollars(Fraction(-1, 3)) == "-0.333333333"
    assert format_dollars(Fraction(0)) == "0.000000000"
    assert make_account(SANDBOX) == UsageAccount(SANDBOX.owner, "acme", "base", "e2b", "", 2, 512)
