"""Health checks: whether a sandbox that should run really does what it is for.

For code, the check is an `echo`. For a desktop, its screen must also answer, and is started if it
is missing; so must its browser, if there is one. Callers that check one instance at the same time
share one check. A check that hangs has failed.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Awaitable, Callable

import structlog

from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.sessions.session import SessionKind
from sandkeeper.services.deps import Deps
from sandkeeper.services.sessions.desktop_display import ENSURE, STARTING
from sandkeeper.services.sessions.sdk_handles import SdkHandleCache

log = structlog.get_logger(__name__)

ECHO = "echo sandkeeper"
# A browser that offers its DevTools port must answer there with anything, and may take a moment to
# open it; without the port there is nothing to ask. Everything has a time limit because a hung
# server never answers.
_BROWSERS = r"""
for port in $(for pid in $(pgrep -x 'chrome|chromium|google-chrome|firefox|firefox-esr'); do
    tr '\0' ' ' 2>/dev/null </proc/$pid/cmdline |
      sed -nE 's/.* --remote-debugging-port[= ]([1-9][0-9]*) .*/\1/p'
  done | sort -u); do
  curl -s -o /dev/null --max-time 3 --retry 5 --retry-delay 1 --retry-connrefused \
    --retry-max-time 3 "http://127.0.0.1:$port/json/version" || exit 1
done
"""
COMMANDS = {
    SessionKind.EXECUTION: ECHO,
    SessionKind.DESKTOP: f"{ENSURE}{_BROWSERS}{ECHO}",
}
# How long a screen may take to start, and how often it is polled until then.
SCREEN_S = 45.0
POLL_INTERVAL_S = 0.1


class HealthChecker:
    """Check whether sandboxes work."""

    def __init__(
        self,
        deps: Deps,
        natives: SdkHandleCache,
        *,
        on_failure: Callable[[SessionKind], Awaitable[None]] | None = None,
    ) -> None:
        self._natives = natives
        self._timeout_s = deps.settings.session_check_timeout_s
        self._on_failure = on_failure
        self._under_way: dict[tuple[str, str], asyncio.Task[bool]] = {}

    async def check(
        self, sandbox: Sandbox, kind: SessionKind, *, folder: str | None = None
    ) -> bool:
        """Return whether it works. Create `folder` too, for a conversation that has its own."""
        command = COMMANDS[kind]
        if folder is not None:
            command = f"mkdir -p {shlex.quote(folder)} && {command}"
        key = (str(sandbox.instance_id), command)
        task = self._under_way.get(key)
        if task is None:
            task = self._under_way[key] = asyncio.create_task(self._check(sandbox, kind, command))
            task.add_done_callback(lambda _done: self._under_way.pop(key, None))
        return await asyncio.shield(task)

    async def close(self) -> None:
        """End the checks that are under way."""
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _check(self, sandbox: Sandbox, kind: SessionKind, command: str) -> bool:
        try:
            async with asyncio.timeout(SCREEN_S):
                while True:
                    said = await self._ask(sandbox, command)
                    if STARTING not in said:
                        break
                    await asyncio.sleep(POLL_INTERVAL_S)
            if "sandkeeper" in said:
                return True
            error: object = "it said something else"
        except Exception as failure:  # noqa: BLE001 - Whatever goes wrong, it does not work.
            error = f"{type(failure).__name__}: {failure}"
        self._natives.forget(sandbox.instance_id)
        log.warning("health_check_failed", sandbox_id=sandbox.id, kind=kind.value, error=str(error))
        if self._on_failure is not None:
            await self._on_failure(kind)
        return False

    async def _ask(self, sandbox: Sandbox, command: str) -> str:
        async with asyncio.timeout(self._timeout_s):
            native = await self._natives.open(sandbox)
            return await native.run(command, timeout_s=self._timeout_s)
