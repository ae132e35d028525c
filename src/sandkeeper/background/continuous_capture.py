"""Capture the sandboxes that are in use: within seconds after an act, and while files change.

Each has an interval: the shortest after an act, after a change that its watch reports and after a
capture that found a change; twice as long after each that found none or failed, up to the period of
the checkpoint, or a minute where no watch is possible. Memory holds one entry for each running
sandbox; it is lost with the process, and the checkpoint covers that.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sandkeeper.background.checkpoint import CAPTURES_AT_ONCE, DueCaptures
from sandkeeper.background.scheduler import TaskOutcome
from sandkeeper.domain.events import SandboxCreated, StateChanged, WakeProgressed
from sandkeeper.services.deps import Deps
from sandkeeper.services.files.capture import KEPT_KINDS
from sandkeeper.services.files.folder_watches import FolderWatches
from sandkeeper.store import LoggedEvent

SOON_S: Final = 1.0
"""How long after an act a capture starts, so that a burst of writes is captured once."""

BUSY_RETRY_S: Final = 2.0
"""When to try a sandbox again that an operation holds, or that waits for a place."""

FAILING_AT_ONCE: Final = 2
"""Places for sandboxes whose last capture failed, so that those that hang leave some to others."""

PASS_S: Final = 30.0
"""How long a pass lasts at most; what is under way then goes on beside the next one."""

POLL_S: Final = 0.25

STARTS_A_RUN: Final = frozenset({SandboxCreated.type, StateChanged.type, WakeProgressed.type})


@dataclass(slots=True)
class FollowedSandbox:
    """When a sandbox was captured, and when it is due."""

    interval_s: float
    began_at: float = -math.inf
    due_at: float = math.inf
    is_under_way: bool = False
    is_asked_again: bool = False
    has_failed: bool = False


class ContinuousCapture:
    """Follow the sandboxes that run, a few captures at a time and one for each sandbox."""

    def __init__(self, deps: Deps, captures: DueCaptures, watches: FolderWatches) -> None:
        self._captures = captures
        self._watches = watches
        self._shortest_s = deps.settings.capture_min_interval_s
        self._followed: dict[str, FollowedSandbox] = {}
        self._queue: list[tuple[float, str]] = []
        self._under_way: dict[asyncio.Task[str], FollowedSandbox] = {}
        self._metrics = deps.metrics
        watches.listen(
            on_change=self.follow,
            on_break=lambda sandbox_id: self.follow(sandbox_id, after_s=self._shortest_s),
        )

    def on_events(self, events: Sequence[LoggedEvent]) -> None:
        """Follow what may have begun to run."""
        for event in events:
            if event.type in STARTS_A_RUN and event.owner.kind in KEPT_KINDS:
                self.follow(event.sandbox_id)

    def follow(self, sandbox_id: str, *, after_s: float = SOON_S) -> None:
        """Capture this sandbox soon, and not more often than allowed; less often if it fails."""
        one = self._followed.setdefault(sandbox_id, FollowedSandbox(self._shortest_s))
        if not one.has_failed:
            one.interval_s = self._shortest_s
        self._plan(sandbox_id, max(time.monotonic() + after_s, one.began_at + one.interval_s))

    async def run(self) -> TaskOutcome:
        """Capture what is due, a few at a time; one that hangs uses one place only."""
        done: Counter[str] = Counter()
        ends = time.monotonic() + PASS_S
        try:
            while True:
                self._start_due()
                if not self._under_way or time.monotonic() >= ends:
                    break
                finished, _ = await asyncio.wait(
                    self._under_way, timeout=POLL_S, return_when=asyncio.FIRST_COMPLETED
                )
                for task in finished:
                    del self._under_way[task]
                    done[task.result()] += 1
        except BaseException:
            await self._cancel()
            raise
        return TaskOutcome(detail=dict(done), again_in_s=self._find_wait_s())

    async def stop(self) -> None:
        """End what is under way, and every watch."""
        await self._cancel()
        await self._watches.close()

    async def _cancel(self) -> None:
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)
        self._under_way.clear()

    def _find_wait_s(self) -> float | None:
        if self._under_way:
            return 0.0
        return max(0.0, self._queue[0][0] - time.monotonic()) if self._queue else None

    def _start_due(self) -> None:
        while len(self._under_way) < CAPTURES_AT_ONCE:
            sandbox_id = self._take_due()
            if sandbox_id is None:
                return
            one = self._followed[sandbox_id]
            one.is_under_way, one.began_at = True, time.monotonic()
            self._under_way[asyncio.create_task(self._capture(sandbox_id, one))] = one

    async def _capture(self, sandbox_id: str, one: FollowedSandbox) -> str:
        try:
            done = await self._captures.capture(sandbox_id, fresh_s=self._shortest_s * 0.8)
        finally:
            one.is_under_way = False
        self._metrics.captures.labels(done).inc()
        if done == "skipped":
            self._followed.pop(sandbox_id, None)
            if one.is_asked_again or one.due_at < math.inf:
                self.follow(sandbox_id)
            return done
        self._choose_interval(sandbox_id, one, done)
        wait_s = BUSY_RETRY_S if done == "busy" else one.interval_s
        self._plan(sandbox_id, max(time.monotonic(), one.began_at + wait_s))
        return done

    def _choose_interval(self, sandbox_id: str, one: FollowedSandbox, done: str) -> None:
        if done in ("busy", "fresh"):
            return
        one.has_failed = done == "failed"
        is_asked, one.is_asked_again = one.is_asked_again, False
        if done == "captured" or (is_asked and not one.has_failed):
            one.interval_s = self._shortest_s
        else:
            longest_s = max(self._shortest_s, self._watches.find_longest_s(sandbox_id))
            one.interval_s = min(one.interval_s * 2, longest_s)

    def _plan(self, sandbox_id: str, at: float) -> None:
        one = self._followed[sandbox_id]
        if at < one.due_at:
            one.due_at = at
            heapq.heappush(self._queue, (at, sandbox_id))

    def _take_due(self) -> str | None:
        now = time.monotonic()
        failing = sum(one.has_failed for one in self._under_way.values())
        while self._queue and self._queue[0][0] <= now:
            at, sandbox_id = heapq.heappop(self._queue)
            one = self._followed.get(sandbox_id)
            if one is None or one.due_at != at:
                continue
            one.due_at = math.inf
            if one.is_under_way:
                one.is_asked_again = True
            elif one.has_failed and failing >= FAILING_AT_ONCE:
                self._plan(sandbox_id, now + BUSY_RETRY_S)
            else:
                return sandbox_id
        return None
