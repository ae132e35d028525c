"""Capture all running sandboxes at intervals, as the safety net of the continuous capture.

A sandbox in which nothing changed costs one walk inside and no version. Replicas share the work by
the time at which a version was last seen: what another replica has just captured is left alone.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Final

import structlog

from sandkeeper.background.scheduler import TaskOutcome
from sandkeeper.domain.errors import (
    InstanceGoneError,
    ProviderUnavailableError,
    SandboxBusyError,
    SandboxNotFoundError,
    SandkeeperError,
    WrongStateError,
)
from sandkeeper.domain.events import CaptureFailed
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import State
from sandkeeper.services.deps import Deps
from sandkeeper.services.files.capture import KEPT_KINDS, FileCapture
from sandkeeper.services.files.contract import FILES_ACTOR
from sandkeeper.services.files.folder_watches import FolderWatches
from sandkeeper.store import SandboxQuery
from sandkeeper.telemetry import name_owner

log = structlog.get_logger(__name__)

PAGE = 100

CAPTURES_AT_ONCE: Final = 4
"""The budget of one replica. Higher saves more sandboxes in time when all are in use at once; lower
leaves more of the machine and of the provider's connections to the users."""

CAPTURE_S: Final = 120.0
"""How long one capture may take. Longer lets a sandbox that hangs hold a place of the budget;
shorter never saves a large first version over a slow connection."""


class Checkpoint:
    """Capture every running sandbox that was not captured for a period."""

    def __init__(
        self, deps: Deps, captures: DueCaptures, *, concurrency: int = CAPTURES_AT_ONCE
    ) -> None:
        self._store = deps.store
        self._metrics = deps.metrics
        self._captures = captures
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
    """Capture one sandbox if it runs and was not captured just now; one at a time for each."""

    def __init__(self, deps: Deps, capture: FileCapture, watches: FolderWatches) -> None:
        self._store = deps.store
        self._files = capture
        self._watches = watches
        self._clock = deps.clock
        self._under_way: set[str] = set()
        self._failing: dict[str, str] = {}

    async def capture(self, sandbox_id: str, *, fresh_s: float) -> str:
        """Return what was done. A failure does not stop the others; the next pass tries it again.

        A sandbox that is held is left alone: a wake checks for lost files first, and a capture
        before it would forget them.
        """
        if sandbox_id in self._under_way:
            return "busy"
        self._under_way.add(sandbox_id)
        try:
            return await self._capture(sandbox_id, fresh_s=fresh_s)
        except SandkeeperError as error:
            log.warning("checkpoint_failed", sandbox_id=sandbox_id, error=str(error))
            return "failed"
        finally:
            self._under_way.discard(sandbox_id)

    async def _capture(self, sandbox_id: str, *, fresh_s: float) -> str:
        try:
            sandbox = await self._store.sandboxes.get(sandbox_id)
        except SandboxNotFoundError:
            return self._leave(sandbox_id)
        name_owner(sandbox.owner)
        if sandbox.state is not State.RUNNING or sandbox.owner.kind not in KEPT_KINDS:
            return self._leave(sandbox_id)
        if sandbox.is_waking(self._clock()):
            return "busy"
        try:
            async with asyncio.timeout(CAPTURE_S):
                done = await self._capture_running(sandbox, fresh_s)
        except (WrongStateError, InstanceGoneError):
            # That it does not run any more is for the webhook and the reconciler to find.
            return self._leave(sandbox_id)
        except SandboxBusyError:
            return "busy"
        except TimeoutError:
            late = ProviderUnavailableError(f"It did not end within {CAPTURE_S:g} s.")
            done = await self._fail(sandbox, late)
        except SandkeeperError as error:
            done = await self._fail(sandbox, error)
        else:
            self._failing.pop(sandbox_id, None)
        return done

    async def _capture_running(self, sandbox: Sandbox, fresh_s: float) -> str:
        await self._watches.ensure(sandbox)
        version = await self._store.files.find_latest(sandbox.owner)
        fresh_since = self._clock() - timedelta(seconds=fresh_s)
        if version is not None and version.seen_at > fresh_since:
            return "fresh"
        async with self._files.unclaimed.enter(sandbox.id) as running:
            await self._files.finish_capture(running)
            captured = await self._files.capture(running, reason="while it runs")
        return "captured" if captured.is_new else "unchanged"

    def _leave(self, sandbox_id: str) -> str:
        """Forget a sandbox that is not to be captured."""
        self._failing.pop(sandbox_id, None)
        self._watches.end(sandbox_id)
        return "skipped"

    async def _fail(self, sandbox: Sandbox, error: SandkeeperError) -> str:
        """Record why, once for each cause until a capture succeeds; `explain` tells it."""
        if self._failing.get(sandbox.id) == error.code:
            return "failed"
        log.warning("checkpoint_failed", sandbox_id=sandbox.id, error=str(error))
        now = self._clock()
        failed = CaptureFailed(
            sandbox_id=sandbox.id,
            owner=sandbox.owner,
            at=now,
            actor=FILES_ACTOR,
            reason=f"Its files could not be captured: {error}",
            code=error.code,
        )
        await self._store.sandboxes.append_events(sandbox, [failed], now=now)
        self._failing[sandbox.id] = error.code
        return "failed"
