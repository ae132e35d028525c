"""The processes of all sandboxes. They live on their own: no request owns one."""

from __future__ import annotations

import asyncio

from sandkeeper.engine.envd.processes.output import Listener
from sandkeeper.engine.envd.processes.process import Process, ProcessSpec
from sandkeeper.engine.runtime.contract import Command, Runtime
from sandkeeper.engine.sandboxes.routing import SandboxLookup

SAID_MAX_BYTES = 4096
RETAINED_S = 30.0
"""How long an ended process still answers a `Connect`."""


class ProcessTable:
    """Starts processes, finds them by pid or tag, and adopts those of an earlier engine."""

    def __init__(self, runtime: Runtime, sandboxes: SandboxLookup) -> None:
        self._runtime = runtime
        self._sandboxes = sandboxes
        self._alive: dict[str, dict[int, Process]] = {}
        self._ended: dict[str, dict[int, Process]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(
        self, sandbox_id: str, command: Command, spec: ProcessSpec
    ) -> tuple[Process, Listener]:
        """Start a process and listen to it from its first byte.

        It is in the table even if the caller is cancelled. Raises as `Runtime.spawn`.
        """
        launch = asyncio.ensure_future(self._launch(sandbox_id, command, spec))
        try:
            return await asyncio.shield(launch)
        except asyncio.CancelledError:
            launch.add_done_callback(_stop_listening)
            raise

    async def run(self, sandbox_id: str, argv: tuple[str, ...]) -> str | None:
        """Run a command as root to its end; return None on success, else its output."""
        command = Command(argv=argv, env={}, user="root", cwd="/", stdin=False)
        process, listener = await self.start(
            sandbox_id, command, ProcessSpec(cmd=argv[0], stdin=False)
        )
        said = b""
        try:
            while (chunk := await listener.next()) is not None:
                said = (said + chunk[1])[-SAID_MAX_BYTES:]
        finally:
            listener.close()
        if process.end is not None and process.end.error is None:
            return None
        return said.decode(errors="replace").strip() or "the command failed"

    def adopt(self, sandbox_id: str) -> None:
        """Adopt the processes an earlier engine started in a sandbox that still lives."""
        known = self._alive.get(sandbox_id, {})
        for child in self._runtime.children(sandbox_id):
            spec = ProcessSpec.parse_label(child.label)
            if spec is not None and child.pid not in known:
                self._add(sandbox_id, Process(child, spec, is_running=self._clock(sandbox_id)))

    def list(self, sandbox_id: str) -> list[Process]:
        return sorted(self._alive.get(sandbox_id, {}).values(), key=lambda process: process.pid)

    def find(self, sandbox_id: str, selector: int | str) -> Process | None:
        """Return the living process of that pid or tag."""
        return _select(self._alive.get(sandbox_id, {}), selector)

    def find_ended(self, sandbox_id: str, selector: int | str) -> Process | None:
        """Return the process of that pid or tag that ended a moment ago."""
        return _select(self._ended.get(sandbox_id, {}), selector)

    async def close(self) -> None:
        """Detach from every process and leave them running."""
        followed = [process for table in self._alive.values() for process in table.values()]
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for process in followed:
            process.detach()

    async def _launch(
        self, sandbox_id: str, command: Command, spec: ProcessSpec
    ) -> tuple[Process, Listener]:
        child = await self._runtime.spawn(sandbox_id, command)
        process = Process(child, spec, is_running=self._clock(sandbox_id))
        self._add(sandbox_id, process)
        return process, process.output.listen()

    def _clock(self, sandbox_id: str) -> _Clock:
        return _Clock(self._sandboxes, sandbox_id)

    def _add(self, sandbox_id: str, process: Process) -> None:
        self._alive.setdefault(sandbox_id, {})[process.pid] = process
        task = asyncio.get_running_loop().create_task(self._wait_for_exit(sandbox_id, process))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _wait_for_exit(self, sandbox_id: str, process: Process) -> None:
        try:
            await process.run()
        finally:
            _remove(self._alive, sandbox_id, process)
        self._ended.setdefault(sandbox_id, {})[process.pid] = process
        loop = asyncio.get_running_loop()
        loop.call_later(RETAINED_S, _remove, self._ended, sandbox_id, process)


class _Clock:
    """Whether time passes in a sandbox: it stands still while it is paused."""

    def __init__(self, sandboxes: SandboxLookup, sandbox_id: str) -> None:
        self._sandboxes = sandboxes
        self._sandbox_id = sandbox_id

    def __call__(self) -> bool:
        return self._sandboxes.find(self._sandbox_id) is not None


def _stop_listening(launch: asyncio.Future[tuple[Process, Listener]]) -> None:
    if not launch.cancelled() and launch.exception() is None:
        launch.result()[1].close()


def _select(table: dict[int, Process], selector: int | str) -> Process | None:
    if isinstance(selector, int):
        return table.get(selector)
    return next((found for found in table.values() if found.spec.tag == selector), None)


def _remove(table: dict[str, dict[int, Process]], sandbox_id: str, process: Process) -> None:
    held = table.get(sandbox_id, {})
    if held.get(process.pid) is process:
        del held[process.pid]
        if not held:
            del table[sandbox_id]
