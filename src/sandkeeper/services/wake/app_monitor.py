"""Monitor the apps of running sandboxes from outside: which answer, and which stopped answering.

The monitor only reads: it wakes nothing, restarts nothing and counts as no activity. One exception:
it starts an app that was never started in this generation of its sandbox, because a crash came
between the two.
"""

from __future__ import annotations

import asyncio

import structlog

from sandkeeper.domain.errors import SandkeeperError, VersionConflictError
from sandkeeper.domain.events import SandboxReady
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import State
from sandkeeper.services.deps import Deps
from sandkeeper.services.wake.app import AppRunner
from sandkeeper.services.wake.wakes import Wakes
from sandkeeper.store.sandboxes.query import SandboxQuery

log = structlog.get_logger(__name__)

ACTOR = "app-watch"

# Apps checked in one pass, and at once. Higher loads this process and the sandboxes; lower sees a
# crash later. What does not fit is checked in the next pass.
PASS_MAX = 500
AT_ONCE = 32

# An app counts as down after this many silences in a row: one lost request is not a crash.
SILENCES_MAX = 2


class AppMonitor:
    """Keep `ready` true to what a browser would find."""

    def __init__(
        self, deps: Deps, apps: AppRunner, wakes: Wakes, *, pass_max: int = PASS_MAX
    ) -> None:
        self._store = deps.store
        self._apps = apps
        self._wakes = wakes
        self._clock = deps.clock
        self._pass_max = pass_max
        self._cursor: str | None = None
        # A round over all apps may take several passes. Silences in a row are counted per round.
        self._silences_before: dict[str, int] = {}
        self._silences: dict[str, int] = {}
        self._places = asyncio.Semaphore(AT_ONCE)

    async def check(self) -> dict[str, int]:
        """Run one pass and return the counts of what it found."""
        query = SandboxQuery(states=(State.RUNNING,), limit=self._pass_max)
        page = await self._store.sandboxes.list(query, self._cursor)
        self._cursor = page.next_cursor
        found = await asyncio.gather(*(self._check_one(one) for one in page.items))
        if self._cursor is None:
            self._silences_before, self._silences = self._silences, {}
        return {
            "checked": len(page.items),
            "changed": sum(1 for one in found if one),
        }

    async def _check_one(self, sandbox: Sandbox) -> bool:
        """Return True when `ready` was changed, or an app was started."""
        if sandbox.is_claimed(self._clock()) or sandbox.instance_id is None:
            return False
        is_waking = sandbox.wake is not None and sandbox.wake.step is not None
        if is_waking:
            return False
        async with self._places:
            try:
                return await self._compare(sandbox)
            except SandkeeperError as error:
                log.warning("app_not_watched", sandbox_id=sandbox.id, error=str(error))
                return False

    async def _compare(self, sandbox: Sandbox) -> bool:
        answers = await self._apps.answers(sandbox)
        if answers:
            if not sandbox.run.ready:
                await self._record(sandbox, ready=True, reason="the app answers")
                return True
            return False
        if not sandbox.run.ready:
            return await self._start_forgotten(sandbox)
        silences = self._silences_before.get(sandbox.id, 0) + 1
        self._silences[sandbox.id] = silences
        if silences < SILENCES_MAX:
            return False
        said = await self._apps.read(sandbox, lines=1)
        reason = "the app does not answer"
        if said.exit_code is not None:
            reason = f"the app ended with exit code {said.exit_code}"
        await self._record(sandbox, ready=False, reason=reason)
        return True

    async def _start_forgotten(self, sandbox: Sandbox) -> bool:
        """Start an app that no wake has tried to start in this generation."""
        mark = sandbox.wake
        is_tried = mark is not None and mark.generation == sandbox.generation
        if is_tried or sandbox.launch.start_command is None:
            return False
        await self._wakes.start(sandbox.id, actor=ACTOR)
        return True

    async def _record(self, sandbox: Sandbox, *, ready: bool, reason: str) -> None:
        event = SandboxReady(
            sandbox_id=sandbox.id,
            owner=sandbox.owner,
            at=self._clock(),
            actor=ACTOR,
            reason=reason,
            ready=ready,
            url=sandbox.run.url,
        )
        try:
            await self._store.sandboxes.save(
                sandbox.evolve(ready=ready),
                [event],
                expect_version=sandbox.version,
                now=self._clock(),
            )
        except VersionConflictError:
            return  # The record has changed since; the next pass checks it again.
        log.info("app_seen", sandbox_id=sandbox.id, ready=ready, reason=reason)
