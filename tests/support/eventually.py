"""Waiting for a level: a condition that becomes true and stays so, never a moment."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def eventually(
    condition: Callable[[], T | Awaitable[T]], *, within_s: float = 30, every_s: float = 0.02
) -> T:
    """Give the condition's value as soon as it is true; fail with the last value if it never is."""
    deadline = time.monotonic() + within_s
    while True:
        value = condition()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(
                f"still {value!r} after {within_s} s: {inspect.getsource(condition)}"
            )
        await asyncio.sleep(every_s)


def eventually_sync(
    condition: Callable[[], T], *, within_s: float = 30, every_s: float = 0.02
) -> T:
    """The same for tests that have no event loop."""
    deadline = time.monotonic() + within_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(
                f"still {value!r} after {within_s} s: {inspect.getsource(condition)}"
            )
        time.sleep(every_s)
