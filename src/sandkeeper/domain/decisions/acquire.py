"""Decide what a caller gets when it asks for the sandbox of a session."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.sessions.session import Session
from sandkeeper.domain.states import KilledReason, State


@dataclass(frozen=True, slots=True)
class Create:
    """Claim a sandbox from the pool or create one: there is none yet."""


@dataclass(frozen=True, slots=True)
class AwaitCreation:
    """Wait until the provider has answered the creation that is in progress."""


@dataclass(frozen=True, slots=True)
class Reuse:
    """Use the running sandbox after a health check."""


@dataclass(frozen=True, slots=True)
class WakeExisting:
    """Wake the sandbox, or join a wake: it is asleep or unreachable."""


@dataclass(frozen=True, slots=True)
class Replace:
    """Replace the instance through a wake: it ended unexpectedly."""


@dataclass(frozen=True, slots=True)
class StartOver:
    """Close the session and open another: the sandbox ended by policy, so the session is over."""


@dataclass(frozen=True, slots=True)
class RefuseAcquire:
    """Refuse the acquire: an immediate retry would fail in the same way."""

    reason: str


AcquireDecision = (
    Create | AwaitCreation | Reuse | WakeExisting | Replace | StartOver | RefuseAcquire
)


def decide_acquire(
    session: Session, sandbox: Sandbox | None, *, began_at: datetime
) -> AcquireDecision:
    """Decide what an acquire that began at `began_at` does with the session's sandbox."""
    if sandbox is None:
        return Create()
    match sandbox.state:
        case State.STARTING:
            return AwaitCreation()
        case State.RUNNING:
            return Reuse()
        case State.PAUSED | State.UNKNOWN:
            return WakeExisting()
        case _:
            return _decide_ended(session, sandbox, began_at)


def _decide_ended(session: Session, sandbox: Sandbox, began_at: datetime) -> AcquireDecision:
    has_failed = sandbox.last_end.killed_reason is KilledReason.CREATION_FAILED
    if has_failed and sandbox.state_since >= began_at:
        return RefuseAcquire(sandbox.reason)
    # It was idle or old enough: the session is over, not broken. Others may still use a shared one.
    if sandbox.state in (State.TERMINATED, State.EXPIRED) and not session.is_shared:
        return StartOver()
    return Replace()


def find_limit_reached(*, sessions_open: int, sessions_max: int | None) -> str | None:
    """Return why no further session may be opened, or None. Open sessions are always served."""
    if sessions_max is None or sessions_open < sessions_max:
        return None
    return f"{sessions_open} sessions are open, and {sessions_max} are allowed"
