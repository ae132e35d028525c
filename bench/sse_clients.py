"""Many readers of live streams in one separate process, on bare sockets.

`python -m bench.sse_clients` takes a port, a count and an HTTP request. It opens that many streams
and prints a line when they are open. It then answers each word on its input with a line: how many
readers have received a block that contains this word, and when the last one did, on the clock that
all processes share.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import cast

import uvloop

OPENED_AT_ONCE = 200
OPEN_WITHIN_S = 120
HEARD_WITHIN_S = 20.0


class Listener(asyncio.Protocol):
    """One reader; it records when the expected word arrived."""

    def __init__(self, crowd: Crowd) -> None:
        self._crowd = crowd
        self._tail = b""
        self._is_open = False
        self._heard = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's, though they do the same.
        cast("asyncio.Transport", transport).write(self._crowd.request)

    def data_received(self, data: bytes) -> None:
        if not self._is_open:
            self._is_open = True
            self._crowd.opened(is_success=data[9:12] == b"200")
        word = self._crowd.word
        # A word may be split between two reads.
        if word and self._heard != word and word in self._tail + data:
            self._heard = word
            self._crowd.heard()
        self._tail = data[-64:]

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._crowd.lost += 1


class Crowd:
    """All readers of this process."""

    def __init__(self, *, port: int, count: int, request: bytes) -> None:
        self.request = request
        self.word = b""
        self.lost = 0
        self._port = port
        self._count = count
        self._open = 0
        self._refused = 0
        self._got = 0
        self._last_at = 0.0
        self._change = asyncio.Event()

    def opened(self, *, is_success: bool) -> None:
        self._open += is_success
        self._refused += not is_success
        self._change.set()

    def heard(self) -> None:
        self._got += 1
        self._last_at = time.monotonic()
        self._change.set()

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        opening = 0
        while opening < self._count:
            wanted = min(OPENED_AT_ONCE, self._count - opening)
            opening += wanted
            await asyncio.gather(
                *(
                    loop.create_connection(lambda: Listener(self), "127.0.0.1", self._port)
                    for _ in range(wanted)
                )
            )
            await self._wait(lambda: self._open + self._refused, opening, OPEN_WITHIN_S)
        say({"open": self._open, "refused": self._refused})

    async def expect(self, word: str) -> None:
        """Wait for a word at every reader, and print who received it."""
        self._got, self.word = 0, word.encode()
        say({"waiting": True})
        with contextlib.suppress(TimeoutError):
            await self._wait(lambda: self._got + self.lost, self._open, HEARD_WITHIN_S)
        say({"got": self._got, "last_at": self._last_at, "lost": self.lost})

    async def _wait(self, count: Callable[[], int], wanted: int, within_s: float) -> None:
        async with asyncio.timeout(within_s):
            while count() < wanted:
                self._change.clear()
                await self._change.wait()


def say(what: dict[str, object]) -> None:
    print(json.dumps(what), flush=True)


class Listeners:
    """The parent's control of the reader process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.opened = self._read()

    def expect(self, word: str) -> None:
        """Make every reader wait for a word; return when they do."""
        assert self._process.stdin is not None
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()
        self._read()

    def collect(self) -> dict[str, float]:
        """Return how many readers received the word, and when the last one did."""
        return self._read()

    def _read(self) -> dict[str, float]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the readers of live streams ended")
        said: dict[str, float] = json.loads(line)
        return said


@contextlib.contextmanager
def listening(*, port: int, count: int, request: str) -> Iterator[Listeners]:
    """Keep this many streams open for the duration of a block."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.sse_clients", str(port), str(count), request],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield Listeners(process)
    finally:
        process.kill()
        process.communicate()


async def serve(crowd: Crowd) -> None:
    await crowd.open()
    loop = asyncio.get_running_loop()
    while word := (await loop.run_in_executor(None, sys.stdin.readline)).strip():
        await crowd.expect(word)


def main() -> None:
    port, count, request = sys.argv[1:]
    uvloop.run(_main(int(port), int(count), request.encode("latin-1")))


async def _main(port: int, count: int, request: bytes) -> None:
    await serve(Crowd(port=port, count=count, request=request))


if __name__ == "__main__":
    main()
