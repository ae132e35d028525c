"""Work inside a sandbox without a claim: captures and edits of files, of which many run at once.

It must not outlive its moment either. What it sends inside carries the version of the row under
which it began, so a newer claim has it refused, and it has a deadline of its own: while the process
runs, the deadline moves on; one that stood still finds it passed, and sends nothing more.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from sandkeeper.common.elapsed import now_s
from sandkeeper.domain.errors import SandboxBusyError, SandkeeperError
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.providers.acting_claim import ActingClaim, acting_under
from sandkeeper.services.deps import Deps

STANDSTILL_MAX_S: Final = 8.0
"""A process that stood still for this long sends nothing more. It is less than the time after which
the other replicas take a process for dead. Lower fails on a busy machine.
"""
PROLONG_S: Final = 2.0
POLL_S: Final = 0.05


class UnclaimedWork:
    """Enter sandboxes that no operation holds."""

    def __init__(self, deps: Deps) -> None:
        self._store = deps.store
        self._clock = deps.clock

    @asynccontextmanager
    async def enter(
        self, sandbox_id: str, *, wait_s: float = 0.0, is_edit: bool = False
    ) -> AsyncIterator[Sandbox]:
        """Yield the row, and let the block work in its sandbox without holding it.

        Wait up to `wait_s` for the operation that holds it, then raise SandboxBusyError. An edit
        gets a version of its own, so that it refuses every older one.
        """
        loop = asyncio.get_running_loop()
        ends = loop.time() + wait_s
        while True:
            asked_s = now_s()
            sandbox = await self._read(sandbox_id, is_edit=is_edit)
            if not sandbox.is_claimed(self._clock()):
                break
            if loop.time() >= ends:
                raise SandboxBusyError(sandbox_id=sandbox_id, retry_after_s=1)
            await asyncio.sleep(POLL_S)

        async def confirm() -> bool:
            return (await self._store.sandboxes.get(sandbox_id)).version == sandbox.version

        acting = ActingClaim(
            number=sandbox.version, until_s=asked_s + STANDSTILL_MAX_S, confirm=confirm
        )
        prolonging = asyncio.create_task(self._prolong(sandbox, acting))
        try:
            with acting_under(acting):
                yield sandbox
        finally:
            prolonging.cancel()
            await asyncio.gather(prolonging, return_exceptions=True)

    async def _read(self, sandbox_id: str, *, is_edit: bool) -> Sandbox:
        if is_edit:
            numbered = await self._store.sandboxes.number_work(sandbox_id, now=self._clock())
            if numbered is not None:
                return numbered
        return await self._store.sandboxes.get(sandbox_id)

    async def _prolong(self, sandbox: Sandbox, acting: ActingClaim) -> None:
        """Move the deadline while the row has the same instance; never one that has passed."""
        while True:
            await asyncio.sleep(PROLONG_S)
            asked_s = now_s()
            with contextlib.suppress(SandkeeperError):
                fresh = await self._store.sandboxes.get(sandbox.id)
                if now_s() >= acting.until_s or fresh.instance_id != sandbox.instance_id:
                    return
                acting.until_s = asked_s + STANDSTILL_MAX_S
