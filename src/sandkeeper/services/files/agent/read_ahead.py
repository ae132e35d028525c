"""Working side by side: the next item beside the last, and several pieces of work at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def read_ahead(items: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
    """Yield every item in turn; one is got ahead."""

    async def get_next() -> list[T]:
        try:
            return [await anext(items)]
        except StopAsyncIteration:
            return []

    coming = asyncio.create_task(get_next())
    try:
        while found := await coming:
            coming = asyncio.create_task(get_next())
            yield found[0]
    finally:
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)
        await items.aclose()


async def run_together(*work: Coroutine[Any, Any, T]) -> list[T]:
    """Return all results; the first failure ends the others, and is raised when they are over."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]
