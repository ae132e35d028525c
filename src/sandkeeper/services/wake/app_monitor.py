"""Monitor the apps of running sandboxes from outside: which answer, and which stopped answering.

The monitor only reads: it wakes nothing, restarts nothing and counts as no activity. One exception:
it starts an app that was never started in this generation of its sandbox, because a crash came
between the two.
"""

from __future__ import annotations

import asyncio
import time

import structlog

from sandkeeper.domain.errors import SandkeeperError, VersionConflictError
from sandkeeper.domain.events import SandboxReady
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import State
from sandkeeper.services.deps import Deps
from sandkeeper.services.wake.app import AppRunner
from sandkeeper.services.wake.wakes import Wakes
from sandkeeper.store.sandboxes.query import SandboxQuery
from sandkeeper.telemetry import name_owner

log = structlog.get_logger(__name__)

ACTOR = "app-watch"

# Apps checked in one pass, and at once. Higher loads this process and the sandboxes; lower sees a
# crash later. What does not fit is checked in the next pass.
PASS_MAX = 500
AT_ONCE = 32

# The time between two checks of one app that visitors ask for. Lower loads the provider with what
# strangers do; higher shows a change later.
LOOKED_S = 2.0


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
        self._looked: dict[str, float] = {}
        self._places = asyncio.Semaphore(AT_ONCE)

    async def check(self) -> dict[str, int]:
        """Run one pass and return the counts of what it found."""
        query = SandboxQuery(states=(State.RUNNING,), limit=self._pass_max)
        page = await self._store.sandboxes.list(query, self._cursor)
        self._cursor = page.next_cursor
        found = await asyncio.gather(*(self._check_one(one) for one in page.items))
        return {
            "checked": len(page.items),
            "changed": sum(1 for one in found if one),
        }

    async def look_again(self, sandbox: Sandbox) -> Sandbox:
        """Check the app now, because a visitor found it otherwise; return the newest record.

        Once per sandbox and `LOOKED_S`: visitors come by the hundred.
        """
        now_s = time.monotonic()
        if len(self._looked) > PASS_MAX:
            self._looked = {one: at for one, at in self._looked.items() if now_s - at < LOOKED_S}
        if now_s - self._looked.get(sandbox.id, -LOOKED_S) >= LOOKED_S:
            self._looked[sandbox.id] = now_s
            await self._check_one(sandbox)
        return await self._store.sandboxes.get(sandbox.id)

    async def _check_one(self, sandbox: Sandbox) -> bool:
        """Return True when `ready` was changed, or an app was started."""
        if sandbox.is_claimed(self._clock()) or sandbox.instance_id is None:
            return False
        is_waking = sandbox.wake is not None and sandbox.wake.step is not None
        if is_waking:
            return False
        name_owner(sandbox.owner)
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
        if not sandbox.run.ready and await self._start_forgotten(sandbox):
            return True
        if sandbox.run.app_exit_code is not None:
            return False  # It is known to have ended.
        exit_code = await self._find_exit_code(sandbox)
        reason = "the app does not answer"
        if exit_code is not None:
            reason = f"the app ended with exit code {exit_code}"
        elif not sandbox.run.ready:
            return False  # It starts, and a wake gives it the time it needs.
        await self._record(sandbox, ready=False, reason=reason, exit_code=exit_code)
        return True

    async def _find_exit_code(self, sandbox: Sandbox) -> int | None:
        """Return how the app ended; None if it runs, or if the provider does not answer either."""
        if sandbox.launch.start_command is None:
            return None
        try:
            return (await self._apps.read(sandbox, lines=1)).exit_code
        except SandkeeperError as error:
            log.info("app_log_not_read", sandbox_id=sandbox.id, code=error.code)
            return None

    async def _start_forgotten(self, sandbox: Sandbox) -> bool:
        """Start an app that no wake has tried to start in this generation."""
        mark = sandbox.wake
        is_tried = mark is not None and mark.generation == sandbox.generation
        if is_tried or sandbox.launch.start_command is None:
            return False
        await self._wakes.start(sandbox.id, actor=ACTOR)
        return True

    async def _record(
        self, sandbox: Sandbox, *, ready: bool, reason: str, exit_code: int | None = None
    ) -> None:
        now = self._clock()
        event = SandboxReady(
            sandbox_id=sandbox.id,
            owner=sandbox.owner,
            at=now,
            actor=ACTOR,
            reason=reason,
            ready=ready,
            url=sandbox.run.url,
        )
        try:
            await self._store.sandboxes.save(
                sandbox.evolve(
                    ready=ready, app_down_at=None if ready else now, app_exit_code=exit_code
                ),
                [event],
                expect_version=sandbox.version,
                now=now,
            )
        except VersionConflictError:
            return  # The record has changed since; the next pass checks it again.
        log.info("app_seen", sandbox_id=sandbox.id, ready=ready, reason=reason)
