"""Clients of several replicas: they write, read live streams, and go to the next replica at a cut.

They do what a proxy and a browser do: a request that was cut off is sent again, with the same
idempotency key, to the next replica; a stream comes back with the last id that it has read.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

GIVE_UP_S: Final = 90.0
"""A request that no replica has answered by then has failed."""
PAUSE_S: Final = 0.05
"""Between two attempts: longer than it takes to find that a port is closed."""


class Replicas:
    """The addresses of the replicas, one after the other."""

    def __init__(self, key: str) -> None:
        self.urls: list[str] = []
        self._key = key
        self._turn = 0

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._key}"}

    def next(self) -> str:
        self._turn += 1
        return self.urls[self._turn % len(self.urls)]


@dataclass
class Writer:
    """Pauses and wakes one sandbox in turn, and counts what became of each request."""

    replicas: Replicas
    client: httpx.AsyncClient
    project: str
    done: int = 0
    repeated: int = 0
    failed: list[str] = field(default_factory=list)
    is_idle: bool = False
    _stopping: bool = False

    async def run(self) -> None:
        while not self._stopping:
            for verb in ("pause", "wake?wait=60"):
                await self.write(verb)
        self.is_idle = True

    def stop(self) -> None:
        """Begin no other request after the next wake."""
        self._stopping = True

    async def write(self, verb: str) -> None:
        path = f"/api/sandboxes/{self.project}/{verb}"
        headers = {**self.replicas.headers, "Idempotency-Key": uuid.uuid4().hex}
        try:
            async with asyncio.timeout(GIVE_UP_S):
                answer = await self._ask(path, headers)
        except TimeoutError:
            self.failed.append(f"{path}: no replica answered")
            return
        if answer.is_success:
            self.done += 1
        else:
            self.failed.append(f"{path}: {answer.status_code} {answer.text}")

    async def _ask(self, path: str, headers: dict[str, str]) -> httpx.Response:
        while True:
            try:
                return await self.client.post(self.replicas.next() + path, headers=headers)
            except httpx.TransportError:
                self.repeated += 1
                await asyncio.sleep(PAUSE_S)


@dataclass
class Reader:
    """Reads the fleet's stream, and remembers the number of every event."""

    replicas: Replicas
    last: int
    seen: set[int] = field(default_factory=set)
    opened: int = 0
    url: str = ""
    """The replica that it reads from now."""

    async def run(self) -> None:
        while True:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await self._read(self.replicas.next())
            self.url = ""
            await asyncio.sleep(PAUSE_S)

    async def _read(self, url: str) -> None:
        place = urlsplit(url)
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        try:
            given = {"Host": place.netloc, **self.replicas.headers, "Last-Event-ID": str(self.last)}
            head = "".join(f"{name}: {value}\r\n" for name, value in given.items())
            writer.write(f"GET /api/fleet/events HTTP/1.1\r\n{head}\r\n".encode())
            while line := await reader.readline():
                if line.startswith(b"HTTP/1.1 200"):
                    self.url, self.opened = url, self.opened + 1
                if line.startswith(b"id: "):
                    self.last = int(line[4:])
                    self.seen.add(self.last)
        finally:
            writer.close()


@dataclass
class Load:
    """All clients."""

    readers: list[Reader]
    writers: list[Writer]

    @property
    def done(self) -> int:
        return sum(writer.done for writer in self.writers)

    @property
    def failed(self) -> list[str]:
        return [words for writer in self.writers for words in writer.failed]

    def count_at(self, url: str) -> int:
        """Return how many streams are open at this replica."""
        return sum(reader.url == url for reader in self.readers)

    def describe(self) -> dict[str, Any]:
        return {
            "writes": self.done,
            "sent again": sum(writer.repeated for writer in self.writers),
            "failed": len(self.failed),
            "streams": len(self.readers),
            "streams opened": sum(reader.opened for reader in self.readers),
            "events": max((len(reader.seen) for reader in self.readers), default=0),
        }


@asynccontextmanager
async def under_load(
    replicas: Replicas, projects: list[str], *, streams: int, since: int
) -> AsyncIterator[Load]:
    """Write and read in the block."""
    async with httpx.AsyncClient(timeout=GIVE_UP_S) as client:
        readers = [Reader(replicas, since) for _ in range(streams)]
        writers = [Writer(replicas, client, project) for project in projects]
        tasks = [asyncio.create_task(one.run()) for one in (*readers, *writers)]
        try:
            yield Load(readers, writers)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
