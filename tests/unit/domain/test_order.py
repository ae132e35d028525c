"""Any permutation, repetition and delay of an instance's event log ends in the same record."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandkeeper.domain.clock import SKEW_MAX
from sandkeeper.domain.decisions.idle import STARTING_CHECK_S
from sandkeeper.domain.observe.observation import Observation, ObservedStatus, Source
from sandkeeper.domain.observe.transitions import StateChange, absorb
from sandkeeper.domain.policy import Launch, Policy
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import State, can_move
from support.records import T0, at, new_record

ENDS = (ObservedStatus.KILLED, ObservedStatus.EXPIRED, ObservedStatus.TERMINATED)


def newborn() -> Sandbox:
    return new_record(
        launch=Launch(port=3000),
        policy=Policy(),
        instance_id="i",
        next_check_at=at(STARTING_CHECK_S),
    )


def running() -> Sandbox:
    reply = Observation(
        "i", ObservedStatus.RUNNING, T0, Source.REPLY, actor="api", reason="created"
    )
    change = absorb(newborn(), reply)
    assert isinstance(change, StateChange)
    return change.sandbox


@st.composite
def logs(draw: st.DrawFn, *, always_ends: bool = False) -> list[Observation]:
    """A log as the provider writes it: runs that follow each other, with updates in between.

    It begins later than the echo of our own create call can.
    """
    log: list[Observation] = []
    clock = T0 + SKEW_MAX + timedelta(milliseconds=1)

    def note(seen: ObservedStatus, run: int, end_at: datetime | None = None) -> None:
        nonlocal clock
        clock += timedelta(microseconds=draw(st.sampled_from([0, 300, 1_000, 7_000_000])))
        log.append(
            Observation(
                "i",
                seen,
                clock,
                draw(st.sampled_from([Source.WEBHOOK, Source.CATCH_UP])),
                run_id=f"run-{run}",
                event_id=f"event-{len(log):02}",
                end_at=end_at,
                received_at=clock + timedelta(seconds=draw(st.integers(0, 900))),
            )
        )

    note(ObservedStatus.CREATED, 0)
    for run in range(draw(st.integers(1, 4))):
        if run:
            note(ObservedStatus.RUNNING, run)
        for _ in range(draw(st.integers(0, 2))):
            note(ObservedStatus.UPDATED, run, T0 + timedelta(hours=draw(st.integers(1, 2))))
        if draw(st.booleans()):
            note(ObservedStatus.CHECKPOINTED, run)
        if draw(st.integers(0, 3)) == 0:
            break
        note(ObservedStatus.PAUSED, run)
    if always_ends or draw(st.booleans()):
        note(draw(st.sampled_from(ENDS)), 9)
    return log


def play(sandbox: Sandbox, log: Iterable[Observation]) -> Sandbox:
    for seen in log:
        outcome = absorb(sandbox, seen)
        if isinstance(outcome, StateChange):
            sandbox = outcome.sandbox
    return sandbox


def told(sandbox: Sandbox) -> Sandbox:
    """The record without the age marks, which move without a write."""
    return sandbox.evolve(
        observed_at=None, state_as_of=None, state_received_at=None, last_verified_at=None
    )


@settings(max_examples=150, deadline=None)
@given(st.data())
@pytest.mark.parametrize("begin", [newborn, running])
def test_any_order_and_repetition_ends_in_the_same_record(
    begin: object, data: st.DataObject
) -> None:
    assert callable(begin)
    log = data.draw(logs())
    repeated = log + data.draw(st.lists(st.sampled_from(log), max_size=5))
    shuffled = data.draw(st.permutations(repeated))
    in_order = play(begin(), sorted(log, key=lambda one: one.event_id or ""))
    assert told(play(begin(), shuffled)) == told(in_order)


@settings(max_examples=150, deadline=None)
@given(st.data())
@pytest.mark.parametrize("begin", [newborn, running])
def test_a_look_that_finds_nothing_may_come_before_the_events_that_tell_why(
    begin: object, data: st.DataObject
) -> None:
    assert callable(begin)
    log = data.draw(logs(always_ends=True))
    source = data.draw(st.sampled_from([Source.GET, Source.LIST]))
    missed = Observation("i", ObservedStatus.GONE, log[-1].at + timedelta(seconds=1), source)
    shuffled = data.draw(st.permutations([*log, missed]))
    in_order = play(begin(), [*log, missed])
    assert told(play(begin(), shuffled)) == told(in_order)
    assert in_order.state is log[-1].state


@settings(max_examples=100, deadline=None)
@given(logs(), st.randoms())
def test_every_step_is_in_the_table(log: list[Observation], random: object) -> None:
    shuffled = list(log)
    random.shuffle(shuffled)  # type: ignore[attr-defined]  # Hypothesis's Random.
    sandbox = running()
    for seen in shuffled:
        outcome = absorb(sandbox, seen)
        if not isinstance(outcome, StateChange):
            continue
        state = sandbox.state
        for event in outcome.events:
            old, new = State(event.old_state), State(event.new_state)  # type: ignore[attr-defined]  # Only state changes come here.
            assert old is state
            assert can_move(old, new)
            state = new
        sandbox = outcome.sandbox
        assert sandbox.state is state
