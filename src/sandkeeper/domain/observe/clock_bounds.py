"""Bound the times of a record by our own clock: nothing happened in the future.

An event says when something became true, by the provider's clock. That time counts up to the moment
at which the event reached us. A record may hold a later time all the same: it was written by a
clock that was wrong then, or by an older version.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from sandkeeper.domain.clock import AHEAD_MAX, SKEW_MAX
from sandkeeper.domain.sandbox import Sandbox


def has_future_time(sandbox: Sandbox, now: datetime) -> bool:
    """Return True when the record holds a time that cannot be true yet."""
    return bool(_find_future_times(sandbox, now + AHEAD_MAX))


def bound_times(sandbox: Sandbox, *, to: datetime, now: datetime) -> Sandbox:
    """Return the record with every time that lies after ``now`` set back to ``to``."""
    changes: dict[str, Any] = dict.fromkeys(_find_future_times(sandbox, now + SKEW_MAX), to)
    if "run_started_at" in changes and sandbox.run.expires_at is not None:
        lifetime_s = sandbox.policy.lifetime_s
        changes["expires_at"] = None if lifetime_s is None else to + timedelta(seconds=lifetime_s)
    return sandbox.evolve(**changes) if changes else sandbox


def _find_future_times(sandbox: Sandbox, limit: datetime) -> list[str]:
    values = _read_provider_times(sandbox).items()
    late = [name for name, at in values if at is not None and at > limit]
    last_event_at = sandbox.sightings.last_event_at
    # The time of an event only orders events, and may be a little ahead.
    return (
        [*late, "last_event_at"]
        if last_event_at is not None and last_event_at > limit + AHEAD_MAX
        else late
    )


def _read_provider_times(sandbox: Sandbox) -> dict[str, datetime | None]:
    """Return the fields of a record that copy an observation's time."""
    return {
        "state_since": sandbox.state_since,
        "run_started_at": sandbox.run.run_started_at,
        "end_as_of": sandbox.run.end_as_of,
        "killed_at": sandbox.last_end.killed_at,
        "observed_at": sandbox.sightings.observed_at,
        "state_as_of": sandbox.sightings.state_as_of,
        "state_received_at": sandbox.sightings.state_received_at,
    }
