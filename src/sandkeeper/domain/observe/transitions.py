"""How an observation becomes a new record: ``absorb``, the only rule for observed states.

**Order does not matter.** The provider's events carry the provider's time. The newest event of an
instance decides (equal times are ordered by kind, then by event id), an older one is dropped, and a
killed event is final whatever its time. So any permutation, repetition and delay of an instance's
events ends in the same record; only the log of steps on the way differs.

**Events and levels.** An event says since when something is true. A *level* (a check, a list, the
response to our own operation) says only that it is true now. A level is ordered by our own clock:
it decides when it was asked after everything known had reached us, whatever times those events
carry. One that was asked before an event arrived does not undo that event. An event that is older
than a level changes nothing; if it agrees with the level, it still gives the true beginning and the
run.

**Our own operations** come back twice: as the response, and a moment later as the provider's event.
Clocks differ, so an agreeing event up to ``SKEW_MAX`` after our own operation is treated as its
echo, and does not remove the reason, the actor or the readiness. When the event was faster than the
response, the response still says who did it, up to ``ECHO`` later.

Ground rules: only ``absorb`` sets an observed state; another instance's observation never changes
the record; every transition is in the table; what we ended ourselves is ended. An end that was only
reported to us (by an event, or by a check that found nothing) is open: an instance that appears in
a later check or list comes back, because the provider itself contradicts the report. One that was
merely *not found* is also explained by the provider's event: KILLED, EXPIRED or TERMINATED.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from sandkeeper.domain.clock import SKEW_MAX
from sandkeeper.domain.decisions.adaptive_timeout import is_too_early
from sandkeeper.domain.decisions.idle import find_idle_since, find_next_check_at
from sandkeeper.domain.events import EndExplained, Event, InstanceAdopted, StateChanged
from sandkeeper.domain.observe.clock_bounds import bound_times
from sandkeeper.domain.observe.observation import (
    KILLED_REASON_OF,
    RANK_OF,
    Observation,
    ObservedStatus,
    Source,
)
from sandkeeper.domain.owner import PROVIDER_ACTOR, SCHEDULER_ACTOR
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import KilledReason, State, check_move, path

ECHO: Final = timedelta(seconds=60)
_FINAL: Final = frozenset(
    {ObservedStatus.KILLED, ObservedStatus.EXPIRED, ObservedStatus.TERMINATED}
)
_EVENT_SOURCES: Final = frozenset(
    {ObservedStatus.CREATED, ObservedStatus.RUNNING, ObservedStatus.PAUSED, *_FINAL}
)


@dataclass(frozen=True, slots=True)
class StateChange:
    """The record after the observation, and the events to publish with it."""

    sandbox: Sandbox
    events: tuple[Event, ...] = ()


class UnchangedReason(StrEnum):
    """Why an observation changed nothing."""

    CONFIRMED = "confirmed"
    """It says what is already known. A verification still updates ``last_verified_at``."""
    OLDER = "older"
    """Something newer was absorbed before."""
    FOREIGN = "foreign"
    """It is about another instance than the record's current one."""
    ENDED = "ended"
    """The instance's end was seen; nothing comes after it."""


@dataclass(frozen=True, slots=True)
class Unchanged:
    """Nothing to write, with the reason."""

    why: UnchangedReason


def absorb(
    sandbox: Sandbox, seen: Observation, *, now: datetime | None = None
) -> StateChange | Unchanged:
    """Fold one observation into the record. Pure, and safe to repeat.

    If the record has times after ``now``, from a wrong clock, an answer decides and no event does.
    """
    adopted: tuple[Event, ...] = ()
    before = sandbox
    if now is not None:
        sandbox = bound_times(sandbox, to=now if seen.is_event else seen.at, now=now)
    bounded = sandbox
    if sandbox.instance_id != seen.instance_id:
        if not _is_unacknowledged_create(sandbox, seen):
            return Unchanged(UnchangedReason.FOREIGN)
        sandbox = sandbox.evolve(instance_id=seen.instance_id)
        if seen.source is not Source.REPLY:
            adopted = (
                InstanceAdopted(
                    sandbox_id=sandbox.id,
                    owner=sandbox.owner,
                    at=seen.at,
                    actor=seen.actor,
                    reason="found by its metadata",
                    instance_id=seen.instance_id,
                ),
            )
    if _has_final_end(sandbox) and not _is_contradicted(sandbox, seen):
        return _stay_ended(before, sandbox, seen, adopted)

    older = not _decides(sandbox, seen)
    moved, events = _move(sandbox, seen)
    moved = moved.evolve(**_arrival(moved, seen), **_end(moved, seen))
    if seen.is_verification:
        moved = moved.evolve(verification_failures=0)
        if seen.url is not None and moved.state is State.RUNNING:
            moved = moved.evolve(url=seen.url)
    if _times(moved) != _times(before):
        moved = moved.evolve(next_check_at=find_next_check_at(moved))
    events = (*adopted, *events)
    if bounded is not before:
        return StateChange(moved, events)
    return _outcome(
        before, moved, events, seen, UnchangedReason.OLDER if older else UnchangedReason.CONFIRMED
    )


def _is_unacknowledged_create(sandbox: Sandbox, seen: Observation) -> bool:
    """Return True for the instance of a create call whose answer never reached us."""
    return (
        sandbox.instance_id is None
        and sandbox.state is State.STARTING
        and seen.sandbox_id == sandbox.id
        and seen.generation == sandbox.generation
    )


def _has_final_end(sandbox: Sandbox) -> bool:
    return sandbox.sightings.last_event_seen in _FINAL


def _is_contradicted(sandbox: Sandbox, seen: Observation) -> bool:
    """Return True when the provider, asked after the reported end, says the instance exists.

    The response to our own operation may have left the provider before the end, unless only a check
    reported the end.
    """
    if (
        seen.is_event
        or seen.seen not in (ObservedStatus.RUNNING, ObservedStatus.PAUSED)
        or not sandbox.may_be_alive
    ):
        return False
    was_only_missed = sandbox.last_end.killed_reason is KilledReason.NOT_FOUND
    is_answer = seen.source in (Source.GET, Source.LIST)
    return (was_only_missed or is_answer) and _decides(sandbox, seen)


def _stay_ended(
    before: Sandbox, sandbox: Sandbox, seen: Observation, events: tuple[Event, ...]
) -> StateChange | Unchanged:
    """Keep the record ended; only record our own operation whose event was faster."""
    sandbox = sandbox.evolve(**_arrival(sandbox, seen))
    is_our_end = seen.source is Source.REPLY and seen.seen in _FINAL
    if is_our_end and sandbox.sightings.acted_at is None:
        return StateChange(_attribute_to_reply(sandbox.evolve(acted_at=seen.at), seen), events)
    return _outcome(before, sandbox, events, seen, UnchangedReason.ENDED)


def _times(sandbox: Sandbox) -> tuple[object, ...]:
    """Return what the next deadline depends on, except activity: the sweep handles that itself."""
    return (
        sandbox.state,
        sandbox.state_since,
        sandbox.run.run_started_at,
        sandbox.run.expires_at,
        sandbox.sightings.unreachable_at,
    )


def _outcome(
    before: Sandbox,
    after: Sandbox,
    events: tuple[Event, ...],
    seen: Observation,
    otherwise: UnchangedReason,
) -> StateChange | Unchanged:
    """Return a change only if something besides the age of our knowledge changed.

    A confirmation is not written: the reconciler confirms every record of the fleet each time. The
    times of events are stored, because later events are ordered by them.
    """
    aged = before.evolve(
        end_as_of=before.run.end_as_of if seen.is_event else after.run.end_as_of,
        observed_at=after.sightings.observed_at,
        last_verified_at=after.sightings.last_verified_at,
        state_as_of=after.sightings.state_as_of,
        state_received_at=after.sightings.state_received_at,
        acted_at=after.sightings.acted_at,
    )
    if not events and aged == after:
        return Unchanged(otherwise)
    return StateChange(after, events)


def _move(sandbox: Sandbox, seen: Observation) -> tuple[Sandbox, tuple[Event, ...]]:
    """Apply what the observation says about state and run."""
    is_event = seen.is_event and seen.seen in _EVENT_SOURCES
    if is_event:
        if not _is_newest_event(sandbox, seen):
            return sandbox, ()
        sandbox = sandbox.evolve(
            last_event_at=seen.event_at,
            last_event_seen=seen.seen,
            last_event_id=seen.event_id,
            run_id=seen.run_id or sandbox.run.run_id,
        )
    target = seen.state
    if target is None:
        return sandbox, ()
    if sandbox.state.is_ended:
        return _move_ended(sandbox, seen, target)
    if not _decides(sandbox, seen):
        return (_confirm_beginning(sandbox, seen) if is_event else sandbox), ()
    if target is State.UNKNOWN:
        return _mark_unverified(sandbox, seen)
    return _walk(sandbox, seen, target)


def _move_ended(
    sandbox: Sandbox, seen: Observation, target: State
) -> tuple[Sandbox, tuple[Event, ...]]:
    """Apply what may still happen to a record whose instance ended."""
    if target.is_ended:
        return _explain_end(sandbox, seen, target)
    if not _is_contradicted(sandbox, seen):
        return sandbox, ()
    end = sandbox.last_end.killed_reason or sandbox.state.value.lower()
    why = f"{target.value.lower()} at the provider, which contradicts its end ({end})"
    revived = sandbox.evolve(
        last_event_at=None,
        last_event_seen=None,
        last_event_id=None,
        killed_at=None,
        killed_reason=None,
    )
    return _walk(revived, replace(seen, reason=why), target)


def _is_newest_event(sandbox: Sandbox, seen: Observation) -> bool:
    last = sandbox.sightings
    if seen.seen in _FINAL or last.last_event_at is None or last.last_event_seen is None:
        return True
    known = (last.last_event_at, RANK_OF[last.last_event_seen], last.last_event_id or "")
    return (seen.event_at or seen.at, RANK_OF[seen.seen], seen.event_id or "") > known


def _decides(sandbox: Sandbox, seen: Observation) -> bool:
    """Return True when nothing newer has been said about the state.

    Events are ordered among each other by the provider's clock, and answers by ours: by when they
    were asked and when the event before them arrived.
    """
    as_of, received_at = sandbox.sightings.state_as_of, sandbox.sightings.state_received_at
    if seen.is_event:
        return seen.seen in _FINAL or as_of is None or seen.at >= as_of
    if received_at is None or seen.asked_version == sandbox.version:
        return True  # It was written before arrivals were stored, or nothing came since we asked.
    if seen.source is Source.REPLY:
        # What we did came after what was known, although our replicas' clocks may differ.
        return seen.at + SKEW_MAX >= min(received_at, as_of or received_at)
    return seen.at >= received_at


def _confirm_beginning(sandbox: Sandbox, seen: Observation) -> Sandbox:
    """Use an event older than an agreeing level: it says when the state really began."""
    if seen.state is not sandbox.state:
        return sandbox
    if sandbox.state is State.RUNNING:
        return sandbox.evolve(state_since=seen.at, run_started_at=seen.at)
    return sandbox.evolve(state_since=seen.at)


def _stay(sandbox: Sandbox, seen: Observation) -> Sandbox:
    """Keep the known state. A newer event still restarts it: a change was missed."""
    order = _order(sandbox, seen)
    if seen.source is Source.REPLY:
        return _attribute_to_reply(sandbox.evolve(**order, acted_at=seen.at), seen)
    if not seen.is_event:
        return sandbox.evolve(**order)
    if sandbox.sightings.acted_at is not None and seen.at - sandbox.sightings.acted_at <= SKEW_MAX:
        return sandbox.evolve(**order, state_since=seen.at)
    return _enter(sandbox, seen, sandbox.state)


def _order(sandbox: Sandbox, seen: Observation) -> dict[str, Any]:
    """Return since when the state is known: by the clock of its source, and by ours."""
    if seen.source in (Source.GET, Source.LIST):
        return {"state_as_of": seen.at, "state_received_at": seen.at}
    return {
        "state_as_of": _newest(sandbox.sightings.state_as_of, seen.at),
        "state_received_at": _newest(sandbox.sightings.state_received_at, seen.arrived_at),
    }


def _attribute_to_reply(sandbox: Sandbox, seen: Observation) -> Sandbox:
    """Attribute the state to our own operation: its event was faster than its response."""
    was_just_seen = seen.at - sandbox.state_since <= ECHO
    if sandbox.actor != PROVIDER_ACTOR or seen.actor == PROVIDER_ACTOR or not was_just_seen:
        return sandbox
    changes: dict[str, Any] = {"actor": seen.actor, "reason": seen.reason or sandbox.reason}
    if sandbox.state is State.PAUSED and seen.actor == SCHEDULER_ACTOR:
        changes["paused_by_scheduler_at"] = seen.at
    return sandbox.evolve(**changes)


def _mark_unverified(sandbox: Sandbox, seen: Observation) -> tuple[Sandbox, tuple[Event, ...]]:
    """Count a failed verification; RUNNING and PAUSED become UNKNOWN, and nothing else does.

    The run continues as far as we know, so its beginning, its end and its readiness are kept.
    """
    sandbox = sandbox.evolve(
        verification_failures=sandbox.sightings.verification_failures + 1,
        unreachable_at=_newest(sandbox.sightings.unreachable_at, seen.at),
    )
    if sandbox.state not in (State.RUNNING, State.PAUSED):
        return sandbox, ()
    moved = sandbox.evolve(
        state=State.UNKNOWN,
        state_since=seen.at,
        reason=seen.reason or "the provider cannot be reached",
        actor=seen.actor,
        acted_at=None,
    )
    return moved, (_changed(sandbox, State.UNKNOWN, seen, moved.reason),)


def _walk(sandbox: Sandbox, seen: Observation, target: State) -> tuple[Sandbox, tuple[Event, ...]]:
    """Move along the table to the observed state; each step is an event."""
    if target is sandbox.state:
        return _stay(sandbox, seen), ()
    before = sandbox
    events: list[Event] = []
    reason = seen.reason or f"{seen.seen.value} at the provider"
    for step in path(sandbox.state, target):
        check_move(sandbox.state, step)
        why = reason if step is target else f"on the way to {target.value}, which was seen first"
        events.append(_changed(sandbox, step, seen, why))
        sandbox = sandbox.evolve(state=step)
    entered = _enter(sandbox, seen, target)
    was_only_lost = before.state is State.UNKNOWN and seen.source in (Source.GET, Source.LIST)
    if was_only_lost and target is State.RUNNING:
        entered = _keep_run(before, entered)
    return entered, tuple(events)


def _keep_run(before: Sandbox, after: Sandbox) -> Sandbox:
    """Continue a run that was only unreachable: same lifetime, same grace, still ready."""
    if before.run.run_started_at is None:
        return after
    return after.evolve(
        run_started_at=before.run.run_started_at,
        expires_at=before.run.expires_at,
        ready=before.run.ready,
        app_down_at=before.run.app_down_at,
        app_exit_code=before.run.app_exit_code,
    )


def _changed(sandbox: Sandbox, new: State, seen: Observation, reason: str) -> StateChanged:
    ends_run = sandbox.state is State.RUNNING and new is not State.UNKNOWN
    return StateChanged(
        sandbox_id=sandbox.id,
        owner=sandbox.owner,
        at=seen.at,
        actor=seen.actor,
        reason=reason,
        old_state=sandbox.state,
        new_state=new,
        source=seen.source.value,
        instance_id=seen.instance_id,
        lag_s=None if seen.due_at is None else max(0.0, (seen.at - seen.due_at).total_seconds()),
        idle_s=max(0.0, (seen.at - find_idle_since(sandbox)).total_seconds()) if ends_run else None,
        unused=ends_run and sandbox.is_warm,
    )


def _enter(sandbox: Sandbox, seen: Observation, state: State) -> Sandbox:
    """Set everything that follows from having just entered a state."""
    changes: dict[str, Any] = {
        "state": state,
        "state_since": seen.at,
        "ready": False,
        "app_down_at": None,
        "app_exit_code": None,
        "reason": seen.reason or f"{seen.seen.value} at the provider",
        "actor": seen.actor,
        "acted_at": seen.at if seen.source is Source.REPLY else None,
    }
    changes |= _order(sandbox, seen)
    if state is State.RUNNING:
        changes |= _begin_run(sandbox, seen)
    else:
        changes |= {"run_started_at": None, "expires_at": None, "warmed_at": None}
    if state is State.PAUSED and seen.actor == SCHEDULER_ACTOR:
        changes["paused_by_scheduler_at"] = seen.at
    if state.is_ended:
        changes |= {
            "killed_at": seen.at,
            "killed_reason": seen.killed_reason or KILLED_REASON_OF[seen.seen],
            "url": None,
        }
    return sandbox.evolve(**changes)


def _begin_run(sandbox: Sandbox, seen: Observation) -> dict[str, Any]:
    """Begin a run with its whole lifetime; an end that was moved further out stays."""
    lifetime_s = sandbox.policy.lifetime_s
    expires_at = None
    if lifetime_s is not None:
        expires_at = _newest(sandbox.run.expires_at, seen.at + timedelta(seconds=lifetime_s))
    is_wanted = sandbox.run.warmed_at is None and seen.actor != SCHEDULER_ACTOR
    is_early = is_wanted and is_too_early(sandbox.idle_stats.paused_by_scheduler_at, seen.at)
    return {
        "early_pauses": sandbox.idle_stats.early_pauses + is_early,
        "run_started_at": seen.at,
        "expires_at": expires_at,
        "paused_by_scheduler_at": None,
        "killed_at": None,
        "killed_reason": None,
    }


def _explain_end(
    sandbox: Sandbox, seen: Observation, target: State
) -> tuple[Sandbox, tuple[Event, ...]]:
    """Explain an end by the provider's own event, which knows more than the check that found it.

    The record becomes what it would be if the event had come first. That is no transition of the
    table: one end, reported twice.
    """
    if not seen.is_event or sandbox.last_end.killed_reason is not KilledReason.NOT_FOUND:
        return sandbox, ()
    explained = _enter(sandbox, seen, target)
    assert explained.last_end.killed_reason is not None
    event = EndExplained(
        sandbox_id=sandbox.id,
        owner=sandbox.owner,
        at=seen.at,
        actor=seen.actor,
        reason=explained.reason,
        state=target,
        killed_reason=explained.last_end.killed_reason,
    )
    return explained, (event,)


def _arrival(sandbox: Sandbox, seen: Observation) -> dict[str, Any]:
    """Return the fields that every observation updates, whether it decides anything or not."""
    told = ("isolation", "vcpus", "memory_mb")
    marks: dict[str, Any] = {name: getattr(seen, name) or getattr(sandbox, name) for name in told}
    if seen.seen is not ObservedStatus.UNREACHABLE:
        marks["observed_at"] = _newest(sandbox.sightings.observed_at, seen.at)
    if seen.is_verification:
        marks["last_verified_at"] = _newest(sandbox.sightings.last_verified_at, seen.at)
    if seen.source is Source.WEBHOOK and seen.received_at is not None:
        marks["last_webhook_at"] = _newest(sandbox.sightings.last_webhook_at, seen.received_at)
    return marks


def _end(sandbox: Sandbox, seen: Observation) -> dict[str, Any]:
    """Return the provider's own end of the run: the newest value counts; no run, no end."""
    if sandbox.state.is_ended:
        return {"end_at": None, "end_as_of": None}
    stops = seen.seen is ObservedStatus.PAUSED
    if not stops and seen.end_at is None:
        return {}
    end_at = None if stops else seen.end_at
    if not seen.is_event and end_at == sandbox.run.end_at:
        return {}
    if sandbox.run.end_as_of is not None:
        if seen.at < sandbox.run.end_as_of:
            return {}
        if seen.at == sandbox.run.end_as_of:
            # Two values with the same time: a stop wins, else the later end, whichever came first.
            both = (sandbox.run.end_at, end_at)
            end_at = max(at for at in both if at is not None) if None not in both else None
    return {"end_at": end_at, "end_as_of": seen.at}


def _newest(known: datetime | None, at: datetime) -> datetime:
    return at if known is None else max(known, at)
