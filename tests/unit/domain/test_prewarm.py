"""When a warm-up is allowed, and what became of it."""

from __future__ import annotations

from typing import Any

import pytest

from sandkeeper.domain.decisions.prewarm import (
    Prewarm,
    PrewarmBudget,
    PrewarmOutcome,
    PrewarmsSpent,
    find_excess,
    find_outcome,
    find_refusal,
)
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import KilledReason, State
from support.records import T0, at, new_record

WARM_UP = Prewarm("wu", "sb", "client", T0)


def sandbox(state: State, **fields: Any) -> Sandbox:
    before = new_record(created_at=at(-100), state=state, instance_id="i", last_active_at=at(-90))
    return before.evolve(**fields)


@pytest.mark.parametrize("state", State)
def test_only_what_sleeps_is_warmed_up(state: State) -> None:
    refusal = find_refusal(sandbox(state))
    assert (refusal is None) == (state is State.PAUSED)
    assert refusal is None or state.value in refusal


@pytest.mark.parametrize(
    ("spent", "said"),
    [
        (PrewarmsSpent(1, 9, 1), None),
        (PrewarmsSpent(2, 2, 0), "2 warmed-up sandboxes wait"),
        (PrewarmsSpent(0, 10, 0), "10 warm-ups within the last hour"),
        (PrewarmsSpent(0, 2, 2), "this sandbox was warmed up 2 times"),
    ],
)
def test_a_refusal_names_the_part_of_the_budget_that_is_spent(
    spent: PrewarmsSpent, said: str | None
) -> None:
    excess = find_excess(spent, PrewarmBudget(at_once=2, per_hour=10, per_owner_hour=2))
    assert (excess is None) if said is None else said in (excess or "")


RUNS: dict[str, Any] = {"run_started_at": at(1), "warmed_at": T0}


@pytest.mark.parametrize(
    ("found", "is_waking", "now_s", "outcome"),
    [
        (sandbox(State.PAUSED, warmed_at=T0), True, 40, None),
        (sandbox(State.RUNNING, **RUNS), False, 50, None),
        (sandbox(State.RUNNING, **RUNS, last_active_at=at(5)), False, 6, PrewarmOutcome.USED),
        (sandbox(State.PAUSED, last_active_at=at(5)), False, 500, PrewarmOutcome.USED),
        (sandbox(State.PAUSED, state_since=at(60)), False, 70, PrewarmOutcome.UNUSED),
        (sandbox(State.PAUSED, state_since=at(-60)), False, 1, None),
        (sandbox(State.PAUSED, state_since=at(-60)), False, 31, PrewarmOutcome.FAILED),
        (sandbox(State.KILLED, killed_reason=KilledReason.MANUAL), False, 9, PrewarmOutcome.UNUSED),
        (
            sandbox(State.KILLED, killed_reason=KilledReason.NOT_FOUND),
            False,
            9,
            PrewarmOutcome.FAILED,
        ),
        (sandbox(State.PAUSED, warmed_at=T0), False, 5, None),
        (sandbox(State.PAUSED, warmed_at=T0), False, 31, PrewarmOutcome.FAILED),
        (sandbox(State.UNKNOWN, warmed_at=T0), False, 31, PrewarmOutcome.FAILED),
        (sandbox(State.RUNNING, run_started_at=at(1)), False, 31, PrewarmOutcome.UNUSED),
        (None, False, 1, PrewarmOutcome.FAILED),
    ],
)
def test_what_is_true_later_tells_how_a_warm_up_ended(
    found: Sandbox | None, is_waking: bool, now_s: float, outcome: PrewarmOutcome | None
) -> None:
    assert find_outcome(WARM_UP, found, is_waking=is_waking, now=at(now_s)) is outcome
