"""Generate load in a separate process, on bare sockets, so that it is not what is measured.

`python -m bench.load` reads one plan as JSON from its input and prints the result as JSON. The
parent calls `generate`. Latencies at a fixed rate count from the time at which a request was due,
so that a server that stalls is charged for every request that waited.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import cast

import uvloop

NAME = "bench.load: one process, uvloop, bare sockets, keep-alive"
HEAD_END = b"\r\n\r\n"
LENGTH = b"content-length:"


@dataclass(frozen=True, slots=True)
class Plan:
    """The requests to send. With `rate` they leave at fixed times, without it as fast as answered.

    `requests` are sent in turn; with `once` each is sent once and the plan ends after the last,
    otherwise it ends after `seconds`.
    """

    port: int
    requests: Sequence[str]
    connections: int = 32
    seconds: float = 2.0
    rate: float | None = None
    once: bool = False


@dataclass(frozen=True, slots=True)
class Seen:
    """The result: how many answers in how long, how many were not 2xx, and how late."""

    seconds: float
    answered: int
    failed: int
    p50_ms: float
    p99_ms: float

    @property
    def per_second(self) -> float:
        return self.answered / self.seconds


def render_request(
    method: str, path: str, *, key: str = "", body: bytes = b"", headers: Sequence[str] = ()
) -> str:
    """Return one HTTP request as it is sent; every character is one byte."""
    lines = [f"{method} {path} HTTP/1.1", "host: bench", *headers]
    if key:
        lines.append(f"authorization: Bearer {key}")
    if body or method != "GET":
        lines += ["content-type: application/json", f"content-length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]) + body.decode("latin-1")


def generate(plan: Plan) -> Seen:
    """Run a plan in a separate process; raise if any answer was not a success."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.load"],
        input=json.dumps(asdict(plan)).encode(),
        stdout=subprocess.PIPE,
        timeout=plan.seconds + 60,
        check=True,
    )
    seen = Seen(**json.loads(done.stdout))
    if seen.failed or not seen.answered:
        raise RuntimeError(f"{seen.failed} requests failed, {seen.answered} were answered")
    return seen


class Connection(asyncio.Protocol):
    """One keep-alive connection with at most one request under way."""

    def __init__(self, generator: Generator) -> None:
        self._generator = generator
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._due = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's, though they do the same.
        self._transport = cast("asyncio.Transport", transport)

    def send(self, request: bytes, due: float) -> None:
        assert self._transport is not None
        self._due = due
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer + data if self._buffer else data
        end = buffer.find(HEAD_END)
        if end < 0 or len(buffer) < end + len(HEAD_END) + _body_length(buffer[:end]):
            self._buffer = buffer
            return
        self._buffer = b""
        self._generator.answered(self, is_success=buffer[9:10] == b"2", due=self._due)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._generator.lost()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


def _body_length(head: bytes) -> int:
    head = head.lower()
    start = head.find(LENGTH)
    return int(head[start + len(LENGTH) :].split(b"\r\n", 1)[0]) if start >= 0 else 0


class Generator:
    """Send the requests of a plan and record the answers."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._requests = self._iterate()
        self._idle: deque[Connection] = deque()
        self._due: deque[float] = deque()
        self._under_way = 0
        self._is_over = False
        self._ended = asyncio.Event()
        self._failed = 0
        self._latencies: list[float] = []

    def _iterate(self) -> Iterator[bytes]:
        encoded = [request.encode("latin-1") for request in self._plan.requests]
        return iter(encoded) if self._plan.once else itertools.cycle(encoded)

    async def run(self) -> Seen:
        loop = asyncio.get_running_loop()
        connections = []
        for _ in range(self._plan.connections):
            _, connection = await loop.create_connection(
                lambda: Connection(self), "127.0.0.1", self._plan.port
            )
            connections.append(connection)
        started = time.perf_counter()
        if self._plan.rate is None:
            await self._send_as_answered(connections)
        else:
            self._idle.extend(connections)
            await self._send_at(self._plan.rate)
        seconds = time.perf_counter() - started
        self._is_over = True
        for connection in connections:
            connection.close()
        return Seen(
            seconds=seconds,
            answered=len(self._latencies),
            failed=self._failed,
            p50_ms=percentile(self._latencies, 0.5) * 1000,
            p99_ms=percentile(self._latencies, 0.99) * 1000,
        )

    async def _send_as_answered(self, connections: list[Connection]) -> None:
        for connection in connections:
            self._send(connection, time.perf_counter())
        limit = None if self._plan.once else self._plan.seconds
        try:
            async with asyncio.timeout(limit):
                await self._ended.wait()
        except TimeoutError:
            self._is_over = True

    async def _send_at(self, rate: float) -> None:
        """Send at fixed times; a request without a free connection is still due, and waits."""
        started = time.perf_counter()
        for number in range(int(rate * self._plan.seconds)):
            due = started + number / rate
            wait = due - time.perf_counter()
            if wait > 0:
                await asyncio.sleep(wait)
            self._due.append(due)
            self._send_due()
        # Wait for what is still under way: leaving it out would hide the slowest.
        async with asyncio.timeout(30):
            while self._under_way or self._due:
                await asyncio.sleep(0.001)

    def _send_due(self) -> None:
        while self._due and self._idle:
            self._send(self._idle.popleft(), self._due.popleft())

    def _send(self, connection: Connection, due: float) -> None:
        request = next(self._requests, None)
        if request is None:
            if not self._under_way:
                self._ended.set()
            return
        self._under_way += 1
        connection.send(request, due)

    def answered(self, connection: Connection, *, is_success: bool, due: float) -> None:
        now = time.perf_counter()
        self._under_way -= 1
        if self._is_over:
            return
        self._failed += not is_success
        self._latencies.append(now - due)
        if self._plan.rate is None:
            self._send(connection, now)
        else:
            self._idle.append(connection)
            self._send_due()

    def lost(self) -> None:
        if not self._is_over:
            self._failed += 1
            self._ended.set()


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which this share of the values lies; 0 if there are none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


async def carry_out(plan: Plan) -> Seen:
    return await Generator(plan).run()


def main() -> None:
    plan = Plan(**json.load(sys.stdin))
    print(json.dumps(asdict(uvloop.run(carry_out(plan)))))


if __name__ == "__main__":
    main()
