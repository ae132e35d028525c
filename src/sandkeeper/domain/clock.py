"""Instants: their stored precision, and how far another machine's clock is trusted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final


def to_ms(at: datetime) -> datetime:
    """Truncate an instant to the millisecond, the precision of the store.

    Comparing a finer instant with a stored one would make an event newer than itself.
    """
    at = at.astimezone(UTC)
    return at.replace(microsecond=at.microsecond // 1000 * 1000)


SKEW_MAX: Final = timedelta(seconds=2)
"""The difference between two clocks that is ordinary. A `Date` header is only exact to a second; a
larger difference is shown to the operator, and the provider's times are corrected by it.
"""

AHEAD_MAX: Final = timedelta(minutes=1)
"""How far an event's time may be ahead of its arrival. Lower treats an ordinary difference between
two clocks as an error; higher lets one event block later ones for as long.
"""


def bound_event_time(at: datetime, received_at: datetime) -> datetime:
    """Return the event's own time, or its arrival time if the event is from the future."""
    return received_at if at - received_at > AHEAD_MAX else at
