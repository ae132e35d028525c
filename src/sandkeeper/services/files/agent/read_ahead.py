"""Getting the next while the caller is at work on the last."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import TypeVar

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
