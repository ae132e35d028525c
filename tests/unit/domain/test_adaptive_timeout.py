"""An idle timeout learned from a sandbox's own gaps: bounded, explained, and never a surprise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sandkeeper.domain.decisions.adaptive_timeout import (
    GAPS_MAX,
    GAPS_TEXT_MAX,
    add_gap,
    compute_idle_timeout_s,
    explain_idle_timeout,
    format_duration,
    read_gaps,
)
from sandkeeper.domain.decisions.idle import Keep, Pause, decide_idle
from sandkeeper.domain.owner import SCHEDULER_ACTOR
from sandkeeper.domain.policy import IdleAction, Policy
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import State
from sandkeeper.domain.texts.explain import explain
from sandkeeper.domain.texts.presentation import find_truth, word_truth
from support.records import at, record

ADAPTIVE = Policy(idle_min_s=60, idle_max_s=1800, lifetime_s=None)


def keep(gaps_s: list[float]) -> str:
    text = ""
    for gap_s in gaps_s:
        text = add_gap(text, gap_s)
    return text


def running(gaps_s: list[float], policy: Policy = ADAPTIVE, **fields: Any) -> Sandbox:
    return record(expires_at=None, policy=policy, gaps=keep(gaps_s)).evolve(**fields)


def test_without_a_word_in_its_policy_the_promised_three_minutes_stand() -> None:
    fixed = running([600.0] * 40, Policy())
    assert compute_idle_timeout_s(fixed) == 180
    assert explain_idle_timeout(fixed).why == "3 min, fixed by its policy"
    endless = explain_idle_timeout(running([], replace(ADAPTIVE, idle_timeout_s=None)))
    assert endless.seconds is None


def test_too_few_gaps_teach_nothing() -> None:
    said = explain_idle_timeout(running([600.0] * 7))
    assert said.seconds == 180
    assert said.why == "3 min by its policy: 7 of the 8 gaps that learning needs are known"


def test_a_user_who_thinks_for_minutes_is_waited_for() -> None:
    said = explain_idle_timeout(running([30.0] * 30 + [200.0] * 10 + [400.0]))
    assert said.seconds == 250
    assert said.why == "learned 4 min 10 s: 97 % of the 41 gaps were shorter"


def test_a_user_who_comes_and_leaves_costs_no_tail() -> None:
    """A gap of hours means that the user had left: no timeout within the bounds waits for it."""
    said = explain_idle_timeout(running([7200.0] * 12))
    assert said.seconds == 60
    assert said.why == "learned 1 min: each of the last 12 gaps was over 30 min"
    mixed = explain_idle_timeout(running([7200.0] * 12 + [100.0] * 4))
    assert mixed.seconds == 125
    assert mixed.why == ("learned 2 min 5 s: 100 % of the 4 gaps were shorter, 12 were over 30 min")


def test_typing_is_no_gap_and_old_habits_are_forgotten() -> None:
    assert keep([1.0, 4.9]) == ""
    assert read_gaps(keep([5.0, 60.7])) == (60, 5)
    changed = running([1000.0] * 100 + [20.0] * 100)
    assert compute_idle_timeout_s(changed) == 60


@given(st.lists(st.floats(min_value=0, max_value=10**8), max_size=200))
def test_what_is_kept_is_bounded_and_what_is_learned_stays_within_its_bounds(
    gaps_s: list[float],
) -> None:
    sandbox = running(gaps_s)
    assert len(sandbox.activity.gaps) <= GAPS_TEXT_MAX
    read = read_gaps(sandbox.activity.gaps)
    wanted = [int(gap) for gap in reversed(gaps_s) if gap >= 5]
    assert list(read) == wanted[: len(read)]
    assert len(read) == len(wanted) or len(read) >= GAPS_MAX // 2
    learned_s = compute_idle_timeout_s(sandbox)
    assert learned_s is not None
    assert 60 <= learned_s <= 1800
    assert explain_idle_timeout(sandbox).why


def test_a_timeout_may_grow_beyond_the_longest_gap_that_was_survived() -> None:
    """A session that ends when idle sees no gap longer than its timeout."""
    policy = replace(ADAPTIVE, on_idle=IdleAction.KILL)
    gaps: list[float] = [170.0] * 8
    for _ in range(10):
        timeout_s = compute_idle_timeout_s(running(gaps, policy))
        assert timeout_s is not None
        gaps += [timeout_s - 1] * 4
    assert (compute_idle_timeout_s(running(gaps, policy)) or 0) > 600


def test_a_sandbox_sleeps_when_what_was_learned_is_over() -> None:
    sandbox = running([200.0] * 20, last_active_at=at(1000))
    assert decide_idle(sandbox, now=at(1001)) == Keep(at(1060), "it is in use")
    assert decide_idle(sandbox, now=at(1060)) == Keep(at(1250), "it is in use")
    decision = decide_idle(sandbox, now=at(1250))
    assert isinstance(decision, Pause)
    assert decision.reason == "idle for 250 s, threshold 250 s"
    asleep = sandbox.evolve(state=State.PAUSED, run_started_at=None, actor=SCHEDULER_ACTOR)
    assert "after 250 seconds of inactivity" in word_truth(find_truth(asleep, now=at(1300))).caption


def test_the_explanation_says_how_it_was_learned_and_what_pauses_were_worth() -> None:
    sandbox = running(
        [200.0] * 20,
        last_active_at=at(1000),
        idle_pauses=4,
        early_pauses=1,
        idle_tail_ms=720_000,
    )
    said = explain(sandbox, now=at(1001))
    assert (said.idle_timeout_s, said.idle_timeout_why) == (
        250,
        "learned 4 min 10 s: 100 % of the 20 gaps were shorter",
    )
    assert (said.next_rule, said.next_at) == ("pause after 250 seconds without activity", at(1250))
    assert (said.idle_pauses, said.early_pauses, said.idle_tail_s) == (4, 1, 720)


def test_a_warmed_up_sandbox_sleeps_again_after_its_grace_unless_it_is_used() -> None:
    policy = Policy(newborn_grace_s=0, woken_grace_s=0, warm_grace_s=40, on_idle=IdleAction.KILL)
    warm = running([], policy, warmed_at=at(99), run_started_at=at(100), last_active_at=at(10))
    assert decide_idle(warm, now=at(139)) == Keep(at(140), "it is in use")
    assert explain(warm, now=at(139)).next_rule.startswith("pause again: it was warmed up")
    decision = decide_idle(warm, now=at(140))
    assert isinstance(decision, Pause), "a warm-up never kills a sandbox"
    assert decision.reason == "warmed up and not used for 40 s"
    used = warm.evolve(last_active_at=at(120))
    assert decide_idle(used, now=at(140)) == Keep(at(300), "it is in use")


def test_times_are_said_at_a_glance() -> None:
    assert [format_duration(one) for one in (0.5, 45, 60, 250, 3600, 5400)] == [
        "0.5 s",
        "45 s",
        "1 min",
        "4 min 10 s",
        "1 h",
        "1 h 30 min",
    ]
