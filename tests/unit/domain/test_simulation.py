"""Recorded use in few bytes, and what another policy would have done with it."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandkeeper.domain.costs.activity_spans import (
    BYTES_MAX,
    MERGE_S,
    Span,
    list_instants,
    make_spans,
    merge_spans,
    parse_spans,
    render_spans,
)
from sandkeeper.domain.decisions.simulation import Replayed, Use, replay
from sandkeeper.domain.policy import IdleAction, Policy

MIDNIGHT = datetime(2026, 3, 1, tzinfo=UTC)
SPANS = st.builds(
    lambda start, length, stopped: Span(start, min(start + length, 86_400), stopped),
    st.integers(0, 86_399),
    st.integers(0, 4000),
    st.booleans(),
)


def use(start_s: float, end_s: float | None = None, *, stopped: bool = False) -> Use:
    end_s = start_s if end_s is None else end_s
    return MIDNIGHT + timedelta(seconds=start_s), MIDNIGHT + timedelta(seconds=end_s), stopped


def idle(seconds: float, **other: float) -> Policy:
    return Policy(idle_timeout_s=seconds, newborn_grace_s=0, woken_grace_s=0, **other)


@given(st.lists(SPANS, max_size=40), st.lists(SPANS, max_size=40))
def test_spans_that_are_stored_again_or_later_change_nothing(
    first: list[Span], second: list[Span]
) -> None:
    merged = merge_spans(first)
    assert merge_spans([*merged, *first]) == merged
    assert merge_spans(merged) == merged
    if len(render_spans(first)) < BYTES_MAX // 2:
        assert parse_spans(render_spans(first)) == merged
    together = parse_spans(render_spans([*parse_spans(render_spans(first)), *second]))
    assert all(one.start <= one.end for one in together)
    assert together == sorted(together)


def test_a_day_of_any_use_takes_a_bounded_number_of_bytes() -> None:
    chosen = random.Random(7)
    busy = [
        Span(at, at + chosen.randrange(20), chosen.random() < 0.1) for at in range(0, 86_000, 41)
    ]
    text = render_spans(busy)
    assert len(text) <= BYTES_MAX
    coarse = parse_spans(text)
    assert coarse[0].start == busy[0].start
    assert coarse[-1].end == busy[-1].end
    ordinary = [Span(at, at + 30) for at in range(0, 86_000, 1200)]
    assert parse_spans(render_spans(ordinary)) == ordinary
    assert len(render_spans(ordinary)) < BYTES_MAX


def test_use_over_midnight_in_another_zone_is_one_stretch_of_two_days() -> None:
    start = datetime.fromisoformat("2026-03-01T05:00:00+05:30")
    parts = make_spans(start, start + timedelta(hours=2), stopped=True)
    assert parts == [
        (date(2026, 2, 28), Span(84_600, 86_400)),
        (date(2026, 3, 1), Span(0, 5_400, stopped=True)),
    ]
    days = [(day, render_spans([span])) for day, span in parts]
    assert list_instants(days) == [
        (start.astimezone(UTC), (start + timedelta(hours=2)).astimezone(UTC), True)
    ]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (idle(60), Replayed(running_s=60 + 160 + 60, pauses=3, early=1, wakes=2)),
        (idle(180), Replayed(running_s=380 + 180, pauses=2, early=0, wakes=1)),
        (Policy(idle_timeout_s=None), Replayed(running_s=7200)),
        (
            Policy(idle_timeout_s=60, newborn_grace_s=90, woken_grace_s=0),
            Replayed(running_s=90 + 160 + 60, pauses=3, early=1, wakes=2),
        ),
    ],
)
def test_each_policy_pauses_where_it_would_have_and_counts_who_waited(
    policy: Policy, expected: Replayed
) -> None:
    uses = [use(0), use(100, 200), use(5000)]
    assert replay(uses, policy, until=MIDNIGHT + timedelta(seconds=7200)) == expected


def test_what_was_stopped_by_hand_is_stopped_in_the_replay() -> None:
    until = MIDNIGHT + timedelta(hours=2)
    by_hand = [use(0, 40), use(50, stopped=True), use(3000), use(3010, stopped=True)]
    assert replay(by_hand, idle(600), until=until) == Replayed(running_s=60, wakes=1)
    asleep = [use(0), use(900, stopped=True)]
    assert replay(asleep, idle(60), until=until) == Replayed(running_s=60, pauses=1)


def test_a_session_that_would_end_sleeps_in_the_replay() -> None:
    ends = Policy(
        idle_timeout_s=60,
        on_idle=IdleAction.KILL,
        newborn_grace_s=0,
        lifetime_s=30,
        woken_grace_s=0,
    )
    assert replay([use(0)], ends, until=MIDNIGHT + timedelta(hours=1)) == Replayed(60, 1, 0, 0)
    assert replay([], ends, until=MIDNIGHT) == Replayed()


def test_a_learned_timeout_is_learned_in_the_replay_too() -> None:
    uses = [use(100 * number) for number in range(40)]
    learned = Policy(
        idle_timeout_s=600, idle_min_s=60, idle_max_s=900, newborn_grace_s=0, woken_grace_s=0
    )
    found = replay(uses, learned, until=MIDNIGHT + timedelta(hours=3))
    assert found.running_s == 3900 + 125, "a quarter more than the gaps of 100 s"
    assert found.pauses == 1


def test_the_distance_that_joins_spans_is_below_every_timeout() -> None:
    assert MERGE_S < 30
