"""The table is the state diagram, neither more nor less."""

from __future__ import annotations

import itertools

import pytest

from sandkeeper.domain.errors import InvalidTransitionError
from sandkeeper.domain.states import TRANSITIONS, State, can_move, check_move, path

DIAGRAM = """
STARTING --> RUNNING
STARTING --> KILLED
RUNNING --> PAUSED
RUNNING --> KILLED
RUNNING --> EXPIRED
RUNNING --> TERMINATED
PAUSED --> RUNNING
PAUSED --> KILLED
PAUSED --> EXPIRED
KILLED --> STARTING
KILLED --> RUNNING
KILLED --> PAUSED
EXPIRED --> STARTING
EXPIRED --> RUNNING
EXPIRED --> PAUSED
TERMINATED --> STARTING
TERMINATED --> RUNNING
TERMINATED --> PAUSED
UNKNOWN --> STARTING
RUNNING --> UNKNOWN
PAUSED --> UNKNOWN
UNKNOWN --> RUNNING
UNKNOWN --> KILLED
"""


def test_the_table_has_exactly_the_arrows_of_the_diagram() -> None:
    drawn = {tuple(line.split(" --> ")) for line in DIAGRAM.strip().splitlines()}
    written = {(one.value, other.value) for one, many in TRANSITIONS.items() for other in many}
    assert written == drawn


def test_a_move_outside_the_table_is_refused_with_both_states() -> None:
    with pytest.raises(InvalidTransitionError) as refused:
        check_move(State.PAUSED, State.STARTING)
    assert refused.value.fields == {"current": "PAUSED", "attempted": "STARTING"}


def test_every_state_can_be_reached_from_every_other_by_moves_of_the_table() -> None:
    for start, goal in itertools.product(State, State):
        here = start
        for step in path(start, goal):
            assert can_move(here, step)
            assert step is not State.UNKNOWN or step is goal
            here = step
        assert here is goal
