"""What a wake has to do. One verb for every state: whoever wants it to run says ``wake``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sandkeeper.domain.states import State

if TYPE_CHECKING:
    from sandkeeper.domain.sandbox import Sandbox


@dataclass(frozen=True, slots=True)
class Nothing:
    """It runs already."""


@dataclass(frozen=True, slots=True)
class Await:
    """A creation is under way; join it."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Connect to the instance. If it is gone, the record becomes KILLED: decide again."""

    instance_id: str


@dataclass(frozen=True, slots=True)
class Recreate:
    """Make a new instance and put the kept files into it."""

    reason: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """It must not be woken."""

    reason: str


WakeDecision = Nothing | Await | Resume | Recreate | Refuse


def decide_wake(sandbox: Sandbox) -> WakeDecision:
    """What brings this sandbox to RUNNING.

    UNKNOWN is resumed and never recreated: unreachable is not gone. Only the provider's own "not
    found" turns it into KILLED, and then the next decision recreates it.
    """
    if sandbox.state is State.RUNNING:
        return Nothing()
    if sandbox.state is State.STARTING:
        return Await()
    if sandbox.state.is_ended:
        return Recreate(sandbox.killed_reason.value if sandbox.killed_reason else "ended")
    if sandbox.instance_id is None:
        return Recreate("it never had an instance")
    return Resume(sandbox.instance_id)
