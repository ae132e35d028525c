"""A new generation: the same sandbox with a new instance in place of one that ended."""

from __future__ import annotations

from datetime import datetime

from sandkeeper.domain.clock import to_ms
from sandkeeper.domain.decisions.idle import find_next_check_at
from sandkeeper.domain.events import SandboxCreated, StateChanged
from sandkeeper.domain.observe.observation import Observation
from sandkeeper.domain.observe.transitions import StateChange, absorb
from sandkeeper.domain.sandbox import CurrentRun, LastEnd, Sandbox
from sandkeeper.domain.states import State, check_move


def begin_generation(sandbox: Sandbox, *, reason: str, actor: str, now: datetime) -> StateChange:
    """Return the record before its provider creates a new instance: STARTING, next generation.

    A generation of which no instance was ever seen goes on: its creation was not answered, and may
    still be carried out. The provider makes one instance of a generation.

    Save it before the call, so that the new instance can be found by its metadata. Raise
    InvalidTransitionError for a sandbox that has not ended: a live one is never replaced. Nothing
    of the old instance stays, so a late event about it is foreign to the record.
    """
    check_move(sandbox.state, State.STARTING)
    at = to_ms(now)
    begun = sandbox.evolve(
        state=State.STARTING,
        state_since=at,
        generation=sandbox.generation + (sandbox.instance_id is not None),
        instance_id=None,
        isolation=None,
        vcpus=None,
        memory_mb=None,
        run=CurrentRun(),
        work=None,
        reason=reason,
        actor=actor,
        verification_failures=0,
        unreachable_at=None,
        state_as_of=None,
        state_received_at=None,
        acted_at=None,
        last_event_at=None,
        last_event_seen=None,
        last_event_id=None,
        paused_by_scheduler_at=None,
        last_end=LastEnd(recreated=True, recreation_reason=reason),
    )
    begun = begun.evolve(next_check_at=find_next_check_at(begun))
    changed = StateChanged(
        sandbox_id=sandbox.id,
        owner=sandbox.owner,
        at=at,
        actor=actor,
        reason=reason,
        old_state=sandbox.state,
        new_state=State.STARTING,
        source="wake",
        instance_id=sandbox.instance_id,
    )
    created = SandboxCreated(
        sandbox_id=sandbox.id,
        owner=sandbox.owner,
        at=at,
        actor=actor,
        reason=reason,
        generation=begun.generation,
        recreated=True,
    )
    return StateChange(begun, (changed, created))


def reattach_instance(sandbox: Sandbox, seen: Observation) -> StateChange:
    """Return an ended record with a living instance of its own in place of the one that ended.

    `seen` names the record and a generation in its metadata. The instance has no record because its
    create call was answered after the record was given up, or because the database is older.
    """
    assert seen.generation is not None
    begun = begin_generation(
        sandbox, reason="found by its metadata", actor=seen.actor, now=seen.at
    ).sandbox
    waiting = begun.evolve(generation=seen.generation, last_end=LastEnd())
    taken = absorb(waiting, seen)
    assert isinstance(taken, StateChange)
    return taken
