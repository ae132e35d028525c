"""Cancellations that a library lost.

A library may return, or raise something else, after its task was cancelled: anyio's `connect_tcp`
does when the connection is made at the same moment. A loop that waits for the cancellation would
then run for ever, and so would what waits for the loop.
"""

from __future__ import annotations

import asyncio


def count_cancellations() -> int:
    """Return how often the running task was cancelled; compare it before and after a call."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()
