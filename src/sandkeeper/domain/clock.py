"""Instants: as the store keeps them, and as far as another clock is believed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final


def to_ms(at: datetime) -> datetime:
    """Cuts an instant to the millisecond, which is what the store keeps.

    Comparing a finer instant with a stored one would make an event newer than itself.
    """
    at = at.astimezone(UTC)
    return at.replace(microsecond=at.microsecond // 1000 * 1000)


AHEAD_MAX: Final = timedelta(minutes=1)
"""How far an event's time may be ahead of its arrival. Shorter takes an ordinary difference of two
clocks for a mistake; longer lets one event keep later ones from being believed for as long."""


def bound_event_time(at: datetime, received_at: datetime) -> datetime:
    """The event's own time, or that of its arrival if the event claims to be from the future."""
    return received_at if at - received_at > AHEAD_MAX else at
