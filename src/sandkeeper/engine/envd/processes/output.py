"""The output of a process, sent to all of its listeners.

The fastest listener sets the pace. A slower one falls behind alone and is dropped at a limit, so it
never delays the others. Without listeners, the output is read and discarded.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Mapping
from typing import Literal

Kind = Literal["stdout", "stderr", "pty"]

CHUNK_BYTES: Mapping[Kind, int] = {"stdout": 32 * 1024, "stderr": 32 * 1024, "pty": 16 * 1024}

PACE_BYTES = 1024 * 1024
"""Reading rests while even the fastest listener has this much waiting. More costs memory for each
listener; less makes the process wait for the network."""

BACKLOG_MAX_BYTES = 16 * 1024 * 1024
"""A listener this far behind the fastest is dropped."""

STALL_S = 10.0
"""How long the process may be held up by listeners none of whom takes anything."""


class LaggingError(Exception):
    """This listener took too little for too long and was dropped; the process continues."""


class Listener:
    """One reader of a process's output, from the moment it began to listen."""

    def __init__(self, output: ProcessOutput) -> None:
        self._output = output
        self._chunks: deque[tuple[Kind, bytes]] = deque()
        self._wake = asyncio.Event()
        self._lagging = False
        self.backlog = 0
        self.took_at = asyncio.get_running_loop().time()

    def offer(self, kind: Kind, data: bytes) -> None:
        self._chunks.append((kind, data))
        self.backlog += len(data)
        self._wake.set()

    def detach(self) -> None:
        self._lagging = True
        self._chunks.clear()
        self._wake.set()

    def nudge(self) -> None:
        self._wake.set()

    async def next(self) -> tuple[Kind, bytes] | None:
        """Return the next piece of output, or None when the process has closed all of it."""
        while not self._chunks:
            if self._lagging:
                raise LaggingError
            if self._output.is_over:
                return None
            self._wake.clear()
            await self._wake.wait()
        chunk = self._chunks.popleft()
        self.backlog -= len(chunk[1])
        self.took_at = asyncio.get_running_loop().time()
        self._output.set_pace()
        return chunk

    def close(self) -> None:
        self._output.remove(self)


class ProcessOutput:
    """Reads a process's descriptors, which it owns from now on, and passes their output on."""

    def __init__(self, descriptors: Mapping[Kind, int]) -> None:
        self._loop = asyncio.get_running_loop()
        self._open = dict(descriptors)
        self._listeners: set[Listener] = set()
        self._is_resting = False
        self._stall: asyncio.TimerHandle | None = None
        self._over = asyncio.Event()
        self._is_final = False
        for kind in self._open:
            self._read_on(kind)
        if not self._open:
            self._over.set()

    @property
    def is_over(self) -> bool:
        """Return whether all output has been delivered and no more can come."""
        return self._is_final

    def listen(self) -> Listener:
        listener = Listener(self)
        self._listeners.add(listener)
        self.set_pace()
        return listener

    def remove(self, listener: Listener) -> None:
        self._listeners.discard(listener)
        self.set_pace()

    async def drained(self) -> None:
        """Wait until every descriptor has been read to its end."""
        await self._over.wait()

    def finish(self) -> None:
        """End the listeners' streams, because the process has ended."""
        for kind in list(self._open):
            self._close(kind)
        self._is_final = True
        for listener in self._listeners:
            listener.nudge()
        self._rest(resting=False)

    def set_pace(self) -> None:
        """Pause while even the fastest listener is behind; drop those far behind it."""
        fastest = min((listener.backlog for listener in self._listeners), default=0)
        if fastest >= PACE_BYTES and not self._is_resting and self._open:
            for descriptor in self._open.values():
                self._loop.remove_reader(descriptor)
            self._rest(resting=True)
        elif fastest < PACE_BYTES and self._is_resting:
            self._rest(resting=False)
            for kind in self._open:
                self._read_on(kind)

    def _rest(self, *, resting: bool) -> None:
        self._is_resting = resting
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None
        if resting:
            self._stall = self._loop.call_later(STALL_S, self._end_stall)

    def _end_stall(self) -> None:
        now = self._loop.time()
        for listener in list(self._listeners):
            if now - listener.took_at >= STALL_S:
                self._listeners.discard(listener)
                listener.detach()
        self._stall = self._loop.call_later(STALL_S, self._end_stall)
        self.set_pace()

    def _read_on(self, kind: Kind) -> None:
        self._loop.add_reader(self._open[kind], self._read, kind)

    def _read(self, kind: Kind) -> None:
        try:
            data = os.read(self._open[kind], CHUNK_BYTES[kind])
        except BlockingIOError:
            return
        except OSError:
            # A terminal whose last user closed it answers EIO: that is its end of file.
            data = b""
        if not data:
            self._close(kind)
            return
        for listener in list(self._listeners):
            if listener.backlog >= BACKLOG_MAX_BYTES:
                self._listeners.discard(listener)
                listener.detach()
            else:
                listener.offer(kind, data)
        if self._listeners:
            self.set_pace()

    def _close(self, kind: Kind) -> None:
        descriptor = self._open.pop(kind)
        self._loop.remove_reader(descriptor)
        os.close(descriptor)
        if not self._open:
            self._over.set()
