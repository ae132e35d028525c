"""Run a command in the sandbox, limited in time and output."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from e2b import AsyncCommandHandle, AsyncSandbox, CommandExitException

from sandkeeper.integrations.backend.contract import CommandOutput
from sandkeeper.integrations.backend.errors import (
    CommandError,
    CommandFailedError,
    CommandTimedOutError,
    OutputTooLongError,
)

# The provider's own time limit is a little later than ours; it applies if we lose the connection.
PROVIDER_GRACE_S = 10
KILL_TIMEOUT_S = 10


@dataclass(slots=True)
class OutputBuffer:
    """The output so far, bounded for both streams together."""

    left: int
    stdout: list[str] = field(default_factory=list)
    stderr: list[str] = field(default_factory=list)
    overflowed: asyncio.Event = field(default_factory=asyncio.Event)

    def make_writer(self, into: list[str]) -> Callable[[str], None]:
        def add(text: str) -> None:
            if len(text) > self.left:
                self.overflowed.set()
            into.append(text[: self.left])
            self.left -= min(self.left, len(text))

        return add

    def output(self, exit_code: int) -> CommandOutput:
        return CommandOutput("".join(self.stdout), "".join(self.stderr), exit_code)

    def error(self, kind: type[CommandError], message: str) -> CommandError:
        return kind(message, stdout="".join(self.stdout), stderr="".join(self.stderr))


async def run_command(
    sandbox: AsyncSandbox,
    command: str,
    *,
    timeout_s: float,
    output_max: int,
    env: Mapping[str, str],
    cwd: str | None,
) -> CommandOutput:
    """Run a command and return its output, whatever its exit code.

    Raise CommandTimedOutError, OutputTooLongError, and the SDK's errors. The command never outlives
    this call.
    """
    printed = OutputBuffer(output_max)
    handle = await sandbox.commands.run(
        command,
        background=True,
        envs=dict(env),
        cwd=cwd,
        on_stdout=printed.make_writer(printed.stdout),
        on_stderr=printed.make_writer(printed.stderr),
        timeout=timeout_s + PROVIDER_GRACE_S,
        retain_output=False,
    )
    ended = False
    try:
        async with asyncio.timeout(timeout_s):
            code = await _wait(handle, printed)
        ended = code is not None
        if code is None:
            raise printed.error(
                OutputTooLongError, f"The command printed more than {output_max} characters."
            )
        return printed.output(code)
    except TimeoutError:
        raise printed.error(
            CommandTimedOutError, f"The command did not finish within {timeout_s:g} s."
        ) from None
    finally:
        if not ended:
            await _kill(handle)


def check(output: CommandOutput) -> CommandOutput:
    """Return the output of a successful command; raise CommandFailedError otherwise."""
    if output.exit_code == 0:
        return output
    raise CommandFailedError(exit_code=output.exit_code, stdout=output.stdout, stderr=output.stderr)


async def _wait(handle: AsyncCommandHandle[None], printed: OutputBuffer) -> int | None:
    """Return the exit code, or None as soon as the output is too long."""
    waiting = asyncio.ensure_future(_exit_code(handle))
    overflowing = asyncio.ensure_future(printed.overflowed.wait())
    try:
        await asyncio.wait({waiting, overflowing}, return_when=asyncio.FIRST_COMPLETED)
        return None if printed.overflowed.is_set() else await waiting
    finally:
        for task in (waiting, overflowing):
            task.cancel()


async def _exit_code(handle: AsyncCommandHandle[None]) -> int:
    try:
        return (await handle.wait()).exit_code
    except CommandExitException as error:
        return error.exit_code


async def _kill(handle: AsyncCommandHandle[None]) -> None:
    """Kill the command. Suppress errors: the caller gets the reason for the kill."""
    with contextlib.suppress(Exception):
        async with asyncio.timeout(KILL_TIMEOUT_S):
            await handle.kill()
            await handle.disconnect()
