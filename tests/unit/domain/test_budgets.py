"""Budgets: what is due at which share, forecasts at the ends of months, what may be paused."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction

import pytest

from sandkeeper.domain.costs.budgets import (
    Budget,
    decide_budget,
    decide_budget_pause,
    find_month,
)
from sandkeeper.domain.policy import IdleAction, Policy
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import State
from support.records import T0, at, record

TEN = Budget("acme", Decimal(10))
NOON = datetime(2026, 2, 15, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("spent", "noted", "due"),
    [
        ("4.99", (), ()),
        ("5", (), (50,)),
        ("8", (50,), (80,)),
        ("10", (), (50, 80, 100)),
        ("25", (50, 80, 100), ()),
        ("5", (80,), (50,)),
    ],
)
def test_each_share_that_is_reached_is_due_until_it_is_noted(
    spent: str, noted: tuple[int, ...], due: tuple[int, ...]
) -> None:
    reading = decide_budget(TEN, spent=Fraction(spent), noted=noted, now=NOON)
    assert reading.due == due
    assert reading.is_spent is (Fraction(spent) >= 10)


def test_a_month_is_one_in_utc_whatever_the_zone_of_the_clock() -> None:
    west = timezone(timedelta(hours=-8))
    assert find_month(datetime(2026, 12, 31, 17, tzinfo=west)) == (
        date(2027, 1, 1),
        date(2027, 2, 1),
    )
    assert find_month(datetime(2028, 2, 29, 23, 59, tzinfo=UTC)) == (
        date(2028, 2, 1),
        date(2028, 3, 1),
    )


def test_the_forecast_follows_the_pace_of_the_month_and_names_the_day() -> None:
    halfway = decide_budget(TEN, spent=Fraction(7), noted=(), now=datetime(2026, 2, 15, tzinfo=UTC))
    assert halfway.forecast == 14
    assert halfway.spent_on == date(2026, 2, 21), "ten dollars after 20 days of half a dollar"
    slow = decide_budget(TEN, spent=Fraction(2), noted=(), now=datetime(2026, 2, 15, tzinfo=UTC))
    assert (slow.forecast, slow.spent_on) == (4, None)
    first_day = decide_budget(
        TEN, spent=Fraction(2), noted=(), now=datetime(2026, 2, 1, 23, tzinfo=UTC)
    )
    assert (first_day.forecast, first_day.spent_on) == (None, None)


def test_nothing_that_is_in_use_or_ends_when_idle_is_paused_for_money() -> None:
    policy = Policy(idle_timeout_s=3600, newborn_grace_s=0, woken_grace_s=0)
    idle = record(State.RUNNING, policy=policy)
    now = at(120)

    def is_paused(sandbox: Sandbox) -> bool:
        return decide_budget_pause(sandbox, now=now) is not None

    assert is_paused(idle)
    assert is_paused(idle.evolve(policy=replace(policy, idle_timeout_s=None)))
    adaptive = replace(policy, idle_min_s=600, idle_max_s=900)
    assert is_paused(idle.evolve(policy=adaptive))
    assert not is_paused(idle.evolve(last_active_at=at(90)))
    assert not is_paused(idle.evolve(leased_until=at(600)))
    assert not is_paused(idle.evolve(policy=replace(policy, on_idle=IdleAction.KILL)))
    assert not is_paused(record(State.PAUSED, policy=policy))
    assert not is_paused(idle.evolve(policy=replace(policy, newborn_grace_s=600)))
    paused = decide_budget_pause(idle, now=now)
    assert paused is not None
    assert paused.reason.startswith("the budget of the month is spent; idle for 120 s")
    assert paused.due_at == T0 + timedelta(seconds=60)
