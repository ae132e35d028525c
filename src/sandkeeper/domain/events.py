"""The published events. Each is written to the log in the same transaction as the row it is about.

The log is the audit trail and the source of the live streams and of outgoing notices: nothing is
announced that was not committed.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime
from enum import Enum
from typing import Any, ClassVar

from sandkeeper.domain.owner import Owner
from sandkeeper.domain.states import KilledReason, State


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened to one sandbox, and who caused it."""

    type: ClassVar[str] = "event"

    sandbox_id: str
    owner: Owner
    at: datetime
    actor: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxCreated(Event):
    """A record was created, or a new generation of it (``recreated``)."""

    type: ClassVar[str] = "sandbox.created"

    generation: int
    recreated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StateChanged(Event):
    """One transition of the table. ``lag_s`` is how long after its due time it came.

    At the end of a run, ``idle_s`` is the time since its last use, and ``unused`` is True for a
    warm-up that was never used.
    """

    type: ClassVar[str] = "sandbox.state_changed"

    old_state: State
    new_state: State
    source: str
    instance_id: str | None = None
    lag_s: float | None = None
    idle_s: float | None = None
    unused: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EndExplained(Event):
    """The cause of an end that a check had only found. No transition: the instance ended once."""

    type: ClassVar[str] = "sandbox.end_explained"

    state: State
    killed_reason: KilledReason


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceAdopted(Event):
    """An instance whose creation was never acknowledged was found again by its metadata."""

    type: ClassVar[str] = "sandbox.instance_adopted"

    instance_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxReady(Event):
    """The app inside started or stopped answering on its port."""

    type: ClassVar[str] = "sandbox.ready"

    ready: bool
    url: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxExtended(Event):
    """The end of its lifetime was moved."""

    type: ClassVar[str] = "sandbox.extended"

    expires_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseAbandoned(Event):
    """A pause was decided and then abandoned because the sandbox became active."""

    type: ClassVar[str] = "sandbox.pause_abandoned"


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationFailed(Event):
    """An operation at the provider failed."""

    type: ClassVar[str] = "sandbox.operation_failed"

    operation: str
    code: str
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeProgressed(Event):
    """A wake reached its next step."""

    type: ClassVar[str] = "sandbox.wake_progressed"

    wake_id: str
    step: str
    status: str
    elapsed_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesCaptured(Event):
    """A capture found changes, and ``files_version`` is in force since.

    ``unreadable`` names a few of the files that could not be read.
    """

    type: ClassVar[str] = "sandbox.files_captured"

    files_version: int
    changed: int
    removed: int
    unreadable_count: int
    unreadable: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureFailed(Event):
    """A capture in the background failed; once for each cause until one succeeds."""

    type: ClassVar[str] = "sandbox.capture_failed"

    code: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MismatchReported(Event):
    """A page reported that what it showed was wrong."""

    type: ClassVar[str] = "sandbox.mismatch_reported"

    shown: str
    found: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerChanged(Event):
    """A warm sandbox left its pool and now belongs to ``owner``."""

    type: ClassVar[str] = "sandbox.owner_changed"

    before: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyChanged(Event):
    """The sandbox's own policy was changed."""

    type: ClassVar[str] = "sandbox.policy_changed"

    changes: dict[str, Any]


_COMMON = frozenset({"sandbox_id", "owner", "at", "actor", "reason"})


def render_data(event: Event) -> dict[str, Any]:
    """Return the event's own fields as plain JSON values, without the fields every event has."""
    return {
        item.name: _plain(getattr(event, item.name))
        for item in fields(event)
        if item.name not in _COMMON
    }


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Enum):
        return value.value
    return value
