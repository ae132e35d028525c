"""`sandkeeper exec`: run a command in a sandbox, as if it ran here."""

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
    typer.Argument(help="The command, after `--`; a single word is a line for the shell."),
]


def execute(
    project: ProjectArgument,
    command: CommandArgument,
    *,
    cwd: Annotated[str | None, typer.Option(help="Folder to run it in.")] = None,
    user: Annotated[str | None, typer.Option(help="User to run it as.")] = None,
    timeout: Annotated[
        str | None, typer.Option("--timeout", help="End it after so long, as 90s, 15m or 2h.")
    ] = None,
    url: UrlOption = None,
) -> None:
    """Run a command in a sandbox: its output streams here, its exit code is ours.

    A sleeping sandbox is woken, and stays awake while the command runs, however silent it is.
    """
    limit_s = 0 if timeout is None else parse_duration(timeout)
    line = command[0] if len(command) == 1 else shlex.join(command)
    connection = KeeperConnection(url)
    leased = connection.post(connection.path(project, "leases"), {"holder": "exec"})
    with _holding(connection, leased["lease"]):
        code = _run(leased["connection"], line, cwd=cwd, user=user, limit_s=limit_s)
    raise typer.Exit(code)


def _run(
    access: dict[str, Any], line: str, *, cwd: str | None, user: str | None, limit_s: float
) -> int:
    """The command's exit code; what it prints is printed as it comes."""
    # Imported late: the SDK takes a good part of a second, and most commands need none of it.
    from e2b import CommandExitException, Sandbox, SandboxException, TimeoutException  # noqa: PLC0415

    from sandkeeper.api.schemas.sessions import SdkConnection  # noqa: PLC0415
    from sandkeeper.client.sdk_handles import build_sdk_sandbox  # noqa: PLC0415

    try:
        handle = build_sdk_sandbox(Sandbox, SdkConnection(**access)).commands.run(
            line, background=True, cwd=cwd, user=user, timeout=limit_s, retain_output=False
        )
        with _ended_with_us(handle):
            _wait(handle)
    except CommandExitException as error:
        return int(error.exit_code)
    except TimeoutException:
        raise fail(Exit.TIMEOUT, f"The command was ended after {limit_s:g} s.") from None
    except SandboxException as error:
        raise fail(Exit.PROVIDER, f"The sandbox ended the connection: {error}") from None
    except KeyboardInterrupt:
        return int(Exit.INTERRUPTED)
    return int(Exit.OK)


def _wait(handle: CommandHandle[Any]) -> None:
    """Wait for the command's end and raise what it raised.

    In a thread, because the SDK waits where no signal is heard; here Ctrl-C is heard at once.
    """
    failures: list[BaseException] = []

    def wait() -> None:
        try:
            handle.wait(on_stdout=_print, on_stderr=_say)
        except BaseException as error:  # noqa: BLE001 - Raised again below, in the main thread.
            failures.append(error)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    while waiting.is_alive():
        waiting.join(1)
    if failures:
        raise failures[0]


@contextmanager
def _ended_with_us(handle: CommandHandle[Any]) -> Iterator[None]:
    """Ctrl-C, or a polite end of this program, ends the command as well."""

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
def _holding(connection: KeeperConnection, lease: dict[str, Any]) -> Iterator[None]:
    """Renew the lease while the block runs, then give it back."""
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


def _say(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
