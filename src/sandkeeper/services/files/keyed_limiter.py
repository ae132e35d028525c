"""Turns: one at a time for each key, and so many at a time in all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class KeyedLimiter:
    """Bounds work of one process. A key without waiters is forgotten."""

    def __init__(self, concurrency: int) -> None:
        self._all = asyncio.Semaphore(concurrency)
        self._locks: dict[str, asyncio.Lock] = {}
        self._waiting: dict[str, int] = {}

    @asynccontextmanager
    async def slot(self, key: str) -> AsyncIterator[None]:
        """Wait for the key's turn, then for one of all turns."""
        lock = self._locks.setdefault(key, asyncio.Lock())
        self._waiting[key] = self._waiting.get(key, 0) + 1
        try:
            async with lock, self._all:
                yield
        finally:
            self._waiting[key] -= 1
            if not self._waiting[key]:
                del self._waiting[key], self._locks[key]
