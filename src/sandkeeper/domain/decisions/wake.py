"""Decide what a wake has to do, and record the wakes that were requested.

There is one verb for every state: to make a sandbox run, call ``wake``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from sandkeeper.domain.decisions.priority import Overflow, Priority
from sandkeeper.domain.errors import (
    ProviderAmbiguousError,
    ProviderUnavailableError,
    ResumeFailedError,
    SandkeeperError,
)
from sandkeeper.domain.receipt import Receipt, StepName, WakeMethod
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import State

ATTEMPTS_MAX = 2
"""How often a wake is tried before it fails, unless a caller still waits for it."""

REBOOT_AFTER_S = 120.0
"""After so long without a resume, a reboot may be tried for a reason that the provider did not
name. Lower loses memory to an outage; higher keeps a user from a disk that is fine.
"""

NO_ANSWER_STATUSES = frozenset({429, 502, 503})
"""What a proxy or a busy provider replies: nothing was tried, so it says nothing about memory."""


@dataclass(frozen=True, slots=True)
class AlreadyRunning:
    """Do nothing: it runs already."""


@dataclass(frozen=True, slots=True)
class JoinCreation:
    """Join the creation that is in progress."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Connect to the instance. If it is gone, the record becomes KILLED: decide again."""

    instance_id: str


@dataclass(frozen=True, slots=True)
class Recreate:
    """Create a new instance and restore the saved files into it."""

    reason: str


@dataclass(frozen=True, slots=True)
class RefuseWake:
    """Refuse the wake."""

    reason: str


WakeDecision = AlreadyRunning | JoinCreation | Resume | Recreate | RefuseWake


def decide_wake(sandbox: Sandbox) -> WakeDecision:
    """Return what brings this sandbox to RUNNING.

    UNKNOWN is resumed and never recreated: unreachable is not gone. Only the provider's own "not
    found" turns it into KILLED, and then the next decision recreates it.
    """
    if sandbox.state is State.RUNNING:
        return AlreadyRunning()
    if sandbox.state is State.STARTING:
        return JoinCreation()
    if sandbox.state.is_ended:
        return Recreate(
            sandbox.last_end.killed_reason.value if sandbox.last_end.killed_reason else "ended"
        )
    if sandbox.instance_id is None:
        return Recreate("it never had an instance")
    return Resume(sandbox.instance_id)


def may_reboot(error: SandkeeperError, *, waited_s: float) -> bool:
    """Return whether a resume that failed like this may be followed by a reboot.

    A reboot costs the memory. So the provider itself must have said that the resume failed; or the
    wake has gone on for minutes, and this failure is not one where nothing was tried (a refused
    connection, 429, 502, 503).
    """
    if isinstance(error, ResumeFailedError):
        return True
    if waited_s < REBOOT_AFTER_S:
        return False
    if isinstance(error, ProviderAmbiguousError):
        return error.fields.get("status") not in NO_ANSWER_STATUSES
    if not isinstance(error, ProviderUnavailableError):
        return False
    status = error.fields.get("status")
    if status is None:
        return bool(error.fields.get("timed_out"))
    return status not in NO_ANSWER_STATUSES


class WakeStatus(StrEnum):
    """The status of a wake."""

    RUNNING = "running"
    """In progress, or waiting for a replica that resumes it. → SUCCEEDED, FAILED"""
    SUCCEEDED = "succeeded"
    FAILED = "failed"


class StepOutcome(StrEnum):
    """How a step ended; a crash leaves ``running``, and the step is repeated."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class WakeStep:
    """One step of a wake, with its time."""

    name: StepName
    started_at: datetime
    attempt: int = 1
    outcome: StepOutcome = StepOutcome.RUNNING
    took_ms: int | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Wake:
    """One wake, from the first caller to its end; later callers join it.

    ``due_at`` is the end of the driver's lease: after it, any replica may continue the wake.
    ``wanted_until`` is how long its most patient caller waits. ``starts_over`` is set by a caller
    that joined it while the sandbox was no longer coming up. ``priority`` and ``overflow`` are the
    first caller's, for when not all can run.
    """

    id: str
    sandbox_id: str
    actor: str
    started_at: datetime
    updated_at: datetime
    due_at: datetime
    status: WakeStatus = WakeStatus.RUNNING
    method: WakeMethod | None = None
    attempt: int = 1
    may_recreate: bool = True
    wanted_until: datetime | None = None
    starts_over: bool = False
    priority: Priority | None = None
    overflow: Overflow | None = None
    steps: tuple[WakeStep, ...] = ()
    receipt: Receipt | None = None
    error_code: str | None = None
    error: str | None = None
    finished_at: datetime | None = None

    @property
    def is_over(self) -> bool:
        """Return True when nothing more will happen."""
        return self.finished_at is not None

    @property
    def is_waiting_for_port(self) -> bool:
        """Return True when the sandbox was brought up, and only its app has to answer."""
        return bool(self.steps) and self.steps[-1].name is StepName.WAITING_FOR_PORT

    def evolve(self, **changes: object) -> Wake:
        """Return a copy with some fields changed."""
        return replace(self, **changes)  # type: ignore[arg-type]  # Fields vary in type.
