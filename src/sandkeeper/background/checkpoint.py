"""Checkpoint: capture running sandboxes at intervals, so that a sudden end costs little.

A sandbox in which nothing changed costs one walk inside and no version. Replicas share the work by
the time at which a version was last seen: what another replica has just captured is left alone.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta

import structlog

from sandkeeper.background.scheduler import TaskOutcome
from sandkeeper.domain.errors import SandkeeperError
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import State
from sandkeeper.services.deps import Deps
from sandkeeper.services.files.capture import KEPT_KINDS, FileCapture
from sandkeeper.store import SandboxQuery
from sandkeeper.telemetry import name_owner

log = structlog.get_logger(__name__)

PAGE = 100


class Checkpoint:
    """Capture every running sandbox that was not captured for a period."""

    def __init__(self, deps: Deps, capture: FileCapture, *, concurrency: int = 4) -> None:
        self._store = deps.store
        self._files = capture
        self._clock = deps.clock
        self._metrics = deps.metrics
        # A little less, or a pass that is slightly early would skip what is due.
        self._fresh = timedelta(seconds=deps.settings.files_checkpoint_s * 0.8)
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
        """Capture one sandbox. A failure does not stop the others; the next pass tries it again."""
        name_owner(sandbox.owner)
        async with gate:
            try:
                version = await self._store.files.find_latest(sandbox.owner)
                if version is not None and version.seen_at > self._clock() - self._fresh:
                    return "fresh"
                now = await self._store.sandboxes.get(sandbox.id)
                if now.state is not State.RUNNING or now.is_claimed(self._clock()):
                    # A wake checks for lost files first: a capture before it would forget them.
                    return "busy"
                await self._files.finish_capture(now)
                captured = await self._files.capture(now, reason="at a checkpoint")
            except SandkeeperError as error:
                log.warning("checkpoint_failed", sandbox_id=sandbox.id, error=str(error))
                return "failed"
            return "captured" if captured.is_new else "unchanged"
