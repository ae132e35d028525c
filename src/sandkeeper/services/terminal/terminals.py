"""A shell on a pseudo-terminal in a sandbox, for a person.

Opening one is activity, and so is each input; it wakes a sandbox that does not run. A shell
outlives a connection that is lost: within `KEPT_S` its user may take it up again by its pid. A
keeper that dies leaves its shells; they end with the run of their sandbox.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import e2b
import structlog
from e2b import AsyncSandbox

from sandkeeper.domain.access import AuditAction
from sandkeeper.domain.activity import ActivityClass
from sandkeeper.domain.errors import SandkeeperError, WakeFailedError
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import State
from sandkeeper.services.access.audit import AuditLog
from sandkeeper.services.activity.buffer import ActivityBuffer
from sandkeeper.services.deps import Deps
from sandkeeper.services.wake.wakes import Wakes, get_failure

log = structlog.get_logger(__name__)

# Shells that people use through this process. More costs a connection each; fewer refuses a person.
OPEN_MAX: Final = 100
# A shell waits this long for its user to come back. Longer keeps forgotten ones; shorter loses the
# work of one whose network needs a moment.
KEPT_S: Final = 60.0
# A wake may take this long before the user is told that it failed.
WAKE_S: Final = 300.0
# One call carries this much input; a longer paste is several calls, in order.
INPUT_MAX: Final = 16 * 1024
# Input is reported as activity at most this often.
TOUCH_S: Final = 10.0
SOURCE: Final = "terminal"

OnOutput = Callable[[bytes], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class TerminalSize:
    """How many characters a terminal shows."""

    cols: int
    rows: int

    def render(self) -> e2b.PtySize:
        return e2b.PtySize(rows=self.rows, cols=self.cols)


class Terminal:
    """One shell, and the connection that shows it."""

    def __init__(
        self,
        sandbox: Sandbox,
        native: AsyncSandbox,
        handle: Any,
        activities: ActivityBuffer,
        translate: Callable[[Exception], SandkeeperError],
    ) -> None:
        self.pid: int = handle.pid
        self.sandbox = sandbox
        self.key = (sandbox.instance_id or "", self.pid)
        self._native = native
        self._handle = handle
        self._activities = activities
        self._translate = translate
        self._touched_at = 0.0

    async def write(self, data: bytes) -> None:
        """Send input, in order; each call waits until the sandbox has it."""
        if time.monotonic() - self._touched_at >= TOUCH_S:
            self._touched_at = time.monotonic()
            self._activities.record(self.sandbox.id, kind=ActivityClass.INTENT, source=SOURCE)
        try:
            for start in range(0, len(data), INPUT_MAX):
                await self._native.pty.send_stdin(self.pid, data[start : start + INPUT_MAX])
        except Exception as error:
            raise self._translate(error) from error

    async def resize(self, size: TerminalSize) -> None:
        try:
            await self._native.pty.resize(self.pid, size.render())
        except Exception as error:
            raise self._translate(error) from error

    async def wait(self) -> int:
        """Return the shell's exit code when it ends."""
        try:
            done = await self._handle.wait()
        except e2b.CommandExitException as error:
            return error.exit_code
        except Exception as error:
            raise self._translate(error) from error
        return int(done.exit_code)

    async def detach(self) -> None:
        """Stop showing it; the shell goes on."""
        await self._handle.disconnect()

    async def end(self) -> None:
        await self._native.pty.kill(self.pid)


class Terminals:
    """Open shells, and end those that no one came back to."""

    def __init__(
        self, deps: Deps, activities: ActivityBuffer, audit: AuditLog, wakes: Wakes
    ) -> None:
        self._store = deps.store
        self._providers = deps.providers
        self._activities = activities
        self._audit = audit
        self._wakes = wakes
        self._open = 0
        self._shown: dict[tuple[str, int], Terminal] = {}
        self._ending: dict[tuple[str, int], asyncio.Task[None]] = {}

    @property
    def is_full(self) -> bool:
        return self._open >= OPEN_MAX

    async def wake(self, sandbox: Sandbox, *, actor: str) -> Sandbox:
        """Return the sandbox when it runs; opening a terminal is a request for that."""
        self._activities.record(sandbox.id, kind=ActivityClass.INTENT, source=SOURCE)
        if sandbox.state is State.RUNNING:
            return sandbox
        begun = await self._wakes.start(sandbox.id, actor=actor, wait_s=WAKE_S)
        ended = await self._wakes.wait(begun, within_s=WAKE_S)
        failure = get_failure(ended)
        if failure is not None:
            raise failure
        if not ended.is_over:
            raise WakeFailedError(f"The wake is not over after {WAKE_S:.0f} seconds.")
        return await self._store.sandboxes.get(sandbox.id)

    async def open(
        self,
        sandbox: Sandbox,
        *,
        size: TerminalSize,
        on_output: OnOutput,
        actor: str,
        address: str,
        pid: int | None = None,
    ) -> Terminal:
        """Open a shell in a running sandbox, or take up the one with this pid if it still runs."""
        self._open += 1
        try:
            terminal = await self._connect(sandbox, size=size, on_output=on_output, pid=pid)
        except BaseException:
            self._open -= 1
            raise
        self._shown[terminal.key] = terminal
        is_same = terminal.pid == pid
        await self._audit.record(
            actor,
            AuditAction.TERMINAL_OPENED,
            str(sandbox.owner),
            address=address,
            pid=terminal.pid,
            resumed=is_same,
        )
        return terminal

    async def _connect(
        self, sandbox: Sandbox, *, size: TerminalSize, on_output: OnOutput, pid: int | None
    ) -> Terminal:
        instance_id = sandbox.instance_id
        assert instance_id is not None
        provider = self._providers.get(sandbox)

        def translate(error: Exception) -> SandkeeperError:
            return provider.translate(error, instance_id=instance_id)

        native = await provider.open_sdk_sandbox(instance_id)
        key = (instance_id, pid or 0)
        ending = self._ending.pop(key, None)
        if ending is not None:
            ending.cancel()
        try:
            handle = None
            # A new connection may come before the end of the lost one was noticed.
            if pid is not None and (ending is not None or key in self._shown):
                handle = await self._take_up(native, pid, on_output)
            if handle is None:
                # A timeout of 0 is none.
                handle = await native.pty.create(size.render(), on_output, timeout=0)
        except Exception as error:
            raise translate(error) from error
        return Terminal(sandbox, native, handle, self._activities, translate)

    async def _take_up(self, native: AsyncSandbox, pid: int, on_output: OnOutput) -> Any:
        """Return a handle of the shell; None if it has ended."""
        try:
            return await native.pty.connect(pid, on_output, timeout=0)
        except e2b.NotFoundException:
            return None

    async def leave(self, terminal: Terminal, *, is_over: bool) -> None:
        """Let go of a terminal whose connection ended; the shell waits for its user to return."""
        self._open -= 1
        if self._shown.get(terminal.key) is terminal:
            del self._shown[terminal.key]
            if not is_over:
                self._ending[terminal.key] = asyncio.create_task(self._end_later(terminal))
        await terminal.detach()

    async def _end_later(self, terminal: Terminal) -> None:
        await asyncio.sleep(KEPT_S)
        self._ending.pop(terminal.key, None)
        try:
            await terminal.end()
        except Exception as error:  # noqa: BLE001  Whatever it is, the run of the sandbox ends it.
            log.info("terminal_not_ended", sandbox_id=terminal.sandbox.id, error=repr(error))

    async def close(self) -> None:
        """Forget the shells that wait: the process is about to stop."""
        for task in self._ending.values():
            task.cancel()
        self._ending.clear()
