"""process.Process, as e2b-protocol describes it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Literal

from connectrpc.code import Code
from connectrpc.errors import ConnectError
from connectrpc.request import RequestContext
from e2b.envd.process.process_connect import Process as ProcessContract
from e2b.envd.process.process_pb import (
    CloseStdinRequest,
    CloseStdinResponse,
    ConnectRequest,
    ConnectResponse,
    ListRequest,
    ListResponse,
    ProcessConfig,
    ProcessEvent,
    ProcessInfo,
    ProcessInput,
    ProcessSelector,
    SendInputRequest,
    SendInputResponse,
    SendSignalRequest,
    SendSignalResponse,
    Signal,
    StartRequest,
    StartResponse,
    StreamInputRequest,
    StreamInputResponse,
    UpdateRequest,
    UpdateResponse,
)
from protobuf import Oneof

from sandkeeper.engine.envd.processes.output import Kind, LaggingError, Listener
from sandkeeper.engine.envd.processes.process import (
    InputClosedError,
    Process,
    ProcessExit,
    ProcessSpec,
)
from sandkeeper.engine.envd.processes.process_table import ProcessTable
from sandkeeper.engine.envd.rpc import acting_user, patience_s
from sandkeeper.engine.envd.users import User
from sandkeeper.engine.http.active_requests import current_request
from sandkeeper.engine.runtime.contract import Command, Runtime, RuntimeFaultError

_Output = (
    Oneof[Literal["stdout"], bytes] | Oneof[Literal["stderr"], bytes] | Oneof[Literal["pty"], bytes]
)

KILLED_WITHIN_S = 5.0
"""How long the answer to a kill waits for the end; a process in the kernel may take longer."""
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SIZE_MAX = 65535
"""What a terminal's size can hold in either direction."""


class ProcessService(ProcessContract):
    """Processes of the sandbox that the current request names."""

    def __init__(self, runtime: Runtime, processes: ProcessTable) -> None:
        self._runtime = runtime
        self._processes = processes

    async def list(
        self, _request: ListRequest, _ctx: RequestContext[ListRequest, ListResponse], /
    ) -> ListResponse:
        found = self._processes.list(current_request().sandbox_id)
        return ListResponse(processes=[_render_info(process) for process in found])

    async def start(
        self, request: StartRequest, ctx: RequestContext[StartRequest, StartResponse], /
    ) -> AsyncIterator[StartResponse]:
        process, listener = await self._start(request, ctx.timeout_ms)
        async for event in _follow(process, listener, lambda: patience_s(ctx)):
            if process.has_timed_out:
                # Report the limit that the caller set, not the kill it caused.
                raise ConnectError(Code.DEADLINE_EXCEEDED, "the process ran out of time")
            yield StartResponse(event=event)

    async def connect(
        self, request: ConnectRequest, ctx: RequestContext[ConnectRequest, ConnectResponse], /
    ) -> AsyncIterator[ConnectResponse]:
        process = self._find(request.process, ended=True)
        listener = process.output.listen()
        async for event in _follow(process, listener, lambda: patience_s(ctx)):
            yield ConnectResponse(event=event)

    async def update(
        self, request: UpdateRequest, _ctx: RequestContext[UpdateRequest, UpdateResponse], /
    ) -> UpdateResponse:
        process = self._find(request.process)
        if request.pty is not None and request.pty.size is not None:
            if not process.spec.terminal:
                raise ConnectError(Code.INTERNAL, "the process has no terminal to resize")
            size = request.pty.size
            process.resize(min(size.cols, SIZE_MAX), min(size.rows, SIZE_MAX))
        return UpdateResponse()

    async def send_input(
        self,
        request: SendInputRequest,
        _ctx: RequestContext[SendInputRequest, SendInputResponse],
        /,
    ) -> SendInputResponse:
        await _write(self._find(request.process), request.input)
        return SendInputResponse()

    async def stream_input(
        self,
        request: AsyncIterator[StreamInputRequest],
        _ctx: RequestContext[StreamInputRequest, StreamInputResponse],
        /,
    ) -> StreamInputResponse:
        process: Process | None = None
        async for message in request:
            event = message.event
            if event is None or event.field == "keepalive":
                continue
            if event.field == "start":
                process = self._find(event.value.process)
            elif process is None:
                raise ConnectError(Code.INVALID_ARGUMENT, "the first message must be a start")
            else:
                await _write(process, event.value.input)
        return StreamInputResponse()

    async def send_signal(
        self,
        request: SendSignalRequest,
        _ctx: RequestContext[SendSignalRequest, SendSignalResponse],
        /,
    ) -> SendSignalResponse:
        process = self._find(request.process)
        if request.signal not in (Signal.SIGKILL, Signal.SIGTERM):
            raise ConnectError(Code.UNIMPLEMENTED, f"invalid signal: {request.signal}")
        process.send_signal(int(request.signal))
        if request.signal == Signal.SIGKILL:
            # A client that lists the processes next must not find it any more.
            await process.ended(KILLED_WITHIN_S)
        return SendSignalResponse()

    async def close_stdin(
        self,
        request: CloseStdinRequest,
        _ctx: RequestContext[CloseStdinRequest, CloseStdinResponse],
        /,
    ) -> CloseStdinResponse:
        process = self._find(request.process)
        if process.spec.terminal:
            raise ConnectError(
                Code.UNKNOWN, "a terminal's input cannot be closed; send Ctrl+D (0x04) instead"
            )
        process.close_stdin()
        return CloseStdinResponse()

    async def _start(
        self, request: StartRequest, timeout_ms: float | None
    ) -> tuple[Process, Listener]:
        config = request.process
        if config is None or not config.cmd:
            raise ConnectError(Code.INVALID_ARGUMENT, "process.cmd is missing")
        current = current_request()
        user = acting_user(self._runtime)
        cwd = user.expand(config.cwd) if config.cwd else user.workdir
        if not user.tree.is_folder(cwd):
            raise ConnectError(Code.INVALID_ARGUMENT, f"cwd '{cwd}' does not exist")
        spec = ProcessSpec(
            cmd=config.cmd,
            args=list(config.args),
            envs=dict(config.envs),
            cwd=config.cwd if config.has_field("cwd") else None,
            tag=request.tag if request.has_field("tag") else None,
            terminal=request.pty is not None,
            # Older clients do not set it and expect an open input.
            stdin=request.stdin if request.has_field("stdin") else True,
            kill_at=None if timeout_ms is None else time.time() + timeout_ms / 1000,
        )
        command = Command(
            argv=(spec.cmd, *spec.args),
            env=_environment(user, current.sandbox_id, current.sandbox.env, spec.envs),
            user=user.name,
            cwd=cwd,
            size=_size(request),
            stdin=spec.stdin,
            label=spec.render_label(),
        )
        try:
            _check(command)
            return await self._processes.start(current.sandbox_id, command, spec)
        except (OSError, ValueError) as error:
            raise ConnectError(
                Code.INVALID_ARGUMENT, f"error starting process '{spec.cmd}': {error}"
            ) from error
        except RuntimeFaultError as error:
            raise ConnectError(Code.UNAVAILABLE, str(error)) from error

    def _find(self, selector: ProcessSelector | None, *, ended: bool = False) -> Process:
        chosen = None if selector is None else selector.selector
        if chosen is None:
            raise ConnectError(Code.INVALID_ARGUMENT, "process selector is missing")
        sandbox_id = current_request().sandbox_id
        process = self._processes.find(sandbox_id, chosen.value)
        if process is None and ended:
            process = self._processes.find_ended(sandbox_id, chosen.value)
        if process is None:
            raise ConnectError(
                Code.NOT_FOUND, f"process with {chosen.field} {chosen.value} not found"
            )
        return process


def _check(command: Command) -> None:
    """Raise ValueError for what no process can be given: that is the caller's error."""
    texts = (*command.argv, *command.env, *command.env.values())
    if any("\0" in text for text in texts):
        raise ValueError("embedded null byte")
    if any(not name or "=" in name for name in command.env):
        raise ValueError("illegal environment variable name")


def _environment(
    user: User, sandbox_id: str, shared: Mapping[str, str], own: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of a process; the request's variables take precedence."""
    return {
        "PATH": SEARCH_PATH,
        "HOME": user.home,
        "USER": user.name,
        "LOGNAME": user.name,
        "E2B_SANDBOX": "true",
        "E2B_SANDBOX_ID": sandbox_id,
        **shared,
        **own,
    }


def _size(request: StartRequest) -> tuple[int, int] | None:
    if request.pty is None:
        return None
    size = request.pty.size
    if size is None:
        return (80, 24)
    return (min(size.cols, SIZE_MAX) or 80, min(size.rows, SIZE_MAX) or 24)


async def _write(process: Process, given: ProcessInput | None) -> None:
    chosen = None if given is None else given.input
    if chosen is None:
        raise ConnectError(Code.UNIMPLEMENTED, "input is missing or of an unknown kind")
    try:
        await process.write(chosen.value, to_terminal=chosen.field == "pty")
    except InputClosedError:
        kind = "terminal" if chosen.field == "pty" else "stdin"
        raise ConnectError(
            Code.INTERNAL, f"error writing to {kind}: {kind} not enabled or closed"
        ) from None


async def _follow(
    process: Process, listener: Listener, get_patience_s: Callable[[], float]
) -> AsyncIterator[ProcessEvent]:
    """Yield a process's events until its end, with keepalives while it is quiet."""
    current = current_request()
    try:
        yield _render_start(process.pid)
        while True:
            try:
                async with asyncio.timeout(get_patience_s()):
                    chunk = await listener.next()
            except TimeoutError:
                yield _render_keepalive()
                continue
            except LaggingError:
                raise ConnectError(
                    Code.RESOURCE_EXHAUSTED,
                    "the output was not read fast enough; the process runs on without this reader",
                ) from None
            if chunk is None:
                break
            yield _render_data(*chunk)
    finally:
        listener.close()
    if process.end is None or not (process.end.exited or current.is_running()):
        # The engine stops, or the process ended with its sandbox: then connections are dropped.
        current.cancel_sandbox_gone()
    else:
        yield _render_end(process.end)


def _render_start(pid: int) -> ProcessEvent:
    event: Oneof[Literal["start"], ProcessEvent.StartEvent]
    event = Oneof("start", ProcessEvent.StartEvent(pid=pid))
    return ProcessEvent(event=event)


def _render_keepalive() -> ProcessEvent:
    event: Oneof[Literal["keepalive"], ProcessEvent.KeepAlive]
    event = Oneof("keepalive", ProcessEvent.KeepAlive())
    return ProcessEvent(event=event)


def _render_data(kind: Kind, data: bytes) -> ProcessEvent:
    event: Oneof[Literal["data"], ProcessEvent.DataEvent]
    event = Oneof("data", ProcessEvent.DataEvent(output=_render_output(kind, data)))
    return ProcessEvent(event=event)


def _render_output(kind: Kind, data: bytes) -> _Output:
    if kind == "stdout":
        stdout: Oneof[Literal["stdout"], bytes] = Oneof("stdout", data)
        return stdout
    if kind == "stderr":
        stderr: Oneof[Literal["stderr"], bytes] = Oneof("stderr", data)
        return stderr
    terminal: Oneof[Literal["pty"], bytes] = Oneof("pty", data)
    return terminal


def _render_end(end: ProcessExit) -> ProcessEvent:
    event: Oneof[Literal["end"], ProcessEvent.EndEvent]
    event = Oneof(
        "end",
        ProcessEvent.EndEvent(
            exit_code=end.exit_code, exited=end.exited, status=end.status, error=end.error
        ),
    )
    return ProcessEvent(event=event)


def _render_info(process: Process) -> ProcessInfo:
    spec = process.spec
    config = ProcessConfig(cmd=spec.cmd, args=spec.args, envs=spec.envs, cwd=spec.cwd)
    return ProcessInfo(config=config, pid=process.pid, tag=spec.tag)
