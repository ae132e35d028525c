"""`sandkeeper shell`: a terminal in a sandbox."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from sandkeeper.cli.connection import (
    Exit,
    KeeperConnection,
    ProjectArgument,
    UrlOption,
    fail,
)
from sandkeeper.cli.sandboxes.exec import keep_lease

if TYPE_CHECKING:
    from e2b import Sandbox
    from e2b.sandbox_sync.commands.command_handle import CommandHandle

READ_BYTES: Final = 64 * 1024


def shell(
    project: ProjectArgument,
    *,
    cwd: Annotated[str | None, typer.Option(help="Working directory.")] = None,
    user: Annotated[str | None, typer.Option(help="User of the shell.")] = None,
    url: UrlOption = None,
) -> None:
    """Open an interactive shell in a sandbox, and exit with its exit code.

    A paused sandbox is woken first. It stays awake until the shell ends.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise fail(Exit.USAGE, "A shell needs a terminal.", "`sandkeeper exec` runs a command.")
    connection = KeeperConnection(url)
    leased = connection.post(connection.path(project, "leases"), {"holder": "shell"})
    with keep_lease(connection, leased["lease"]):
        code = _run(leased["connection"], cwd=cwd, user=user)
    raise typer.Exit(code)


def _run(access: dict[str, Any], *, cwd: str | None, user: str | None) -> int:
    # Imported late: the SDK is slow to import, and most commands do not need it.
    from e2b import PtySize, Sandbox, SandboxException  # noqa: PLC0415

    from sandkeeper.api.schemas.sessions import SdkConnection  # noqa: PLC0415
    from sandkeeper.client.sdk_handles import build_sdk_sandbox  # noqa: PLC0415

    def measure() -> PtySize:
        columns, rows = os.get_terminal_size(0)
        return PtySize(rows=rows, cols=columns)

    def resize() -> None:
        with suppress(SandboxException):  # The shell is over, or the next resize tries again.
            sandbox.pty.resize(handle.pid, measure())

    sandbox = build_sdk_sandbox(Sandbox, SdkConnection(**access))
    variables = {"TERM": os.environ.get("TERM", "xterm-256color")}
    try:
        handle = sandbox.pty.create(measure(), user=user, cwd=cwd, envs=variables, timeout=0)
        with _raw_terminal(), _on_resize(resize):
            return _connect(sandbox, handle)
    except SandboxException as error:
        raise fail(Exit.PROVIDER, f"The connection to the sandbox was lost: {error}") from None


def _connect(sandbox: Sandbox, handle: CommandHandle[Any]) -> int:
    """Carry what is typed and what is shown until the shell ends; return its exit code."""
    from e2b import CommandExitException  # noqa: PLC0415

    ends: list[BaseException] = []
    is_over, over = os.pipe()

    def show() -> None:
        try:
            handle.wait(on_pty=_write)
        except BaseException as error:  # noqa: BLE001 - Raised again below, in the main thread.
            ends.append(error)
        finally:
            os.close(over)

    showing = threading.Thread(target=show, daemon=True)
    showing.start()
    try:
        while is_over not in (ready := select.select([0, is_over], [], [])[0]):
            typed = os.read(0, READ_BYTES) if 0 in ready else b""
            if not typed:
                handle.kill()  # The terminal is gone.
                break
            sandbox.pty.send_stdin(handle.pid, typed)
        showing.join()
    finally:
        os.close(is_over)
    if ends and isinstance(ends[0], CommandExitException):
        return int(ends[0].exit_code)
    if ends:
        raise ends[0]
    return 0


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


@contextmanager
def _raw_terminal() -> Iterator[None]:
    """Send every key as it is typed, Ctrl-C too; restore the terminal at the end."""
    before = termios.tcgetattr(0)
    tty.setraw(0, termios.TCSADRAIN)  # What was typed ahead stays.
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


@contextmanager
def _on_resize(resize: Callable[[], None]) -> Iterator[None]:
    """Call `resize` when the size of the terminal changes.

    In a thread of its own: a signal may come while the main thread sends what was typed.
    """
    changed = threading.Event()
    is_over = threading.Event()

    def follow() -> None:
        while not is_over.is_set():
            changed.wait()
            changed.clear()
            if not is_over.is_set():
                resize()

    threading.Thread(target=follow, daemon=True).start()
    before = signal.signal(signal.SIGWINCH, lambda *_: changed.set())
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)
        is_over.set()
        changed.set()
