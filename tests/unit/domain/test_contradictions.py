"""The provider's answer wins over its events: whatever they say, and whatever date they carry."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandkeeper.domain.clock import AHEAD_MAX
from sandkeeper.domain.events import StateChanged
from sandkeeper.domain.observe.observation import Observation, ObservedStatus, Source
from sandkeeper.domain.observe.transitions import StateChange, absorb
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import KilledReason, State
from support.records import T0, at, record

FAR = datetime(2999, 1, 1, tzinfo=UTC)
EDGES = (
    ObservedStatus.CREATED,
    ObservedStatus.RUNNING,
    ObservedStatus.PAUSED,
    ObservedStatus.KILLED,
    ObservedStatus.EXPIRED,
    ObservedStatus.TERMINATED,
)
ENDS = (ObservedStatus.KILLED, ObservedStatus.EXPIRED, ObservedStatus.TERMINATED)
STATES = {ObservedStatus.RUNNING: State.RUNNING, ObservedStatus.PAUSED: State.PAUSED}


def event(
    what: ObservedStatus, arrived: float, told: datetime | None = None, **fields: Any
) -> Observation:
    """An event that arrived then, and claims to be of another time."""
    said = at(arrived) if told is None else told
    source = fields.pop("source", Source.WEBHOOK)
    return Observation(
        "i", what, said, source, received_at=at(arrived), event_id=f"e{arrived}", **fields
    )


def look(
    what: ObservedStatus, asked: float, source: Source = Source.GET, **fields: Any
) -> Observation:
    return Observation("i", what, at(asked), source, **fields)


def after(sandbox: Sandbox, *observations: Observation, now: datetime | None = None) -> Sandbox:
    for observation in observations:
        outcome = absorb(sandbox, observation, now=now)
        if isinstance(outcome, StateChange):
            sandbox = outcome.sandbox
    return sandbox


def told_times(sandbox: Sandbox) -> list[datetime]:
    run, sightings = sandbox.run, sandbox.sightings
    times = (run.run_started_at, run.end_as_of)
    times += (sightings.observed_at, sightings.state_as_of, sightings.last_event_at)
    return [at for at in (sandbox.state_since, *times) if at is not None]


@st.composite
def deliveries(draw: st.DrawFn) -> list[Observation]:
    """Events in the order of their arrival, with any date."""
    arrived = 0.0
    found: list[Observation] = []
    for number in range(draw(st.integers(0, 8))):
        arrived += draw(st.sampled_from([0.0, 0.001, 1.0, 90.0]))
        offset_s = draw(st.integers(-(10**9), 3 * 10**10) | st.sampled_from([-30, 0, 30]))
        said = at(arrived + offset_s)
        found.append(
            Observation(
                "i",
                draw(st.sampled_from(ObservedStatus)),
                said,
                draw(st.sampled_from([Source.WEBHOOK, Source.CATCH_UP])),
                received_at=at(arrived),
                event_id=f"e{number}",
                end_at=draw(st.none() | st.just(FAR)),
            )
        )
    return found


@settings(max_examples=400, deadline=None)
@given(
    deliveries(),
    st.sampled_from([State.STARTING, State.RUNNING, State.PAUSED, State.UNKNOWN]),
    st.sampled_from([ObservedStatus.RUNNING, ObservedStatus.PAUSED, ObservedStatus.GONE]),
    st.sampled_from([Source.GET, Source.LIST]),
)
def test_a_fresh_answer_wins_over_every_earlier_event(
    told: list[Observation], begin: State, answer: ObservedStatus, source: Source
) -> None:
    asked = (told[-1].arrived_at - T0).total_seconds() + 0.01 if told else 1.0
    sandbox = after(record(begin), *told, look(answer, asked, source))
    if answer is ObservedStatus.GONE:
        assert sandbox.state.is_ended
    else:
        assert sandbox.state is STATES[answer]
        assert (sandbox.last_end.killed_at, sandbox.last_end.killed_reason) == (None, None)
    assert max(told_times(sandbox)) <= at(asked) + AHEAD_MAX


@settings(max_examples=200, deadline=None)
@given(deliveries(), st.sampled_from([ObservedStatus.RUNNING, ObservedStatus.PAUSED]))
def test_after_a_fresh_answer_the_next_true_event_is_believed(
    told: list[Observation], answer: ObservedStatus
) -> None:
    asked = (told[-1].arrived_at - T0).total_seconds() + 0.01 if told else 1.0
    later = asked + AHEAD_MAX.total_seconds() + 1
    other = ObservedStatus.PAUSED if answer is ObservedStatus.RUNNING else ObservedStatus.RUNNING
    sandbox = after(record(), *told, look(answer, asked), event(other, later))
    assert sandbox.state is STATES[other]


@pytest.mark.parametrize("what", EDGES)
def test_an_event_from_the_future_is_taken_as_of_its_arrival(what: ObservedStatus) -> None:
    assert event(what, 10, FAR).at == at(10)
    assert event(what, 10, at(10.1)).at == at(10)
    assert event(what, 10, at(5)).at == at(5)
    assert max(told_times(after(record(), event(what, 10, FAR)))) <= at(10)


@pytest.mark.parametrize("what", ENDS)
@pytest.mark.parametrize("answer", [ObservedStatus.RUNNING, ObservedStatus.PAUSED])
@pytest.mark.parametrize("source", [Source.GET, Source.LIST])
def test_an_end_from_an_event_is_corrected_when_the_provider_has_the_instance(
    what: ObservedStatus, answer: ObservedStatus, source: Source
) -> None:
    ended = after(record(), event(what, 10))
    assert ended.state.is_ended
    outcome = absorb(ended, look(answer, 11, source))
    assert isinstance(outcome, StateChange)
    assert outcome.sandbox.state is STATES[answer]
    assert outcome.sandbox.last_end.killed_reason is None
    [change] = outcome.events
    assert isinstance(change, StateChanged)
    assert (change.old_state, change.new_state) == (ended.state, STATES[answer])
    assert "contradicts its end" in change.reason


def test_an_answer_that_was_asked_before_an_event_arrived_does_not_undo_it() -> None:
    for what in (ObservedStatus.PAUSED, ObservedStatus.KILLED):
        told = after(record(), event(what, 10, at(2)))
        assert after(told, look(ObservedStatus.RUNNING, 9)).state is told.state
        assert after(told, look(ObservedStatus.RUNNING, 9, Source.LIST)).state is told.state
        assert after(told, look(ObservedStatus.RUNNING, 10)).state is State.RUNNING


def test_a_look_at_an_unchanged_row_wins_whatever_its_clocks_say() -> None:
    ahead = record(State.PAUSED, version=7, state_as_of=at(3600), state_received_at=at(3600))
    assert after(ahead, look(ObservedStatus.RUNNING, 10)).state is State.PAUSED
    assert after(ahead, look(ObservedStatus.RUNNING, 10, asked_version=6)).state is State.PAUSED
    fixed = after(ahead, look(ObservedStatus.RUNNING, 10, asked_version=7))
    assert (fixed.state, fixed.sightings.state_as_of, fixed.sightings.state_received_at) == (
        State.RUNNING,
        at(10),
        at(10),
    )


@pytest.mark.parametrize("ahead_s", [1, 30])
def test_events_a_little_from_the_future_keep_the_providers_order(ahead_s: float) -> None:
    paused = event(ObservedStatus.PAUSED, 10.0, at(9 + ahead_s))
    resumed = event(ObservedStatus.RUNNING, 10.2, at(9.5 + ahead_s))
    assert after(record(), paused, resumed).state is State.RUNNING
    late = event(ObservedStatus.PAUSED, 10.4, at(9 + ahead_s))
    assert after(record(), resumed, late).state is State.RUNNING


@pytest.mark.parametrize("ahead_s", [5, 3600])
@pytest.mark.parametrize("source", [Source.GET, Source.LIST, Source.REPLY])
def test_a_record_that_a_clock_ahead_of_ours_wrote_is_corrected_by_the_next_answer(
    ahead_s: float, source: Source
) -> None:
    ahead = after(record(State.RUNNING), look(ObservedStatus.PAUSED, ahead_s))
    answer = look(ObservedStatus.RUNNING, 1, source)
    fixed = after(ahead, answer, now=at(1.1))
    assert fixed.state is State.RUNNING
    assert max(told_times(fixed)) <= at(1.1)


def test_an_old_event_does_not_win_over_a_record_with_future_times() -> None:
    ahead = after(record(State.RUNNING), look(ObservedStatus.PAUSED, 3600))
    told = after(ahead, event(ObservedStatus.RUNNING, 1, at(0)), now=at(1.1))
    assert told.state is State.PAUSED


def test_an_event_that_arrived_while_the_provider_was_asked_is_not_undone() -> None:
    told = after(record(), event(ObservedStatus.PAUSED, 10), now=at(10.1))
    answer = look(ObservedStatus.RUNNING, 9, Source.LIST)
    assert after(told, answer, now=at(30)).state is State.PAUSED


def test_an_end_of_ours_is_not_taken_back_whichever_of_reply_and_event_came_first() -> None:
    reply = look(ObservedStatus.KILLED, 10, Source.REPLY, actor="user:1", reason="killed by hand")
    echo = event(ObservedStatus.KILLED, 10.1)
    for ended in (after(record(), reply, echo), after(record(), echo, reply)):
        assert ended.is_end_ours
        assert ended.actor == "user:1"
        assert after(ended, look(ObservedStatus.RUNNING, 20, Source.LIST)).state is State.KILLED


def test_the_reply_to_an_act_that_was_under_way_does_not_take_an_end_back() -> None:
    ended = after(record(State.PAUSED), event(ObservedStatus.KILLED, 10))
    assert after(ended, look(ObservedStatus.RUNNING, 10.5, Source.REPLY)).state is State.KILLED


@pytest.mark.parametrize("source", [Source.GET, Source.LIST])
def test_future_times_that_an_older_version_stored_are_put_right_by_the_next_answer(
    source: Source,
) -> None:
    stored = record(
        state_since=FAR,
        run_started_at=FAR,
        expires_at=FAR + timedelta(hours=1),
        observed_at=FAR,
        state_as_of=FAR,
        last_event_at=FAR,
        last_event_seen=ObservedStatus.RUNNING,
        last_event_id="e",
        end_as_of=FAR,
    )
    fixed = after(stored, look(ObservedStatus.RUNNING, 10, source), now=at(10.1))
    assert set(told_times(fixed)) == {at(10)}
    assert fixed.run.expires_at == at(3610)
    assert fixed.next_check_at is not None
    assert fixed.next_check_at < at(3610)
    assert after(fixed, event(ObservedStatus.PAUSED, 20)).state is State.PAUSED


def test_a_missing_instance_that_an_event_had_ended_stays_explained() -> None:
    ended = after(record(), event(ObservedStatus.EXPIRED, 10), look(ObservedStatus.GONE, 20))
    assert (ended.state, ended.last_end.killed_reason) == (State.EXPIRED, KilledReason.EXPIRED)
