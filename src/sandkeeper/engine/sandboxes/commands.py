"""Runs the engine's own commands inside a sandbox: build steps, ready checks, start commands."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
from collections.abc import Callable, Mapping

from sandkeeper.engine.runtime.contract import Command, Runtime

_CHUNK = 65536


async def run_to_end(
    runtime: Runtime,
    sandbox_id: str,
    command: Command,
    *,
    on_output: Callable[[bytes], None] = lambda _: None,
    on_error: Callable[[bytes], None] | None = None,
    within_s: float,
) -> int:
    """Run a command without input, pass its output on, and return its exit code.

    Its errors go the same way unless `on_error` is given.
    A command that takes longer is killed, and TimeoutError is raised.
    """
    child = await runtime.spawn(sandbox_id, command)
    try:
        async with asyncio.timeout(within_s):
            async with asyncio.TaskGroup() as tasks:
                for descriptor, use in (
                    (child.stdout, on_output),
                    (child.stderr, on_error or on_output),
                ):
                    if descriptor is not None:
                        tasks.create_task(_drain(descriptor, use))
            return await child.wait()
    except BaseException:
        child.signal(signal.SIGKILL)
        raise
    finally:
        for descriptor in (child.stdout, child.stderr):
            if descriptor is not None:
                os.close(descriptor)


async def _drain(descriptor: int, on_output: Callable[[bytes], None]) -> None:
    while True:
        try:
            data = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            await _readiness(descriptor)
            continue
        if not data:
            return
        on_output(data)


async def _readiness(descriptor: int) -> None:
    """Wait until there is something to read."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)


def shell(text: str, *, env: Mapping[str, str], user: str, cwd: str | None) -> Command:
    """Return the command for a shell line, run as E2B does."""
    return Command(argv=("/bin/bash", "-l", "-c", text), env=env, user=user, cwd=cwd, stdin=False)


async def start_service(
    runtime: Runtime, sandbox_id: str, text: str, *, env: Mapping[str, str], user: str, cwd: str
) -> None:
    """Start a template's start command in the background, with its output in a file.

    It becomes a child of the sandbox's first process, so the engine holds no pipes for it.
    """
    line = f"setsid /bin/bash -l -c {shlex.quote(text)} >>/tmp/start.log 2>&1 </dev/null &"
    command = shell(line, env=env, user=user, cwd=cwd)
    await run_to_end(runtime, sandbox_id, command, within_s=30)


async def wait_until_ready(
    runtime: Runtime,
    sandbox_id: str,
    text: str,
    *,
    env: Mapping[str, str],
    user: str,
    cwd: str,
    within_s: float,
    on_output: Callable[[bytes], None] = lambda _: None,
) -> bool:
    """Run the ready command again and again until it succeeds; False if it never does in time."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    while (left_s := deadline - loop.time()) > 0:
        command = shell(text, env=env, user=user, cwd=cwd)
        try:
            code = await run_to_end(
                runtime, sandbox_id, command, within_s=left_s, on_output=on_output
            )
        except TimeoutError:
            return False
        if code == 0:
            return True
        await asyncio.sleep(0.25)
    return False
