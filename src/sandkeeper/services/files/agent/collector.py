"""A capture under way inside: its parcels are read here while the script makes the next ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final

import e2b

from sandkeeper.services.files.agent.client import WINDOW, AgentClient
from sandkeeper.services.files.agent.read_ahead import read_ahead
from sandkeeper.services.files.agent.replies import (
    Collected,
    Piece,
    SentFile,
    read_collected,
    read_parcel,
)

LAST_WORDS_S: Final = 5

Parcel = list[SentFile | Piece]


class Collector:
    """The script that sends what changed. `answer` is what it said at its end."""

    def __init__(self, remote: AgentClient, transfers: asyncio.Semaphore) -> None:
        self._remote = remote
        self._transfers = transfers
        self._announced = 0
        self._taken = 0
        self._told = 0
        self._moved = asyncio.Event()
        self._handle: e2b.AsyncCommandHandle[str] | None = None
        self._answer: asyncio.Task[dict[str, Any]] | None = None
        self.answer: Collected | None = None

    async def begin(self, known: Mapping[str, tuple[str, str]], *, with_secrets: bool) -> None:
        """Start it."""
        self._handle = await self._remote.begin_capture(
            known, with_secrets=with_secrets, on_output=self._hear
        )
        self._answer = asyncio.create_task(self._remote.receive(self._handle))
        self._answer.add_done_callback(lambda _: self._moved.set())

    async def read_parcels(self) -> AsyncGenerator[Parcel, None]:
        """Yield every parcel in turn; the next one is fetched while the caller is at work."""
        assert self._answer is not None
        if await self._wait():
            async with self._transfers, aclosing(read_ahead(self._fetch())) as parcels:
                async for parcel in parcels:
                    yield parcel
        found = await self._answer
        self._remote.check_limits(is_too_long=found["too_many"], total_bytes=found["bytes"])
        self.answer = await asyncio.to_thread(read_collected, found)
        yield await asyncio.to_thread(read_parcel, self.answer.rest)

    async def end(self) -> None:
        """Stop it, wherever it is, and leave nothing of it."""
        if self._answer is None or self._handle is None:
            return
        if not self._answer.done():
            await self._remote.stop(self._handle)
            await asyncio.wait({self._answer}, timeout=LAST_WORDS_S)
            self._answer.cancel()
            await self._remote.forget(self._remote.folder)
        await asyncio.gather(self._answer, return_exceptions=True)

    async def _fetch(self) -> AsyncGenerator[Parcel, None]:
        while await self._wait():
            raw = await self._remote.download(self._taken)
            self._taken += 1
            if self._taken - self._told >= WINDOW // 2:
                await self._acknowledge()
            yield await asyncio.to_thread(read_parcel, raw)

    async def _wait(self) -> bool:
        """Wait until there is a parcel; False at the end of the script."""
        assert self._answer is not None
        while True:
            self._moved.clear()
            if self._announced > self._taken:
                return True
            if self._answer.done():
                return False
            await self._acknowledge()
            async with self._remote.waiting():
                await self._moved.wait()

    async def _acknowledge(self) -> None:
        """Tell the script what it may remove."""
        assert self._handle is not None
        if self._told < self._taken:
            self._told = self._taken
            await self._remote.send(self._handle, str(self._taken))

    def _hear(self, said: str) -> None:
        self._remote.hear(said)
        self._announced += said.count(".")
        self._moved.set()


@asynccontextmanager
async def collecting(
    remote: AgentClient,
    transfers: asyncio.Semaphore,
    known: Mapping[str, tuple[str, str]],
    *,
    with_secrets: bool,
) -> AsyncIterator[Collector]:
    """Run a script that sends what is not as it is known; it does not outlive the block."""
    collector = Collector(remote, transfers)
    try:
        await collector.begin(known, with_secrets=with_secrets)
        yield collector
    finally:
        await asyncio.shield(collector.end())
