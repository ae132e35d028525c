"""The seven states of a sandbox and every transition between them.

::

    create ─▶ STARTING ─▶ RUNNING ◀─▶ PAUSED        RUNNING ─▶ KILLED, EXPIRED, TERMINATED
                 │            │          │          PAUSED  ─▶ KILLED, EXPIRED
                 ▼            └▶ UNKNOWN ◀┘
              KILLED               │
                                   └─▶ RUNNING (verified), KILLED (verified gone)

    KILLED, EXPIRED, TERMINATED, UNKNOWN ─▶ STARTING   (a wake that recreates)
    KILLED, EXPIRED, TERMINATED ─▶ RUNNING, PAUSED     (an end that the provider contradicts)

The last line is for an end that only an event or a check reported; what we ended ourselves is over.

Every transition is in ``TRANSITIONS``. When an observation reports a state that is further away
than one transition (events were missed), the record follows the ``path``, and every step is logged.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from sandkeeper.domain.errors import InvalidTransitionError


class State(StrEnum):
    """The state of a sandbox, as far as we know."""

    STARTING = "STARTING"
    """Being created; no answer from the provider yet. → RUNNING, KILLED"""

    RUNNING = "RUNNING"
    """The provider runs it. → PAUSED, KILLED, EXPIRED, TERMINATED, UNKNOWN"""

    PAUSED = "PAUSED"
    """Paused, with its disk and memory kept. → RUNNING, KILLED, EXPIRED, UNKNOWN"""

    KILLED = "KILLED"
    """Ended on request, or found to be gone while its cause is unknown. The record stays. →
    STARTING; RUNNING, PAUSED if the provider has it after all
    """

    EXPIRED = "EXPIRED"
    """Ended because its lifetime was over. → STARTING, RUNNING, PAUSED"""

    TERMINATED = "TERMINATED"
    """Ended on purpose by the system. → STARTING, RUNNING, PAUSED"""

    UNKNOWN = "UNKNOWN"
    """The provider cannot be reached. Not gone: unreachable. → RUNNING, KILLED, STARTING"""

    @property
    def is_ended(self) -> bool:
        """Return True when the instance no longer exists at the provider."""
        return self in ENDED

    @property
    def is_live(self) -> bool:
        """Return True when an instance exists at the provider, or may exist."""
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
    """Return True when the table has this single transition."""
    return attempted in TRANSITIONS[current]


def check_move(current: State, attempted: State) -> None:
    """Raise InvalidTransitionError for a transition that is not in the table."""
    if not can_move(current, attempted):
        raise InvalidTransitionError(current=current.value, attempted=attempted.value)


def _paths() -> dict[tuple[State, State], tuple[State, ...]]:
    """Return the shortest paths between all states; declaration order decides between equal ones.

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
    """Return the transitions from ``current`` to ``seen``, all in the table; empty if equal."""
    return () if current is seen else PATHS[current, seen]


class KilledReason(StrEnum):
    """Why an instance ended, as the record says."""

    MANUAL = "manual"
    EXPIRED = "expired"
    TERMINATED = "terminated"
    NOT_FOUND = "not_found"
    CREATION_FAILED = "creation_failed"
