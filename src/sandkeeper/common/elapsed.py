"""The time that has passed, by a clock that never goes back and does not stop with the machine."""

from __future__ import annotations

import sys
import time

if sys.platform == "win32":

    def now_s() -> float:
        """Return the seconds since some moment."""
        return time.monotonic()

else:
    # Unlike the monotonic clock, this one counts the time in which the machine was suspended.
    _CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

    def now_s() -> float:
        """Return the seconds since some moment."""
        return time.clock_gettime(_CLOCK)
