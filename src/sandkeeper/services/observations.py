"""The one door through which observed truth enters the record.

A webhook, an entry of the event log, a look, a list and the answer to our own act are all
*observations*; `record` folds each into the row with the pure `absorb` and writes row and events in
one transaction. Nothing else writes an observed state. It may be called twice with the same
observation, in any order and from several replicas: the version of the row settles races, and who
loses reads again and absorbs anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import structlog

from sandkeeper.domain.errors import VersionConflictError
from sandkeeper.domain.events import StateChanged
from sandkeeper.domain.observation import Observation, Seen, Source
from sandkeeper.domain.transitions import Change, Why, absorb
from sandkeeper.providers.base import EventKind, InstanceState
from sandkeeper.providers.e2b_mapping import KILL_REASONS, SIGHTINGS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from sandkeeper.domain.events import Event
    from sandkeeper.domain.sandbox import Sandbox
    from sandkeeper.providers.base import Instance, LifecycleEvent
    from sandkeeper.store import Store
    from sandkeeper.telemetry import Metrics

log = structlog.get_logger(__name__)

#: How often a lost race is run again. Each loss means that somebody else made progress on this row.
RACES_MAX = 20


class Outcome(StrEnum):
    """What became of an observation."""

    #: The record changed.
    CHANGED = "changed"
    #: It said what we knew; only the age of our knowledge changed.
    CONFIRMED = "confirmed"
    #: Something newer had been absorbed before.
    OLDER = "older"
    #: It is of an instance that is not the record's present one.
    FOREIGN = "foreign"
    #: The instance's end is known; nothing comes after it.
    ENDED = "ended"
    #: No record is known for this instance.
    UNKNOWN = "unknown"
    #: This very delivery was taken in before.
    DUPLICATE = "duplicate"


OUTCOMES = {
    Why.CONFIRMED: Outcome.CONFIRMED,
    Why.OLDER: Outcome.OLDER,
    Why.FOREIGN: Outcome.FOREIGN,
    Why.ENDED: Outcome.ENDED,
}


@dataclass(frozen=True, slots=True)
class Recorded:
    """What became of an observation, and the record as it is now (None if there is none)."""

    outcome: Outcome
    sandbox: Sandbox | None
    events: tuple[Event, ...] = ()


class Observations:
    """Writes what was seen."""

    def __init__(self, store: Store, *, metrics: Metrics) -> None:
        self._store = store
        self._metrics = metrics

    async def record(
        self,
        seen: Observation,
        *,
        finish: Callable[[Sandbox], Sandbox] | None = None,
        events: Sequence[Event] = (),
    ) -> Recorded:
        """Fold one observation into its record.

        `finish` is for whoever holds the claim: it is applied to the record after the observation,
        in the same transaction (to give the claim back, to set what only the act knows), and then
        the row is written even if the observation changed nothing. It may be called several times.
        `events` are published with the row.
        """
        for _ in range(RACES_MAX):
            sandbox = await self._find(seen)
            if sandbox is None:
                return Recorded(Outcome.UNKNOWN, None)
            try:
                return await self._absorb(sandbox, seen, finish, tuple(events))
            except VersionConflictError:
                continue
        raise VersionConflictError(instance_id=seen.instance_id)

    async def _absorb(
        self,
        sandbox: Sandbox,
        seen: Observation,
        finish: Callable[[Sandbox], Sandbox] | None,
        events: tuple[Event, ...],
    ) -> Recorded:
        result = absorb(sandbox, seen)
        changed = isinstance(result, Change)
        after = result.sandbox if isinstance(result, Change) else sandbox
        told = (*result.events, *events) if isinstance(result, Change) else events
        if finish is not None:
            after = finish(after)
        if changed or finish is not None or events:
            saved = await self._store.sandboxes.save(
                after, events=told, expect_version=sandbox.version
            )
            self._tell(told)
            return Recorded(Outcome.CHANGED, saved, told)
        if seen.is_verification:
            await self._store.sandboxes.mark_verified([sandbox.id], at=seen.at)
        assert not isinstance(result, Change)
        return Recorded(OUTCOMES[result.why], sandbox)

    async def _find(self, seen: Observation) -> Sandbox | None:
        """The record of this instance, or the one that its metadata names."""
        found = await self._store.sandboxes.find_by_instance(seen.instance_id)
        if found is None and seen.sandbox_id is not None:
            found = await self._store.sandboxes.find(seen.sandbox_id)
        return found

    def _tell(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, StateChanged):
                self._metrics.transitions.labels(
                    event.old_state.value, event.new_state.value, event.source
                ).inc()
                log.info(
                    "state_changed",
                    sandbox_id=event.sandbox_id,
                    old_state=event.old_state.value,
                    new_state=event.new_state.value,
                    reason=event.reason,
                    actor=event.actor,
                    source=event.source,
                )


def observe_event(
    event: LifecycleEvent, *, source: Source, received_at: datetime | None = None
) -> Observation:
    """What an entry of the provider's log says, whichever way it came."""
    seen = SIGHTINGS[event.kind]
    reason = None
    if event.kind is EventKind.KILLED:
        seen = KILL_REASONS.get(event.kill_reason or "", Seen.KILLED)
        reason = f"killed at the provider: {event.kill_reason or 'no reason given'}"
    return Observation(
        instance_id=event.instance_id,
        seen=seen,
        at=event.at,
        source=source,
        run_id=event.run_id,
        event_id=event.event_id,
        sandbox_id=None if event.tag is None else event.tag.sandbox_id,
        generation=None if event.tag is None else event.tag.generation,
        end_at=event.end_at,
        reason=reason,
        received_at=received_at,
    )


def observe_instance(instance: Instance, *, source: Source) -> Observation:
    """What a look or a list says of an instance that exists."""
    is_running = instance.state is InstanceState.RUNNING
    return Observation(
        instance_id=instance.instance_id,
        seen=Seen.RUNNING if is_running else Seen.PAUSED,
        at=instance.seen_at,
        source=source,
        run_id=instance.run_id,
        sandbox_id=None if instance.tag is None else instance.tag.sandbox_id,
        generation=None if instance.tag is None else instance.tag.generation,
        end_at=instance.end_at if is_running else None,
        url=instance.url,
    )
