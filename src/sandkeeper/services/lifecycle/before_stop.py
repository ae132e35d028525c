"""Before a run stops: save its files, and decide what happens when that fails.

Sleep must not lose a user's work, so a failure stops the pause or the end. But a sandbox that hangs
must not run for ever: after some failures the sweep goes on without it, and the reason says so. A
person who kills a sandbox does not wait long for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from sandkeeper.domain.errors import SandboxBusyError, SandkeeperError, StoreUnavailableError
from sandkeeper.domain.events import FilesCaptured, OperationFailed, StateChanged
from sandkeeper.domain.receipt import FILES_NOT_SAVED
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import State
from sandkeeper.services.deps import Deps
from sandkeeper.services.lifecycle.claims import SWEEP_OPERATION, Claims

log = structlog.get_logger(__name__)

BeforePause = Callable[[Sandbox], Awaitable[None]]

# The sweep goes on without a capture when so many have failed. Higher keeps a sandbox that hangs
# running; lower gives up on a file store that is away for a moment.
CAPTURES_MAX = 3

# How many events to read for earlier failures. A user who tries to wake a sandbox that hangs adds
# some between two of them.
EVENTS_READ = 50

# How long a manual kill waits for the files to be saved. A hung sandbox takes this long.
END_HOOK_S = 20.0


async def nothing_before_pause(_sandbox: Sandbox) -> None:
    """Do nothing: the default hook, which keeps no files."""


def describe_unsaved(error: SandkeeperError) -> str:
    """Return what the reason of a stop says about files that could not be saved."""
    return f"{FILES_NOT_SAVED}: {error.message}"


class BeforeStop:
    """Run the hook under the claim with which the sandbox is stopped."""

    def __init__(self, deps: Deps, claims: Claims, hook: BeforePause) -> None:
        self._store = deps.store
        self._claims = claims
        self._hook = hook

    async def save(self, held: Sandbox) -> Sandbox:
        """Run the hook, and return the row as it is afterwards.

        If the hook was quick, the row is not read again: recording the result detects what other
        replicas wrote in that time.
        """
        async with self._claims.keep_alive(held):
            await self._hook(held)
        return await self._claims.renew(held)

    async def save_if_possible(self, held: Sandbox) -> tuple[Sandbox, SandkeeperError | None]:
        """Do as `save`; when it failed often, return the failure instead of raising it."""
        if held.state is not State.RUNNING:
            return held, None
        try:
            return await self.save(held), None
        except (SandboxBusyError, StoreUnavailableError):
            raise
        except SandkeeperError as error:
            if await self._count_failures(held) < CAPTURES_MAX - 1:
                raise
            log.warning("stopped_without_capture", sandbox_id=held.id, error=str(error))
            return await self._claims.renew(held), error

    async def save_quickly(self, held: Sandbox) -> Sandbox:
        """Do as `save`, but do not wait long, nor for files that cannot be saved now."""
        if held.state is not State.RUNNING:
            return held
        try:
            async with asyncio.timeout(END_HOOK_S):
                return await self.save(held)
        except (SandkeeperError, TimeoutError) as error:
            log.warning("ended_without_hook", sandbox_id=held.id, error=repr(error))
            return await self._claims.renew(held)

    async def _count_failures(self, held: Sandbox) -> int:
        """Return how often the sweep failed here since the last capture or change of state."""
        count = 0
        for event in await self._store.events.of(held.id, limit=EVENTS_READ):
            if event.type in (FilesCaptured.type, StateChanged.type):
                break
            is_failure = event.type == OperationFailed.type
            count += is_failure and event.data["operation"] == SWEEP_OPERATION
        return count
