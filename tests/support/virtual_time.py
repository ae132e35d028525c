"""A process whose time is simulated: a wait of an hour takes as long as a wait of nothing.

The event loop moves its clock to the next timer as soon as nothing else can run. SQLite's driver
works without its threads, so that nothing runs beside the loop, and random names are drawn from a
seed: the same calls have the same result in every run.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import selectors
import time
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import aiosqlite
import pytest


class VirtualSelector(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    """Return at once, and report how long a real one would have waited."""

    def __init__(self, on_wait: Callable[[float], None]) -> None:
        super().__init__()
        self._on_wait = on_wait

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            raise RuntimeError("everything waits for something that never comes")
        if timeout > 0:
            self._on_wait(timeout)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop that never waits. Its time begins at zero."""

    def __init__(self) -> None:
        self._now = 0.0
        super().__init__(VirtualSelector(self._wait))

    def time(self) -> float:
        return self._now

    def run_in_executor(self, _executor: Any, func: Any, *args: Any) -> Any:
        """Run the function here and now: there are no threads."""
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # noqa: BLE001  # Raised where it is awaited.
            done.set_exception(error)
        return done

    def _wait(self, timeout: float) -> None:
        self._now += timeout


@contextmanager
def virtual_time(seed: int = 0) -> Iterator[VirtualLoop]:
    """A loop with simulated time, for the length of a block; what has passed is its time too."""
    loop = VirtualLoop()
    drawn = random.Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "monotonic", loop.time)
        patch.setattr(time, "clock_gettime", lambda _clock: loop.time())
        patch.setattr(secrets, "token_hex", lambda size=8: drawn.randbytes(size).hex())
        patch.setattr(secrets, "token_urlsafe", lambda size=32: drawn.randbytes(size).hex())
        patch.setattr(uuid, "uuid4", lambda: uuid.UUID(bytes=drawn.randbytes(16), version=4))
        patch.setattr(aiosqlite.Connection, "__await__", _open)
        asyncio.set_event_loop(loop)
        try:
            yield loop
        finally:
            asyncio.set_event_loop(None)
            loop.close()


class InlineQueue:
    """Runs what SQLite's driver hands to its thread, here and now."""

    def put_nowait(self, work: tuple[asyncio.Future[Any] | None, Callable[[], Any]]) -> None:
        future, function = work
        try:
            result = function()
        except BaseException as error:  # Raised where it is awaited.
            if future is None:
                raise
            future.set_exception(error)
        else:
            if future is not None:
                future.set_result(result)


def _open(connection: Any) -> Generator[Any, None, Any]:
    connection._tx = InlineQueue()
    opening: Generator[Any, None, Any] = connection._connect().__await__()
    return opening
