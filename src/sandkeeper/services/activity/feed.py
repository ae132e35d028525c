"""The feed: one follower of the event log per process, and everyone here who wants to hear of it.

Status cache, live streams and metrics subscribe; none of them reads the log by itself. The feed is
woken when this process commits events, when another replica says so (NOTIFY on PostgreSQL), and by
a slow poll. The notices save latency; the poll makes it correct: a lost one costs `poll_s` at most.
Listeners get every event after the feed's start once, in the order of the log, in batches.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Self

import structlog

from sandkeeper.store.events import EventStore, LoggedEvent

Listener = Callable[[Sequence[LoggedEvent]], None]


class Signal(StrEnum):
    """Something this process did that background work here wants to know of without delay.

    A signal saves latency and carries no data: what it is about is in the database.
    """

    LEASE_RELEASED = "lease_released"
    POOL_NEEDS_FILL = "pool_needs_fill"


log = structlog.get_logger(__name__)

# Events read at once. Higher makes one long pause for the event loop after an outage; lower more
# round trips while catching up.
BATCH = 500

# A listening connection may die without a word, so it is opened anew after this time.
LISTENING_S = 60.0


class Feed:
    """Follows the log while its context is open.

    A listener is a plain function, is called in the event loop and must be quick. One that raises
    is logged and called again with the next batch: a bad listener never stops the others.
    """

    def __init__(self, *, events: EventStore, poll_s: float = 1.0) -> None:
        self._events = events
        self._poll_s = poll_s
        self._seq = 0
        self._listeners: list[Listener] = []
        self._signal_listeners: list[Callable[[Signal], None]] = []
        self._nudged = asyncio.Event()
        self._moved = asyncio.Condition()
        self._has_written = False
        self._ignore_appends: Callable[[], None] = lambda: None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def seq(self) -> int:
        """The last event that every listener has been given."""
        return self._seq

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Hear of every event from now on, until the function that is given back is called."""
        self._listeners.append(listener)

        def unsubscribe() -> None:
            with contextlib.suppress(ValueError):
                self._listeners.remove(listener)

        return unsubscribe

    def on_signal(self, listener: Callable[[Signal], None]) -> None:
        """Call `listener` with every signal of this process."""
        self._signal_listeners.append(listener)

    def send(self, signal: Signal) -> None:
        """Tell the listeners of this process. Other replicas find out by their own periods."""
        for listener in self._signal_listeners:
            listener(signal)

    def nudge(self) -> None:
        """Look at the log now. Commits of this process do so by themselves."""
        self._nudged.set()

    async def wait_for(self, seq: int, *, within_s: float = 5.0) -> bool:
        """Wait until the listeners have been given event `seq`; False if that takes too long.

        Who has just written and reads from a cache next calls this, so that it reads its own write.
        """
        self.nudge()
        try:
            async with asyncio.timeout(within_s), self._moved:
                await self._moved.wait_for(lambda: self._seq >= seq)
        except TimeoutError:
            return False
        return True

    async def catch_up(self) -> None:
        """Deliver all that is committed at this moment."""
        await self.wait_for(await self._events.latest_seq())

    async def __aenter__(self) -> Self:
        self._seq = await self._events.latest_seq()
        self._ignore_appends = self._events.on_append(self._hear_own)
        self._tasks = [
            asyncio.create_task(self._follow(), name="feed"),
            asyncio.create_task(self._listen(), name="feed:listen"),
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._ignore_appends()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    def _hear_own(self) -> None:
        self._has_written = True
        self._nudged.set()

    async def _listen(self) -> None:
        """Hear of other replicas; a lost connection is opened again, the poll covers the gap."""
        while True:
            try:
                async with self._events.listening(lambda _seq: self._nudged.set()):
                    await asyncio.sleep(LISTENING_S)
            except Exception as error:  # noqa: BLE001 - The database may be away; the feed stays.
                log.warning("feed_not_listening", error=str(error))
                await asyncio.sleep(self._poll_s)

    async def _follow(self) -> None:
        while True:
            self._nudged.clear()
            tells_others, self._has_written = self._has_written, False
            try:
                while await self._deliver_batch() == BATCH:
                    pass
                if tells_others:
                    await self._events.notify(self._seq)
            except Exception as error:  # noqa: BLE001 - The database may be away; the feed stays.
                log.warning("feed_interrupted", error=str(error), seq=self._seq)
                await asyncio.sleep(self._poll_s)
            # Not `wait_for`: in Python 3.11 it can swallow a cancellation that meets a nudge.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._poll_s):
                    await self._nudged.wait()

    async def _deliver_batch(self) -> int:
        batch = await self._events.after(self._seq, limit=BATCH)
        if not batch:
            return 0
        for listener in tuple(self._listeners):
            try:
                listener(batch)
            except Exception:
                log.exception("feed_listener_failed", listener=repr(listener))
        async with self._moved:
            self._seq = batch[-1].seq
            self._moved.notify_all()
        return len(batch)
