"""The engine's view of a process that runs inside a sandbox."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import fcntl
import os
import signal
import struct
import termios
from collections.abc import Callable
from typing import Any

from sandkeeper.engine.runtime.bubblewrap.sandbox_handle import SandboxHandle
from sandkeeper.engine.runtime.spawner.client import SpawnerClient

_SIGNALED = 128
"""What gVisor's client adds to the number of the signal that ended a program. Programs may exit
with such a code themselves, so it is read as a signal only if that was sent from here."""
CODE_LOST = 255
"""Stands for the exit code of a process whose parent, the spawner, died before it."""


class RunningChild:
    """A process started by the spawner. Fulfils the contract's `Child`."""

    def __init__(
        self,
        described: dict[str, Any],
        descriptors: list[int],
        spawner: SpawnerClient,
        find_handle: Callable[[str], SandboxHandle | None],
        forget: Callable[[int], None],
    ) -> None:
        self.number: int = described["child"]
        self.sandbox_id: str = described["sandbox_id"]
        self.pid: int = described["inner"]
        self.label: bytes = base64.b64decode(described["label"])
        self.has_terminal: bool = described["terminal"]
        held = dict(zip(described["held"], descriptors, strict=True))
        self.stdout: int | None = held.get("stdout")
        self.stderr: int | None = held.get("stderr")
        self.stdin: int | None = held.get("stdin")
        self._terminal = os.dup(held["stdout"]) if self.has_terminal else None
        self._spawner = spawner
        self._find_handle = find_handle
        self._sent: set[int] = set()
        self._forget = forget
        self._code: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._pidfd: int | None = None
        with contextlib.suppress(OSError):
            self._pidfd = os.pidfd_open(described["pid"]) if described["code"] is None else None
        if described["code"] is not None:
            self.record_end(described["code"])

    @property
    def is_ended(self) -> bool:
        return self._code.done()

    def record_end(self, code: int) -> None:
        """Record the exit code; the first one counts."""
        if self._code.done():
            return
        if code > _SIGNALED and code - _SIGNALED in self._sent:
            code = _SIGNALED - code
        self._code.set_result(code)
        self._stop_watching()
        if self._terminal is not None:
            os.close(self._terminal)
            self._terminal = None

    def on_spawner_lost(self) -> None:
        """Continue without the spawner: the end will be seen, the exit code is lost."""
        if self._code.done():
            return
        if self._pidfd is None:
            self.record_end(CODE_LOST)
            return
        loop = asyncio.get_running_loop()
        loop.add_reader(self._pidfd, lambda: self.record_end(CODE_LOST))

    async def wait(self) -> int:
        code = await asyncio.shield(self._code)
        self._forget(self.number)
        return code

    def signal(self, number: int) -> None:
        if self._pidfd is None:
            return
        handle = self._find_handle(self.sandbox_id)
        if handle is not None and handle.is_gvisor:
            self._sent.add(number)
            if number == signal.SIGKILL:
                # The process that is followed here only waits for the program.
                order = {"op": "kill_session", "sandbox": handle.record, "session": self.pid}
                self._spawner.notify(order)
                return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)
        if number == signal.SIGKILL and handle is not None:
            handle.kill_session(self.pid)

    def close_stdin(self) -> None:
        self._spawner.notify({"op": "close_stdin", "child": self.number})
        if self.stdin is not None:
            os.close(self.stdin)
            self.stdin = None

    def resize(self, columns: int, rows: int) -> None:
        if self._terminal is not None:
            size = struct.pack("HHHH", rows, columns, 0, 0)
            fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, size)

    def detach(self) -> None:
        """Stop following the process, because the engine stops; it runs on."""
        self._stop_watching()
        if self._terminal is not None:
            os.close(self._terminal)
            self._terminal = None

    def _stop_watching(self) -> None:
        pidfd, self._pidfd = self._pidfd, None
        if pidfd is not None:
            asyncio.get_running_loop().remove_reader(pidfd)
            os.close(pidfd)
