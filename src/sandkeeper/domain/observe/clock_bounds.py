"""Bound times from another machine's clock by our own: nothing happened in the future.

An event says when something became true, by the provider's clock. That time is accepted up to
``AHEAD_MAX`` past the moment at which the event reached us; beyond that, the arrival time is used.
A record that holds such a time (an older version accepted every date) is corrected by the next
answer to a question that was asked after it had been written.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from sandkeeper.domain.clock import AHEAD_MAX
from sandkeeper.domain.sandbox import Sandbox


def has_future_time(sandbox: Sandbox, now: datetime) -> bool:
    """Return True when the record holds a time that cannot be true yet."""
    return bool(_find_future_times(sandbox, now))


def bound_times(sandbox: Sandbox, now: datetime) -> Sandbox:
    """Return the record with every future time set back to ``now``."""
    changes: dict[str, Any] = dict.fromkeys(_find_future_times(sandbox, now), now)
    if "run_started_at" in changes and sandbox.run.expires_at is not None:
        lifetime_s = sandbox.policy.lifetime_s
        changes["expires_at"] = None if lifetime_s is None else now + timedelta(seconds=lifetime_s)
    return sandbox.evolve(**changes) if changes else sandbox


def _find_future_times(sandbox: Sandbox, now: datetime) -> list[str]:
    limit = now + AHEAD_MAX
    values = _read_provider_times(sandbox).items()
    return [name for name, at in values if at is not None and at > limit]


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
        "edge_at": sandbox.sightings.edge_at,
    }
