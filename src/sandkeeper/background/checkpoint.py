"""Capture running sandboxes at intervals, so that a sudden end costs little.

*Checkpoint* walks through all running sandboxes, and is the safety net. *ContinuousCapture* follows
those that are in use: it captures within seconds after an act, again while files change, and ever
more rarely while nothing does. A sandbox in which nothing changed costs one walk inside and no
version. Replicas share the work by the time at which a version was last seen: what another replica
has just captured is left alone.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import structlog

from sandkeeper.background.scheduler import TaskOutcome
from sandkeeper.domain.errors import SandboxNotFoundError, SandkeeperError
from sandkeeper.domain.events import SandboxCreated, StateChanged, WakeProgressed
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import State
from sandkeeper.services.deps import Deps
from sandkeeper.services.files.capture import KEPT_KINDS, FileCapture
from sandkeeper.store import LoggedEvent, SandboxQuery
from sandkeeper.telemetry import name_owner

log = structlog.get_logger(__name__)

PAGE = 100

CAPTURES_AT_ONCE: Final = 4
"""The budget of one replica. Higher saves more sandboxes in time when all are in use at once; lower
leaves more of the machine and of the provider's connections to the users."""

SOON_S: Final = 1.0
"""How long after an act a capture starts, so that a burst of writes is captured once."""

BUSY_RETRY_S: Final = 2.0
"""When to try a sandbox again that an operation holds."""

PASS_S: Final = 30.0
"""How long a pass starts captures; the next one starts at once if more are due."""

POLL_S: Final = 0.25

STARTS_A_RUN: Final = frozenset({SandboxCreated.type, StateChanged.type, WakeProgressed.type})


class Checkpoint:
    """Capture every running sandbox that was not captured for a period."""

    def __init__(
        self, deps: Deps, capture: FileCapture, *, concurrency: int = CAPTURES_AT_ONCE
    ) -> None:
        self._store = deps.store
        self._metrics = deps.metrics
        self._captures = DueCaptures(deps, capture)
        # A little less, or a pass that is slightly early would skip what is due.
        self._fresh_s = deps.settings.files_checkpoint_s * 0.8
        self._concurrency = concurrency

    async def run(self) -> TaskOutcome:
        done: Counter[str] = Counter()
        gate = asyncio.Semaphore(self._concurrency)
        cursor: str | None = None
        while True:
            query = SandboxQuery(states=(State.RUNNING,), limit=PAGE)
            page = await self._store.sandboxes.list(query, cursor)
            kept = [one for one in page.items if one.owner.kind in KEPT_KINDS]
            done.update(await asyncio.gather(*(self._capture(one, gate) for one in kept)))
            cursor = page.next_cursor
            if cursor is None:
                self._metrics.captures_waiting.set(done["failed"] + done["busy"])
                return TaskOutcome(detail=dict(done))

    async def _capture(self, sandbox: Sandbox, gate: asyncio.Semaphore) -> str:
        async with gate:
            return await self._captures.capture(sandbox.id, fresh_s=self._fresh_s)


class DueCaptures:
    """Capture one sandbox if it runs and was not captured just now."""

    def __init__(self, deps: Deps, capture: FileCapture) -> None:
        self._store = deps.store
        self._files = capture
        self._clock = deps.clock

    async def capture(self, sandbox_id: str, *, fresh_s: float) -> str:
        """Return what was done. A failure does not stop the others; the next pass tries it again.

        A sandbox that is held is left alone: a wake checks for lost files first, and a capture
        before it would forget them.
        """
        try:
            sandbox = await self._store.sandboxes.get(sandbox_id)
            name_owner(sandbox.owner)
            if sandbox.state is not State.RUNNING or sandbox.owner.kind not in KEPT_KINDS:
                return "skipped"
            version = await self._store.files.find_latest(sandbox.owner)
            fresh_since = self._clock() - timedelta(seconds=fresh_s)
            if version is not None and version.seen_at > fresh_since:
                return "fresh"
            if sandbox.is_claimed(self._clock()) or sandbox.is_waking(self._clock()):
                return "busy"
            await self._files.finish_capture(sandbox)
            captured = await self._files.capture(sandbox, reason="at a checkpoint")
        except SandboxNotFoundError:
            return "skipped"
        except SandkeeperError as error:
            log.warning("checkpoint_failed", sandbox_id=sandbox_id, error=str(error))
            return "failed"
        return "captured" if captured.is_new else "unchanged"


class ContinuousCapture:
    """Follow the sandboxes that run: capture soon after an act, and while files change.

    Each has an interval: the shortest after an act and after a capture that found a change, and
    twice as long after each that found none, up to the period of the checkpoint. Memory holds one
    entry for each running sandbox; it is lost with the process, and the checkpoint covers that.
    """

    def __init__(self, deps: Deps, capture: FileCapture) -> None:
        self._captures = DueCaptures(deps, capture)
        self._shortest_s = deps.settings.capture_min_interval_s
        self._longest_s = max(self._shortest_s, deps.settings.files_checkpoint_s)
        self._intervals: dict[str, float] = {}
        self._captured_at: dict[str, float] = {}
        self._due: dict[str, float] = {}
        self._queue: list[tuple[float, str]] = []
        self._metrics = deps.metrics

    def on_events(self, events: Sequence[LoggedEvent]) -> None:
        """Follow what may have begun to run."""
        for event in events:
            if event.type in STARTS_A_RUN:
                self.follow(event.sandbox_id)

    def follow(self, sandbox_id: str) -> None:
        """Capture this sandbox soon, and not more often than allowed."""
        self._intervals[sandbox_id] = self._shortest_s
        now = time.monotonic()
        allowed_at = self._captured_at.get(sandbox_id, 0.0) + self._shortest_s
        self._plan(sandbox_id, max(now + SOON_S, allowed_at))

    async def run(self) -> TaskOutcome:
        """Capture what is due, a few at a time; one that hangs uses one place only."""
        done: Counter[str] = Counter()
        ends = time.monotonic() + PASS_S
        under_way: set[asyncio.Task[str]] = set()
        try:
            while True:
                while len(under_way) < CAPTURES_AT_ONCE and time.monotonic() < ends:
                    sandbox_id = self._take_due()
                    if sandbox_id is None:
                        break
                    under_way.add(asyncio.create_task(self._capture(sandbox_id)))
                if not under_way:
                    break
                finished, under_way = await asyncio.wait(
                    under_way, timeout=POLL_S, return_when=asyncio.FIRST_COMPLETED
                )
                done.update(task.result() for task in finished)
        finally:
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)
        next_at = self._queue[0][0] if self._queue else None
        again_in_s = None if next_at is None else max(0.0, next_at - time.monotonic())
        return TaskOutcome(detail=dict(done), again_in_s=again_in_s)

    async def _capture(self, sandbox_id: str) -> str:
        interval_s = self._intervals.get(sandbox_id, self._shortest_s)
        began = self._captured_at[sandbox_id] = time.monotonic()
        done = await self._captures.capture(sandbox_id, fresh_s=self._shortest_s * 0.8)
        self._metrics.captures.labels(done).inc()
        if done == "skipped":
            self._intervals.pop(sandbox_id, None)
            self._captured_at.pop(sandbox_id, None)
            return done
        if done == "busy":
            self._plan(sandbox_id, time.monotonic() + BUSY_RETRY_S)
            return done
        if done == "captured":
            interval_s = self._shortest_s
        elif done != "fresh":
            interval_s = min(interval_s * 2, self._longest_s)
        self._intervals[sandbox_id] = interval_s
        self._plan(sandbox_id, began + interval_s)
        return done

    def _plan(self, sandbox_id: str, at: float) -> None:
        if at < self._due.get(sandbox_id, float("inf")):
            self._due[sandbox_id] = at
            heapq.heappush(self._queue, (at, sandbox_id))

    def _take_due(self) -> str | None:
        now = time.monotonic()
        while self._queue and self._queue[0][0] <= now:
            at, sandbox_id = heapq.heappop(self._queue)
            if self._due.get(sandbox_id) == at:
                del self._due[sandbox_id]
                return sandbox_id
        return None
