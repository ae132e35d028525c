"""What one observation makes of a record."""

from __future__ import annotations

from typing import Any

import pytest

from sandkeeper.domain.events import InstanceAdopted, StateChanged
from sandkeeper.domain.observe.observation import Observation, ObservedStatus, Source
from sandkeeper.domain.observe.transitions import StateChange, Unchanged, UnchangedReason, absorb
from sandkeeper.domain.owner import SCHEDULER_ACTOR
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import KilledReason, State
from support.records import T0, at, record


def seen(
    what: ObservedStatus, seconds: float, source: Source = Source.GET, **fields: Any
) -> Observation:
    return Observation("i", what, at(seconds), source, **fields)


def after(sandbox: Sandbox, *observations: Observation) -> Sandbox:
    for observation in observations:
        outcome = absorb(sandbox, observation)
        if isinstance(outcome, StateChange):
            sandbox = outcome.sandbox
    return sandbox


def steps(outcome: StateChange | Unchanged) -> list[tuple[str, str]]:
    assert isinstance(outcome, StateChange)
    return [
        (event.old_state.value, event.new_state.value)
        for event in outcome.events
        if isinstance(event, StateChanged)
    ]


@pytest.mark.parametrize(
    ("state", "what", "moves"),
    [
        (State.STARTING, ObservedStatus.RUNNING, ["RUNNING"]),
        (State.STARTING, ObservedStatus.PAUSED, ["RUNNING", "PAUSED"]),
        (State.STARTING, ObservedStatus.GONE, ["KILLED"]),
        (State.RUNNING, ObservedStatus.PAUSED, ["PAUSED"]),
        (State.RUNNING, ObservedStatus.KILLED, ["KILLED"]),
        (State.RUNNING, ObservedStatus.EXPIRED, ["EXPIRED"]),
        (State.RUNNING, ObservedStatus.TERMINATED, ["TERMINATED"]),
        (State.RUNNING, ObservedStatus.UNREACHABLE, ["UNKNOWN"]),
        (State.PAUSED, ObservedStatus.RUNNING, ["RUNNING"]),
        (State.PAUSED, ObservedStatus.GONE, ["KILLED"]),
        (State.PAUSED, ObservedStatus.UNREACHABLE, ["UNKNOWN"]),
        (State.UNKNOWN, ObservedStatus.RUNNING, ["RUNNING"]),
        (State.UNKNOWN, ObservedStatus.PAUSED, ["RUNNING", "PAUSED"]),
        (State.UNKNOWN, ObservedStatus.GONE, ["KILLED"]),
    ],
)
def test_what_is_seen_leads_there_by_moves_of_the_table(
    state: State, what: ObservedStatus, moves: list[str]
) -> None:
    outcome = absorb(record(state), seen(what, 5))
    assert steps(outcome) == list(zip([state.value, *moves], moves, strict=False))


def test_what_is_known_already_is_only_confirmed() -> None:
    assert absorb(record(), seen(ObservedStatus.RUNNING, 5)) == Unchanged(UnchangedReason.CONFIRMED)
    ended = record(end_at=at(60), end_as_of=at(1))
    assert absorb(ended, seen(ObservedStatus.RUNNING, 5, end_at=at(60))) == Unchanged(
        UnchangedReason.CONFIRMED
    )
    assert absorb(record(State.KILLED), seen(ObservedStatus.GONE, 5)) == Unchanged(
        UnchangedReason.CONFIRMED
    )


def test_an_event_older_than_a_look_moves_nothing() -> None:
    looked = after(record(State.PAUSED), seen(ObservedStatus.RUNNING, 10))
    late = seen(ObservedStatus.PAUSED, 4, Source.WEBHOOK, run_id="r", event_id="e")
    assert after(looked, late).state is State.RUNNING


def test_an_older_event_that_agrees_tells_the_true_beginning() -> None:
    looked = after(record(State.PAUSED), seen(ObservedStatus.RUNNING, 10))
    late = seen(ObservedStatus.RUNNING, 4, Source.WEBHOOK, run_id="r2", event_id="e")
    told = after(looked, late)
    assert (told.state_since, told.run.run_started_at, told.run.run_id) == (at(4), at(4), "r2")


def test_another_instances_news_never_change_the_record() -> None:
    foreign = Observation("other", ObservedStatus.KILLED, at(5), Source.WEBHOOK, sandbox_id="sb")
    assert absorb(record(), foreign) == Unchanged(UnchangedReason.FOREIGN)


def test_an_instance_whose_creation_was_never_answered_is_adopted_by_its_metadata() -> None:
    waiting = record(State.STARTING, instance_id=None, generation=2)
    old = Observation(
        "i", ObservedStatus.RUNNING, at(5), Source.LIST, sandbox_id="sb", generation=1
    )
    assert absorb(waiting, old) == Unchanged(UnchangedReason.FOREIGN)
    ours = Observation(
        "i", ObservedStatus.RUNNING, at(5), Source.LIST, sandbox_id="sb", generation=2
    )
    outcome = absorb(waiting, ours)
    assert isinstance(outcome, StateChange)
    assert isinstance(outcome.events[0], InstanceAdopted)
    assert (outcome.sandbox.state, outcome.sandbox.instance_id) == (State.RUNNING, "i")


def test_the_echo_of_our_own_pause_leaves_its_reason() -> None:
    reply = seen(ObservedStatus.PAUSED, 5, Source.REPLY, actor=SCHEDULER_ACTOR, reason="idle")
    echo = seen(ObservedStatus.PAUSED, 4.9, Source.WEBHOOK, event_id="e", run_id="r")
    for sandbox in (after(record(), reply, echo), after(record(), echo, reply)):
        assert (sandbox.state, sandbox.actor, sandbox.reason) == (
            State.PAUSED,
            SCHEDULER_ACTOR,
            "idle",
        )
        assert sandbox.idle_stats.paused_by_scheduler_at == at(5)
        assert sandbox.state_since == at(4.9)


def test_the_echo_of_our_own_wake_leaves_it_ready_though_clocks_differ() -> None:
    woken = after(
        record(State.PAUSED), seen(ObservedStatus.RUNNING, 5, Source.REPLY, actor="user:1")
    )
    ready = woken.evolve(ready=True)
    echo = seen(ObservedStatus.RUNNING, 6.5, Source.WEBHOOK, event_id="e", run_id="r2")
    told = after(ready, echo)
    assert (told.run.ready, told.actor, told.run.run_id) == (True, "user:1", "r2")


def test_a_pause_ends_the_run_and_a_resume_begins_one_with_its_whole_lifetime() -> None:
    paused = after(
        record(ready=True, end_at=at(3700), end_as_of=T0), seen(ObservedStatus.PAUSED, 100)
    )
    assert (paused.run.ready, paused.run.run_started_at) == (False, None)
    assert (paused.run.expires_at, paused.run.end_at, paused.next_check_at) == (None, None, None)
    resumed = after(paused, seen(ObservedStatus.RUNNING, 200))
    assert (resumed.run.run_started_at, resumed.run.expires_at) == (at(200), at(3800))
    assert resumed.next_check_at == at(380)


def test_a_run_that_was_only_out_of_sight_goes_on() -> None:
    lost = after(record(ready=True), seen(ObservedStatus.UNREACHABLE, 100))
    assert (lost.state, lost.sightings.verification_failures) == (State.UNKNOWN, 1)
    assert lost.next_check_at == at(130)
    again = after(lost, seen(ObservedStatus.UNREACHABLE, 140))
    assert (again.sightings.verification_failures, again.next_check_at) == (2, at(170))
    back = after(again, seen(ObservedStatus.RUNNING, 200))
    assert (back.run.ready, back.run.run_started_at, back.run.expires_at) == (True, T0, at(3600))
    assert back.sightings.verification_failures == 0


def test_a_wake_out_of_doubt_begins_a_run_with_its_grace() -> None:
    lost = after(record(), seen(ObservedStatus.UNREACHABLE, 100))
    woken = after(lost, seen(ObservedStatus.RUNNING, 4000, Source.REPLY, actor="user:1"))
    assert (woken.run.run_started_at, woken.run.expires_at) == (at(4000), at(7600))


def test_unreachable_never_ends_or_starts_anything() -> None:
    for state in (State.KILLED, State.EXPIRED, State.TERMINATED, State.STARTING):
        assert after(record(state), seen(ObservedStatus.UNREACHABLE, 5)).state is state


def test_the_providers_event_refines_why_a_missing_instance_is_gone() -> None:
    missed = after(record(), seen(ObservedStatus.GONE, 10))
    assert missed.last_end.killed_reason is KilledReason.NOT_FOUND
    told = after(missed, seen(ObservedStatus.EXPIRED, 8, Source.CATCH_UP, event_id="e"))
    assert (told.state, told.last_end.killed_reason) == (State.EXPIRED, KilledReason.EXPIRED)
    assert (told.last_end.killed_at, told.state_since) == (at(8), at(8))


def test_an_end_that_is_known_is_not_explained_again() -> None:
    killed = after(record(), seen(ObservedStatus.KILLED, 10, Source.REPLY, actor="user:1"))
    told = after(killed, seen(ObservedStatus.EXPIRED, 8, Source.CATCH_UP, event_id="e"))
    assert (told.state, told.last_end.killed_reason) == (State.KILLED, KilledReason.MANUAL)


def test_our_own_end_is_final_and_a_missed_one_is_not() -> None:
    killed = after(record(), seen(ObservedStatus.KILLED, 10, Source.REPLY, actor="user:1"))
    assert after(killed, seen(ObservedStatus.RUNNING, 11, Source.LIST)).state is State.KILLED
    late = seen(ObservedStatus.PAUSED, 12, Source.WEBHOOK, event_id="e")
    assert after(killed, late).state is State.KILLED
    missed = after(record(), seen(ObservedStatus.GONE, 10))
    assert after(missed, seen(ObservedStatus.RUNNING, 9, Source.LIST)).state is State.KILLED
    assert after(missed, seen(ObservedStatus.RUNNING, 11, Source.LIST)).state is State.RUNNING


def test_the_newest_word_about_the_providers_end_counts() -> None:
    first = seen(ObservedStatus.UPDATED, 5, Source.WEBHOOK, event_id="a", end_at=at(500))
    second = seen(ObservedStatus.UPDATED, 6, Source.WEBHOOK, event_id="b", end_at=at(100))
    assert after(record(), first, second).run.end_at == at(100)
    assert after(record(), second, first).run.end_at == at(100)
