"""What an outside source reports: about which instance and run, seen when, by which source."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from sandkeeper.domain.clock import bound_event_time, to_ms
from sandkeeper.domain.owner import PROVIDER_ACTOR
from sandkeeper.domain.states import KilledReason, State


class Source(StrEnum):
    """How an observation reached us."""

    WEBHOOK = "webhook"
    """Pushed by the provider."""
    CATCH_UP = "catch_up"
    """Read from the provider's event log."""
    GET = "get"
    """We asked about this one instance."""
    LIST = "list"
    """It was in a list, or was missing there."""
    REPLY = "reply"
    """The response to our own operation."""


class ObservedStatus(StrEnum):
    """What was seen."""

    CREATED = "created"
    RUNNING = "running"
    PAUSED = "paused"
    KILLED = "killed"
    EXPIRED = "expired"
    TERMINATED = "terminated"
    GONE = "gone"
    """Definitive: the provider does not have the instance."""
    UNREACHABLE = "unreachable"
    """The provider could not be reached, retries included."""
    UPDATED = "updated"
    """The instance's end was moved; says nothing about its state."""
    CHECKPOINTED = "checkpointed"
    """A snapshot was taken; says nothing about its state."""


STATE_OF: Final[dict[ObservedStatus, State | None]] = {
    ObservedStatus.CREATED: None,  # The record was STARTING before the provider was called.
    ObservedStatus.RUNNING: State.RUNNING,
    ObservedStatus.PAUSED: State.PAUSED,
    ObservedStatus.KILLED: State.KILLED,
    ObservedStatus.EXPIRED: State.EXPIRED,
    ObservedStatus.TERMINATED: State.TERMINATED,
    ObservedStatus.GONE: State.KILLED,
    ObservedStatus.UNREACHABLE: State.UNKNOWN,
    ObservedStatus.UPDATED: None,
    ObservedStatus.CHECKPOINTED: None,
}
"""The state that each status means; None where it says nothing about the state."""

KILLED_REASON_OF: Final[dict[ObservedStatus, KilledReason]] = {
    ObservedStatus.KILLED: KilledReason.MANUAL,
    ObservedStatus.EXPIRED: KilledReason.EXPIRED,
    ObservedStatus.TERMINATED: KilledReason.TERMINATED,
    ObservedStatus.GONE: KilledReason.NOT_FOUND,
}

RANK_OF: Final[dict[ObservedStatus, int]] = {
    ObservedStatus.CREATED: 0,
    ObservedStatus.UPDATED: 1,
    ObservedStatus.CHECKPOINTED: 1,
    ObservedStatus.RUNNING: 2,
    ObservedStatus.UNREACHABLE: 3,
    ObservedStatus.PAUSED: 4,
    ObservedStatus.GONE: 5,
    ObservedStatus.TERMINATED: 6,
    ObservedStatus.EXPIRED: 7,
    ObservedStatus.KILLED: 8,
}
"""Decides the order of two observations with the same time."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One fact about one instance.

    ``at`` is the provider's time for an event (never later than ``received_at``, its arrival by our
    clock; ``event_at`` is that time as it was given, and only orders events), the time at which the
    question was *asked* for a check or a list (the answer is at least that fresh), and the time of
    the answer for our own operation. ``asked_version`` is the version that the record had before
    the question was asked: if the record still has it, nothing came in between. ``sandbox_id`` and
    ``generation`` come from the instance's metadata, when it carries ours. ``due_at`` is when our
    own operation was due: the lag of the change counts from there.
    """

    instance_id: str
    seen: ObservedStatus
    at: datetime
    source: Source
    run_id: str | None = None
    event_id: str | None = None
    sandbox_id: str | None = None
    generation: int | None = None
    end_at: datetime | None = None
    url: str | None = None
    reason: str | None = None
    actor: str = PROVIDER_ACTOR
    killed_reason: KilledReason | None = None
    received_at: datetime | None = None
    event_at: datetime | None = None
    due_at: datetime | None = None
    asked_version: int | None = None
    isolation: str | None = None
    vcpus: int | None = None
    memory_mb: int | None = None

    def __post_init__(self) -> None:
        for name in ("at", "end_at", "received_at"):
            at = getattr(self, name)
            if at is not None:
                object.__setattr__(self, name, to_ms(at))
        if self.is_event:
            self._bound_by_arrival()

    def _bound_by_arrival(self) -> None:
        given = self.event_at or self.at
        if self.received_at is not None:
            given = bound_event_time(given, self.received_at)
            object.__setattr__(self, "at", min(self.at, self.received_at))
        object.__setattr__(self, "event_at", given)

    @property
    def arrived_at(self) -> datetime:
        """Return its place in the order of our own clock: its arrival, or when we asked."""
        return self.received_at or self.at

    @property
    def is_event(self) -> bool:
        """Return True for an entry of the provider's log, which says *when* it happened."""
        return self.source in (Source.WEBHOOK, Source.CATCH_UP)

    @property
    def is_verification(self) -> bool:
        """Return True when the provider itself was asked and answered."""
        return not self.is_event and self.seen is not ObservedStatus.UNREACHABLE

    @property
    def state(self) -> State | None:
        """Return the state that this observation means, if it means one."""
        return STATE_OF[self.seen]
