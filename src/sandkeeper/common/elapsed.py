"""The time that has passed, by a clock that never goes back and does not stop with the machine."""

from __future__ import annotations

import time

# Unlike the monotonic clock, this one counts the time in which the machine was suspended.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now_s() -> float:
    """Return the seconds since some moment."""
    return time.clock_gettime(_CLOCK)
