"""Follow the database once per process and deliver what changed to every subscriber here.

Each round reads two things: the new entries of the event log, and which sandboxes were written. The
status cache, live streams and metrics subscribe; none of them reads the log itself. A round begins
when this process commits, when another replica notifies it (NOTIFY on PostgreSQL), and on a slow
poll. Notifications save latency; the poll ensures correctness: a lost notification costs at most
`poll_s`. Listeners get every event after the feed's start once, in log order, in batches.

`wait_until_shown` is for callers that were promised something: it returns when every replica that
is alive has had a round that began after the call, so that the next status shows what was committed
before, wherever it is read.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from typing import Final, Self

import structlog

from sandkeeper.services.activity.peers import Notice, Peers
from sandkeeper.store import Store
from sandkeeper.store.events import LoggedEvent

Listener = Callable[[Sequence[LoggedEvent]], None]
Follower = Callable[[Sequence[LoggedEvent], Sequence[str]], Awaitable[None]]


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

# The longest time without a notice to the other replicas: by it they know that this one is alive.
BEAT_S: Final = 2.0

# The shortest time between two rounds. Higher shows changes later; lower reads the database more
# often while much is written.
ROUND_MIN_S: Final = 0.02

# How long a caller waits for the other replicas. One that hangs for longer answers no status.
SHOWN_WITHIN_S: Final = 1.0


class Feed:
    """Follow the database while the context is open.

    A listener is a plain function. It is called in the event loop and must be quick. If it raises,
    the error is logged and the listener is called again with the next batch: a bad listener never
    stops the others. The follower is awaited: a round ends when it has shown what it was given.
    """

    def __init__(self, *, store: Store, replica: str, poll_s: float = 0.5) -> None:
        self._events = store.events
        self._changes = store.changes
        self._poll_s = poll_s
        self._seq = 0
        self._position = 0
        self._listeners: list[Listener] = []
        self._followers: list[Follower] = []
        self._signal_listeners: list[Callable[[Signal], None]] = []
        self._nudged = asyncio.Event()
        self._hurried = asyncio.Event()
        self._progress = asyncio.Event()
        self._rounds_begun = 0
        self._rounds_done = 0
        self._done_at = time.monotonic()
        self._notified_at = 0.0
        self._waiting = 0
        self._peers = Peers(replica)
        self._has_written = False
        self._ignore_appends: Callable[[], None] = lambda: None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def age_s(self) -> float:
        """Return how long ago the last complete round ended."""
        return time.monotonic() - self._done_at

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Deliver every event from now on to `listener`, until the returned function is called."""
        self._listeners.append(listener)

        def unsubscribe() -> None:
            with contextlib.suppress(ValueError):
                self._listeners.remove(listener)

        return unsubscribe

    def follow(self, follower: Follower) -> None:
        """Await `follower` in each round with its events and the ids of written sandboxes."""
        self._followers.append(follower)

    def on_signal(self, listener: Callable[[Signal], None]) -> None:
        """Call `listener` with every signal of this process."""
        self._signal_listeners.append(listener)

    def send(self, signal: Signal) -> None:
        """Notify the listeners of this process. Other replicas find out on their next period."""
        for listener in self._signal_listeners:
            listener(signal)

    async def wait_until_shown(self, *, within_s: float = SHOWN_WITHIN_S) -> bool:
        """Wait until all replicas show what is committed now; return False on timeout."""
        if not self._tasks:
            return True  # Not running: there is nothing to wait for.
        self._waiting += 1
        wanted = self._rounds_begun + 1
        self._nudged.set()
        self._hurried.set()
        try:
            async with asyncio.timeout(within_s):
                while self._rounds_done < wanted or self._peers.list_behind(wanted):
                    await self._progress.wait()
        except TimeoutError:
            log.warning("replicas_not_settled", waiting_for=self._peers.list_behind(wanted))
            return False
        finally:
            self._waiting -= 1
        return True

    async def __aenter__(self) -> Self:
        self._seq = await self._events.latest_seq()
        self._position = await self._changes.find_position()
        self._ignore_appends = self._events.on_append(self._on_append)
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

    def _on_append(self) -> None:
        self._has_written = True
        self._nudged.set()

    def _on_notice(self, payload: str) -> None:
        """Accept a notice of a replica, which may be this one."""
        if self._peers.receive(payload):
            self._nudged.set()
            self._report_progress()

    def _report_progress(self) -> None:
        """Let everyone who waits in `wait_until_shown` look again."""
        self._progress.set()
        self._progress = asyncio.Event()

    async def _listen(self) -> None:
        """Listen to other replicas. Reopen a lost connection; the poll covers the gap."""
        while True:
            try:
                async with self._events.listening(self._on_notice):
                    await asyncio.sleep(LISTENING_S)
            except Exception as error:  # noqa: BLE001 - The database may be away; the feed stays.
                log.warning("feed_not_listening", error=str(error))
                await asyncio.sleep(self._poll_s)

    async def _follow(self) -> None:
        while True:
            self._nudged.clear()
            try:
                await self._run_round()
            except Exception as error:  # noqa: BLE001 - The database may be away; the feed stays.
                log.warning("feed_interrupted", error=str(error), seq=self._seq)
                await asyncio.sleep(self._poll_s)
            await _wait(self._hurried, ROUND_MIN_S)
            self._hurried.clear()
            await _wait(self._nudged, self._poll_s)

    async def _run_round(self) -> None:
        """Deliver everything that is committed at this moment."""
        self._rounds_begun = number = self._rounds_begun + 1
        has_written, self._has_written = self._has_written, False
        seen = self._peers.pop_unanswered()
        try:
            while await self._deliver_batch() == BATCH:
                pass
        except BaseException:
            self._has_written |= has_written
            raise
        self._done_at = time.monotonic()
        is_due = self._done_at - self._notified_at > BEAT_S
        if has_written or seen or self._waiting or is_due:
            self._notified_at = self._done_at
            notice = Notice(self._peers.name, number, asks=bool(self._waiting), seen=seen)
            await self._events.notify(notice.render())
        self._rounds_done = number
        self._report_progress()

    async def _deliver_batch(self) -> int:
        """Deliver the next events, and after the last ones the sandboxes that were written.

        The events are read first: what they report is then among the written sandboxes.
        """
        batch = await self._events.after(self._seq, limit=BATCH)
        changes = await self._changes.since(self._position) if len(batch) < BATCH else None
        written = changes.sandbox_ids if changes is not None else ()
        if batch or written:
            for follower in self._followers:
                await follower(batch, written)
        for listener in tuple(self._listeners) if batch else ():
            try:
                listener(batch)
            except Exception:
                log.exception("feed_listener_failed", listener=repr(listener))
        # Only now: what a follower failed to show is delivered to it again.
        self._seq = batch[-1].seq if batch else self._seq
        self._position = changes.position if changes is not None else self._position
        return len(batch)


async def _wait(event: asyncio.Event, within_s: float) -> None:
    """Wait for an event, or for some time.

    Not `asyncio.wait_for`: in Python 3.11 it can swallow a cancellation that meets the event.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            await event.wait()
