"""`sandkeeper exec`: run a command in a sandbox as if it were local."""

from __future__ import annotations

import shlex
import signal
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sandkeeper.cli.connection import (
    Exit,
    KeeperConnection,
    ProjectArgument,
    UrlOption,
    fail,
    parse_duration,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from e2b.sandbox_sync.commands.command_handle import CommandHandle

CommandArgument = Annotated[
    list[str],
    typer.Argument(help="The command, after `--`. A single argument is run by the shell."),
]


def execute(
    project: ProjectArgument,
    command: CommandArgument,
    *,
    cwd: Annotated[str | None, typer.Option(help="Working directory.")] = None,
    user: Annotated[str | None, typer.Option(help="User to run the command as.")] = None,
    timeout: Annotated[
        str | None,
        typer.Option("--timeout", help="Kill the command after this time, such as 90s, 15m or 2h."),
    ] = None,
    url: UrlOption = None,
) -> None:
    """Run a command in a sandbox, stream its output and exit with its exit code.

    A paused sandbox is woken first. It stays awake while the command runs, even without output.
    """
    limit_s = 0 if timeout is None else parse_duration(timeout)
    line = command[0] if len(command) == 1 else shlex.join(command)
    connection = KeeperConnection(url)
    leased = connection.post(connection.path(project, "leases"), {"holder": "exec"})
    with keep_lease(connection, leased["lease"]):
        code = _run(leased["connection"], line, cwd=cwd, user=user, limit_s=limit_s)
    raise typer.Exit(code)


def _run(
    access: dict[str, Any], line: str, *, cwd: str | None, user: str | None, limit_s: float
) -> int:
    """Run the command, print its output as it arrives, and return its exit code."""
    # Imported late: the SDK is slow to import, and most commands do not need it.
    from e2b import CommandExitException, Sandbox, SandboxException, TimeoutException  # noqa: PLC0415

    from sandkeeper.api.schemas.sessions import SdkConnection  # noqa: PLC0415
    from sandkeeper.client.sdk_handles import build_sdk_sandbox  # noqa: PLC0415

    try:
        handle = build_sdk_sandbox(Sandbox, SdkConnection(**access)).commands.run(
            line, background=True, cwd=cwd, user=user, timeout=limit_s, retain_output=False
        )
        with _kill_on_signal(handle):
            _wait(handle)
    except CommandExitException as error:
        return int(error.exit_code)
    except TimeoutException:
        raise fail(Exit.TIMEOUT, f"The command was killed after {limit_s:g} s.") from None
    except SandboxException as error:
        raise fail(Exit.PROVIDER, f"The connection to the sandbox was lost: {error}") from None
    except KeyboardInterrupt:
        return int(Exit.INTERRUPTED)
    return int(Exit.OK)


def _wait(handle: CommandHandle[Any]) -> None:
    """Wait for the command's end and raise what it raised.

    The SDK waits in a thread because its wait blocks signals; the main thread handles Ctrl-C.
    """
    failures: list[BaseException] = []

    def wait() -> None:
        try:
            handle.wait(on_stdout=_print, on_stderr=_print_error)
        except BaseException as error:  # noqa: BLE001 - Raised again below, in the main thread.
            failures.append(error)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    while waiting.is_alive():
        waiting.join(1)
    if failures:
        raise failures[0]


@contextmanager
def _kill_on_signal(handle: CommandHandle[Any]) -> Iterator[None]:
    """Kill the command on SIGINT or SIGTERM."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {one: signal.signal(one, interrupt) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except KeyboardInterrupt:
        handle.kill()
        raise
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


@contextmanager
def keep_lease(connection: KeeperConnection, lease: dict[str, Any]) -> Iterator[None]:
    """Renew the lease while the block runs, then release it."""
    path = f"/api/leases/{lease['id']}"
    is_over = threading.Event()

    def renew() -> None:
        while not is_over.wait(max(1.0, lease["renewAfterMs"] / 1000)):
            connection.send("POST", path, body={})

    threading.Thread(target=renew, daemon=True).start()
    try:
        yield
    finally:
        is_over.set()
        connection.send("DELETE", path)


def _print(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _print_error(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
