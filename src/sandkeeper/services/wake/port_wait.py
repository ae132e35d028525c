"""Wait for the app of a woken sandbox to answer on its port."""

from __future__ import annotations

import asyncio

from sandkeeper.domain.errors import AppNotReadyError, WrongStateError
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import State
from sandkeeper.services.deps import Deps
from sandkeeper.services.wake.app import AppRunner
from sandkeeper.services.wake.progress import WakeProgress

# The pauses between checks of the port; the last one repeats. Lower loads the app; higher keeps a
# person waiting for an app that is already up.
PORT_PROBE_DELAYS_S = (0.02, 0.05, 0.05, 0.1, 0.1, 0.2, 0.2, 0.3, 0.5)
LAST_LINES = 5

# How long to wait for an app that Sandkeeper does not start; the app monitor sees it later.
UNPROMISED_S = 2.0


class PortWait:
    """Probe a port until it answers, and stop when that makes no sense any more."""

    def __init__(self, deps: Deps, apps: AppRunner) -> None:
        self._store = deps.store
        self._apps = apps
        self._app_start_timeout_s = deps.settings.app_start_timeout_s

    async def run(self, run: WakeProgress, sandbox: Sandbox) -> bool:
        """Return whether the app answers. Without a start command, wait only briefly."""
        is_promised = sandbox.launch.start_command is not None
        loop = asyncio.get_running_loop()
        began = loop.time()
        ends = began + (self._app_start_timeout_s if is_promised else UNPROMISED_S)
        probes = 0
        while not await self._apps.answers(sandbox):
            pause_s = PORT_PROBE_DELAYS_S[min(probes, len(PORT_PROBE_DELAYS_S) - 1)]
            probes += 1
            if probes >= len(PORT_PROBE_DELAYS_S):
                await self._check_still_up(sandbox)
            if loop.time() > ends and not is_promised:
                return False
            if loop.time() > ends and not await run.is_wanted():
                raise AppNotReadyError(
                    f"Nothing answered on port {sandbox.launch.port} within "
                    f"{loop.time() - began:.0f} s.",
                    port=sandbox.launch.port,
                )
            await asyncio.sleep(pause_s)
        return True

    async def _check_still_up(self, sandbox: Sandbox) -> None:
        """Raise when waiting makes no sense: the sandbox sleeps or ended, or the app ended."""
        fresh = await self._store.sandboxes.get(sandbox.id)
        if fresh.state is not State.RUNNING or fresh.instance_id != sandbox.instance_id:
            raise WrongStateError(
                f"It became {fresh.state.value} before its app answered.", state=fresh.state.value
            )
        if sandbox.launch.start_command is None:
            return
        said = await self._apps.read(sandbox, lines=LAST_LINES)
        if said.exit_code is not None and not await self._apps.answers(sandbox):
            raise AppNotReadyError(
                f"The app ended with exit code {said.exit_code} before it answered on port "
                f"{sandbox.launch.port}.",
                exit_code=said.exit_code,
                last_lines="\n".join(said.lines),
            )
