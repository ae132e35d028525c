"""Records of sandboxes for tests that need no provider: `record()`, and times after `T0`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from sandkeeper.domain.owner import Owner
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import State

#: With milliseconds, which the databases keep, and without microseconds, which they do not.
T0 = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)


def at(seconds: float) -> datetime:
    """Return the moment so many seconds after `T0`."""
    return T0 + timedelta(seconds=seconds)


def new_record(name: str = "", **fields: Any) -> Sandbox:
    """Return a record whose creation has just begun; a `name` makes its id and owner unique."""
    return Sandbox(
        id=f"sb-{name}" if name else "sb",
        owner=Owner.project(name or "p"),
        provider="e2b",
        created_at=T0,
        updated_at=T0,
        state_since=T0,
    ).evolve(**fields)


def record(state: State = State.RUNNING, **fields: Any) -> Sandbox:
    """Return a record with an instance in this state; a running one has run since `T0`."""
    plain = new_record(state=state, instance_id="i")
    if state is State.RUNNING:
        plain = plain.evolve(run_started_at=T0, expires_at=at(3600))
    return plain.evolve(**fields)
