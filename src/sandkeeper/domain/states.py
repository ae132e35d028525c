"""The seven states of a sandbox and every move between them.

::

    create ─▶ STARTING ─▶ RUNNING ◀─▶ PAUSED        RUNNING ─▶ KILLED, EXPIRED, TERMINATED
                 │            │          │          PAUSED  ─▶ KILLED, EXPIRED
                 ▼            └▶ UNKNOWN ◀┘
              KILLED               │
                                   └─▶ RUNNING (verified), KILLED (verified gone)

    KILLED, EXPIRED, TERMINATED, UNKNOWN ─▶ STARTING   (a wake that recreates)
    KILLED, EXPIRED, TERMINATED ─▶ RUNNING, PAUSED     (an end that the provider contradicts)

The last line is for an end that only an event or a look told of; what we ended ourselves is over.

Nothing moves outside ``TRANSITIONS``. When an observation tells of a state that is further away
than one move (events were missed), the record walks the ``path`` there, and every step is logged.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from sandkeeper.domain.errors import InvalidTransitionError


class State(StrEnum):
    """Where a sandbox stands, as far as we know."""

    STARTING = "STARTING"
    """Being created; no answer of the provider yet. → RUNNING, KILLED"""

    RUNNING = "RUNNING"
    """The provider executes it. → PAUSED, KILLED, EXPIRED, TERMINATED, UNKNOWN"""

    PAUSED = "PAUSED"
    """Asleep with its disk and memory kept. → RUNNING, KILLED, EXPIRED, UNKNOWN"""

    KILLED = "KILLED"
    """Ended by hand, or found to be gone while its cause is untold. The record stays.
    → STARTING; RUNNING, PAUSED if the provider has it after all"""

    EXPIRED = "EXPIRED"
    """Ended because its lifetime was over. → STARTING, RUNNING, PAUSED"""

    TERMINATED = "TERMINATED"
    """Ended on purpose by the system. → STARTING, RUNNING, PAUSED"""

    UNKNOWN = "UNKNOWN"
    """The provider cannot be asked. Not gone: unreachable. → RUNNING, KILLED, STARTING"""

    @property
    def is_ended(self) -> bool:
        """True when the instance no longer exists at the provider."""
        return self in ENDED

    @property
    def is_live(self) -> bool:
        """True when an instance exists at the provider, or may exist."""
        return self not in ENDED


ENDED: Final = frozenset({State.KILLED, State.EXPIRED, State.TERMINATED})

TRANSITIONS: Final[dict[State, frozenset[State]]] = {
    State.STARTING: frozenset({State.RUNNING, State.KILLED}),
    State.RUNNING: frozenset(
        {State.PAUSED, State.KILLED, State.EXPIRED, State.TERMINATED, State.UNKNOWN}
    ),
    State.PAUSED: frozenset({State.RUNNING, State.KILLED, State.EXPIRED, State.UNKNOWN}),
    State.KILLED: frozenset({State.STARTING, State.RUNNING, State.PAUSED}),
    State.EXPIRED: frozenset({State.STARTING, State.RUNNING, State.PAUSED}),
    State.TERMINATED: frozenset({State.STARTING, State.RUNNING, State.PAUSED}),
    State.UNKNOWN: frozenset({State.STARTING, State.RUNNING, State.KILLED}),
}


def can_move(current: State, attempted: State) -> bool:
    """True when the table has this single move."""
    return attempted in TRANSITIONS[current]


def check_move(current: State, attempted: State) -> None:
    """Raises InvalidTransitionError for a move that the table does not have."""
    if not can_move(current, attempted):
        raise InvalidTransitionError(current=current.value, attempted=attempted.value)


def _paths() -> dict[tuple[State, State], tuple[State, ...]]:
    """Shortest ways from each state to each other one; equal lengths settle by declaration order.

    UNKNOWN is never passed through: it is a statement about us and not about the sandbox.
    """
    order = list(State)
    found: dict[tuple[State, State], tuple[State, ...]] = {}
    for start in order:
        frontier: list[tuple[State, ...]] = [()]
        while frontier:
            wider: list[tuple[State, ...]] = []
            for steps in frontier:
                here = steps[-1] if steps else start
                if steps and here is State.UNKNOWN:
                    continue
                for there in sorted(TRANSITIONS[here], key=order.index):
                    if there is not start and (start, there) not in found:
                        found[start, there] = (*steps, there)
                        wider.append((*steps, there))
            frontier = wider
    return found


PATHS: Final = _paths()


def path(current: State, seen: State) -> tuple[State, ...]:
    """The moves from ``current`` to ``seen``, each of them in the table; empty if equal."""
    return () if current is seen else PATHS[current, seen]


class KilledReason(StrEnum):
    """Why an instance ended, as the record tells it."""

    MANUAL = "manual"
    EXPIRED = "expired"
    TERMINATED = "terminated"
    NOT_FOUND = "not_found"
    CREATION_FAILED = "creation_failed"
