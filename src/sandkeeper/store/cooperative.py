"""Let other tasks of the event loop run while a large result is processed.

Turning a row into a record costs about ten microseconds. A page of five hundred at once would delay
every request of that moment for longer than a status response may take.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Final, TypeVar

TURN: Final = 20
"""Rows per turn, about a millisecond of work. Higher delays requests; lower costs more turns."""

Row = TypeVar("Row")


async def yielding(rows: Iterable[Row]) -> AsyncIterator[Row]:
    """Yield the given rows, and let other tasks run after every few of them."""
    for number, row in enumerate(rows, 1):
        yield row
        if number % TURN == 0:
            await asyncio.sleep(0)
