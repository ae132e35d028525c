"""When a sandbox is due, for what, and what keeps it awake."""

from __future__ import annotations

from typing import Any

from sandkeeper.domain.activity import Activity, ActivityClass, fold
from sandkeeper.domain.decisions.idle import (
    Extend,
    Keep,
    Kill,
    Pause,
    Verify,
    decide_idle,
    find_next_check_at,
)
from sandkeeper.domain.policy import IdleAction, Policy
from sandkeeper.domain.sandbox import Claim, ClaimKind, Sandbox
from sandkeeper.domain.states import State
from sandkeeper.domain.texts.explain import explain
from support.records import at, record


def running(policy: Policy | None = None, **fields: Any) -> Sandbox:
    return record(instance_id=None, policy=policy or Policy(), **fields)


def test_a_sandbox_is_paused_exactly_from_its_threshold_on() -> None:
    active = running(last_active_at=at(100))
    assert decide_idle(active, now=at(279.9)) == Keep(at(280), "it is in use")
    decision = decide_idle(active, now=at(281))
    assert isinstance(decision, Pause)
    assert (decision.due_at, decision.idle_s) == (at(280), 181)


def test_newborns_and_the_just_woken_have_their_grace() -> None:
    policy = Policy(idle_timeout_s=5, newborn_grace_s=60, woken_grace_s=30)
    assert isinstance(decide_idle(running(policy), now=at(59)), Keep)
    held_back = decide_idle(running(policy), now=at(60))
    assert isinstance(held_back, Pause)
    assert held_back.reason == "idle for 60 s, threshold 5 s once its grace or lease was over"
    woken = running(policy, run_started_at=at(1000), last_active_at=at(10))
    assert isinstance(decide_idle(woken, now=at(1029)), Keep)
    assert isinstance(decide_idle(woken, now=at(1030)), Pause)


def test_an_idle_session_is_ended_where_its_policy_says_so() -> None:
    decision = decide_idle(running(Policy(on_idle=IdleAction.KILL)), now=at(200))
    assert isinstance(decision, Kill)
    assert decision.state is State.TERMINATED


def test_a_sandbox_in_use_is_extended_before_its_end_up_to_the_cap() -> None:
    used = running(last_active_at=at(3500))
    assert decide_idle(used, now=at(3550)) == Extend(
        at(7200), "it is in use near the end of its lifetime"
    )
    near_cap = running(Policy(lifetime_max_s=5000), last_active_at=at(3500))
    decision = decide_idle(near_cap, now=at(3550))
    assert isinstance(decision, Extend)
    assert decision.to == at(5000)
    at_cap = near_cap.evolve(expires_at=at(5000), last_active_at=at(4990))
    assert decide_idle(at_cap, now=at(4995)) == Keep(at(5000), "it is in use")
    ended = decide_idle(at_cap, now=at(5000))
    assert isinstance(ended, Kill)
    assert ended.state is State.EXPIRED


def test_without_extension_the_lifetime_is_absolute() -> None:
    used = running(Policy(extend_while_active=False), last_active_at=at(3599))
    decision = decide_idle(used, now=at(3600))
    assert isinstance(decision, Kill)
    assert decision.state is State.EXPIRED


def test_no_limits_means_nothing_is_ever_due() -> None:
    free = running(Policy(idle_timeout_s=None, lifetime_s=None), expires_at=None)
    assert find_next_check_at(free) is None
    assert isinstance(decide_idle(free, now=at(10**8)), Keep)


def test_a_paused_sandbox_expires_only_where_its_policy_says_so() -> None:
    asleep = running(state=State.PAUSED, expires_at=None, run_started_at=None)
    assert find_next_check_at(asleep) is None
    kept = asleep.evolve(policy=Policy(paused_lifetime_s=1000))
    assert find_next_check_at(kept) == at(1000)
    assert isinstance(decide_idle(kept, now=at(1000)), Kill)


def test_doubt_is_verified_again_and_again_but_not_at_once() -> None:
    unknown = running(state=State.UNKNOWN, unreachable_at=at(50))
    assert isinstance(decide_idle(unknown, now=at(79)), Keep)
    assert isinstance(decide_idle(unknown, now=at(80)), Verify)
    starting = running(state=State.STARTING, expires_at=None, run_started_at=None)
    assert find_next_check_at(starting) == at(120)


def test_watching_counts_but_never_keeps_awake() -> None:
    touch = fold(
        "sb",
        [
            Activity(at(50), ActivityClass.PASSIVE, "poll"),
            Activity(at(10), ActivityClass.INTENT, "edit"),
            Activity(at(90), ActivityClass.PASSIVE, "dashboard"),
            Activity(at(30), ActivityClass.WORK, "exec"),
            Activity(at(20), ActivityClass.INTENT, "edit"),
        ],
    )
    assert touch.active == Activity(at(30), ActivityClass.WORK, "exec")
    assert touch.passive == Activity(at(90), ActivityClass.PASSIVE, "dashboard", 2)
    more = fold("sb", [Activity(at(30), ActivityClass.INTENT, "tab")], before=touch)
    assert more.active == Activity(at(30), ActivityClass.INTENT, "tab")
    assert more.passive == touch.passive


def test_explain_names_the_last_act_what_was_ignored_and_the_next_rule() -> None:
    told = explain(
        running(
            last_active_at=at(100),
            last_active_class=ActivityClass.INTENT,
            last_active_source="tab",
            passive_count=7,
            passive_at=at(150),
            passive_source="status",
            reason="created",
        ),
        now=at(160),
    )
    assert (told.state, told.why) == (State.RUNNING, "created")
    assert (told.last_active_class, told.last_active_source) == ("intent", "tab")
    assert (told.ignored_passive_count, told.ignored_passive_source) == (7, "status")
    assert (told.next_rule, told.next_at) == ("pause after 3 minutes without activity", at(280))
    assert told.prevented_by == ("any activity of class intent or work",)


def test_explain_begins_with_the_words_of_the_status_and_knows_the_same_activity() -> None:
    crashed = explain(running(app_exit_code=7), now=at(10))
    assert crashed.label == "App crashed (exit 7)"
    assert crashed.caption == "The sandbox is running, but its app ended with exit code 7."
    assert (crashed.last_active_at, crashed.last_active_class) == (at(0), None)
    silent = explain(running(), now=at(10), provider_down_since=at(5))
    assert silent.label == "Provider unreachable"


def test_explain_speaks_for_every_state_and_claim() -> None:
    overdue = explain(running(), now=at(200))
    assert overdue.next_rule == "pause: idle for 200 s, threshold 180 s"
    asleep = explain(running(state=State.PAUSED), now=at(10))
    assert asleep.next_rule == "nothing, until it is woken"
    unknown = explain(running(state=State.UNKNOWN), now=at(10))
    assert (unknown.next_rule, unknown.next_at) == ("verify at the provider", at(30))
    waking = explain(
        running(state=State.PAUSED, claim=Claim(ClaimKind.WAKE, "w", at(60))), now=at(10)
    )
    assert waking.next_rule == "a wake by w is under way"
    long = Policy(idle_timeout_s=None)
    assert explain(running(long), now=at(10)).next_rule == "extend its lifetime while it is in use"
