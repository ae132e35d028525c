"""What a caller gets who asks for the sandbox of a session."""

from __future__ import annotations

from dataclasses import dataclass

from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import State


@dataclass(frozen=True, slots=True)
class Reuse:
    """It runs; use it after a health check."""


@dataclass(frozen=True, slots=True)
class WakeExisting:
    """It is asleep, starting or unreachable: wake it, or join who does."""


@dataclass(frozen=True, slots=True)
class Replace:
    """It is dead: make a new one in its place."""

    reason: str


@dataclass(frozen=True, slots=True)
class Create:
    """There is none."""


@dataclass(frozen=True, slots=True)
class RefuseAcquire:
    """The caller has to wait or give something back."""

    reason: str


AcquireDecision = Reuse | WakeExisting | Replace | Create | RefuseAcquire


def decide_acquire(
    sandbox: Sandbox | None,
    *,
    sessions_open: int,
    sessions_max: int | None,
    is_healthy: bool | None = None,
) -> AcquireDecision:
    """Decides before the health check (``is_healthy`` None) and once more with its result.

    The limit refuses only what would add a session: a known one is always served.
    """
    if sandbox is None:
        if sessions_max is not None and sessions_open >= sessions_max:
            return RefuseAcquire(
                f"{sessions_open} sessions are open, and {sessions_max} are allowed"
            )
        return Create()
    if sandbox.state.is_ended:
        return Replace(sandbox.killed_reason.value if sandbox.killed_reason else "ended")
    if sandbox.state is not State.RUNNING:
        return WakeExisting()
    if is_healthy is False:
        return Replace("the health check failed")
    return Reuse()
