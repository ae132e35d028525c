"""One process of a sandbox, from its start to half a minute after its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field

import orjson

from sandkeeper.engine.envd.processes.output import Kind, ProcessOutput
from sandkeeper.engine.runtime.contract import Child, RuntimeFaultError

LABEL = b"envd1 "
"""How our own processes are known among the children a new engine finds."""

LINGER_S = 2.0
"""How long a killed process's output may stay open by something that left its session."""

STEP_S = 1.0
"""A time limit is counted down in such steps, so that time spent paused is not counted. Longer
steps count more of a pause by mistake, shorter ones wake the engine more often."""


class InputClosedError(Exception):
    """The process does not read input, or not of this kind."""


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """What was asked for. It is kept beside the process, so that a new engine knows it too."""

    cmd: str
    args: list[str] = field(default_factory=list)
    envs: dict[str, str] = field(default_factory=dict)
    cwd: str | None = None
    tag: str | None = None
    terminal: bool = False
    stdin: bool = True
    kill_at: float | None = None
    """When the time limit ends the process, in seconds since the epoch."""

    def render_label(self) -> bytes:
        return LABEL + orjson.dumps(asdict(self))

    @classmethod
    def parse_label(cls, label: bytes) -> ProcessSpec | None:
        """Return the spec of a child that is ours, None for any other."""
        if not label.startswith(LABEL):
            return None
        return cls(**orjson.loads(label[len(LABEL) :]))


@dataclass(frozen=True, slots=True)
class ProcessExit:
    """How a process ended, in the words of E2B's wire."""

    exit_code: int
    exited: bool
    status: str

    @property
    def error(self) -> str | None:
        return None if self.exited and self.exit_code == 0 else self.status

    @classmethod
    def of(cls, code: int) -> ProcessExit:
        """Read an exit code, or minus a signal's number."""
        if code >= 0:
            return cls(exit_code=code, exited=True, status=f"exit status {code}")
        name = signal.strsignal(-code) or f"signal {-code}"
        return cls(exit_code=-1, exited=False, status=f"signal: {name.lower()}")


class Process:
    """A running process: its output is always read, its input written in order."""

    def __init__(self, child: Child, spec: ProcessSpec, *, is_running: Callable[[], bool]) -> None:
        self._child = child
        self._is_running = is_running
        self._input = asyncio.Lock()
        self._was_killed = False
        self._timer: asyncio.TimerHandle | None = None
        self._stdin = child.stdin
        # The output reads the terminal and closes it, so the input writes to a copy of its own.
        self._terminal = os.dup(child.stdout) if spec.terminal and child.stdout else None
        self._unblocked: asyncio.Future[None] | None = None
        self.spec = spec
        self.pid = child.pid
        self.end: ProcessExit | None = None
        self.has_timed_out = False
        self._gone = asyncio.Event()
        self.output = ProcessOutput(_descriptors(child, spec))
        if spec.kill_at is not None:
            self._count_down(max(0.001, spec.kill_at - time.time()))

    async def run(self) -> None:
        """Wait for the end of the process and of its output, as E2B does."""
        try:
            end = ProcessExit.of(await self._child.wait())
        except RuntimeFaultError as fault:
            end = ProcessExit(exit_code=-1, exited=False, status=f"exit status unknown: {fault}")
        self._was_killed = self._was_killed or not end.exited
        await self._drained_or_killed()
        if self._timer is not None:
            self._timer.cancel()
        self.end = end
        self._close_terminal()
        self.close_stdin()
        self.output.finish()
        self._gone.set()

    async def _drained_or_killed(self) -> None:
        """Wait for the output's end, which after a kill is not waited for long."""
        while True:
            try:
                async with asyncio.timeout(LINGER_S):
                    await self.output.drained()
            except TimeoutError:
                if self._was_killed:
                    return
            else:
                return

    async def ended(self, within_s: float) -> None:
        """Wait for the end, but no longer than that."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._gone.wait()

    def send_signal(self, number: int) -> None:
        if number == signal.SIGKILL:
            self._was_killed = True
        self._child.signal(number)

    def resize(self, columns: int, rows: int) -> None:
        self._child.resize(columns, rows)

    async def write(self, data: bytes, *, to_terminal: bool) -> None:
        """Write all of `data`, waiting while the process does not read. Raises InputClosedError."""
        async with self._input:
            view = memoryview(data)
            while view:
                descriptor = self._terminal if to_terminal else self._stdin
                if self.end is not None or descriptor is None:
                    raise InputClosedError
                try:
                    view = view[os.write(descriptor, view) :]
                except BlockingIOError:
                    await self._writable(descriptor)
                except OSError as error:
                    raise InputClosedError from error

    def close_stdin(self) -> None:
        """Let the process read the end of its input. The second call finds it closed."""
        if self._stdin is not None:
            descriptor, self._stdin = self._stdin, None
            asyncio.get_running_loop().remove_writer(descriptor)
            self._child.close_stdin()
        self._unblock()

    async def _writable(self, descriptor: int) -> None:
        """Wait until the process reads again, or its input is closed."""
        loop = asyncio.get_running_loop()
        self._unblocked = loop.create_future()
        loop.add_writer(descriptor, self._unblock)
        try:
            await self._unblocked
        finally:
            self._unblocked = None
            if descriptor in (self._stdin, self._terminal):
                loop.remove_writer(descriptor)

    def _unblock(self) -> None:
        if self._unblocked is not None and not self._unblocked.done():
            self._unblocked.set_result(None)

    def detach(self) -> None:
        """Stop following the process, because the engine stops; it runs on."""
        if self._timer is not None:
            self._timer.cancel()
        self._close_terminal()
        if self._stdin is not None:
            asyncio.get_running_loop().remove_writer(self._stdin)
            os.close(self._stdin)
            self._stdin = None
        self._unblock()
        self.output.finish()

    def _close_terminal(self) -> None:
        if self._terminal is not None:
            asyncio.get_running_loop().remove_writer(self._terminal)
            os.close(self._terminal)
            self._terminal = None

    def _count_down(self, left_s: float) -> None:
        step_s = min(left_s, STEP_S)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(step_s, self._step, left_s, step_s)

    def _step(self, left_s: float, step_s: float) -> None:
        # A paused sandbox's time stands still, so nothing in it may run out of time.
        if self._is_running():
            left_s -= step_s
        if left_s > 0:
            self._count_down(left_s)
        else:
            self.has_timed_out = True
            self.send_signal(signal.SIGKILL)


def _descriptors(child: Child, spec: ProcessSpec) -> Mapping[Kind, int]:
    if spec.terminal:
        return {} if child.stdout is None else {"pty": child.stdout}
    found: dict[Kind, int] = {}
    if child.stdout is not None:
        found["stdout"] = child.stdout
    if child.stderr is not None:
        found["stderr"] = child.stderr
    return found
