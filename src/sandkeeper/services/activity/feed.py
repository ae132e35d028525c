"""Follow the event log once per process and deliver its events to every subscriber here.

The status cache, live streams and metrics subscribe; none of them reads the log itself. The feed
wakes when this process commits events, when another replica notifies it (NOTIFY on PostgreSQL), and
on a slow poll. Notifications save latency; the poll ensures correctness: a lost notification costs
at most `poll_s`. Listeners get every event after the feed's start once, in log order, in batches.
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
    """Something this process did that background work here must know without delay.

    A signal saves latency and carries no data: the data is in the database.
    """

    LEASE_RELEASED = "lease_released"
    POOL_NEEDS_FILL = "pool_needs_fill"
    WORK_FREED = "work_freed"


log = structlog.get_logger(__name__)

# Events per read. Higher blocks the event loop for longer after an outage; lower needs more round
# trips to catch up.
BATCH = 500

# A listening connection may die silently, so it is reopened after this time.
LISTENING_S = 60.0


class Feed:
    """Follow the log while the context is open.

    A listener is a plain function. It is called in the event loop and must be quick. If it raises,
    the error is logged and the listener is called again with the next batch: a bad listener never
    stops the others.
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
        """Return the last event that was delivered to every listener."""
        return self._seq

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Deliver every event from now on to `listener`, until the returned function is called."""
        self._listeners.append(listener)

        def unsubscribe() -> None:
            with contextlib.suppress(ValueError):
                self._listeners.remove(listener)

        return unsubscribe

    def on_signal(self, listener: Callable[[Signal], None]) -> None:
        """Call `listener` with every signal of this process."""
        self._signal_listeners.append(listener)

    def send(self, signal: Signal) -> None:
        """Notify the listeners of this process. Other replicas find out on their next period."""
        for listener in self._signal_listeners:
            listener(signal)

    def nudge(self) -> None:
        """Read the log now. Commits of this process do this automatically."""
        self._nudged.set()

    async def wait_for(self, seq: int, *, within_s: float = 5.0) -> bool:
        """Wait until event `seq` was delivered to the listeners; return False on timeout.

        Call this between a write and a read from a cache, to read your own write.
        """
        self.nudge()
        try:
            async with asyncio.timeout(within_s), self._moved:
                await self._moved.wait_for(lambda: self._seq >= seq)
        except TimeoutError:
            return False
        return True

    async def catch_up(self) -> None:
        """Deliver everything that is committed at this moment."""
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
        """Listen to other replicas. Reopen a lost connection; the poll covers the gap."""
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
