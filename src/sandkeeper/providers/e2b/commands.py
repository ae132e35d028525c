"""The list of running commands, as the SDK returns it."""

from __future__ import annotations

from typing import Final

import e2b

NAME_MAX: Final = 80
_OWN_MARKS: Final = ("/tmp/.sandkeeper", "sandkeeper-part")  # noqa: S108  Inside a sandbox.
_SHELLS: Final = ("/bin/bash", "/bin/sh", "bash", "sh")


def name_command(process: e2b.ProcessInfo) -> str:
    """Return the command as its caller wrote it: one line, without the shell that runs it."""
    words = [process.cmd, *process.args]
    if process.cmd in _SHELLS and "-c" in process.args:
        words = process.args[process.args.index("-c") + 1 :]
    line = " ".join(" ".join(words).split())
    if len(line) > NAME_MAX:
        line = f"{line[: NAME_MAX - 1]}…"
    return line or process.cmd or "a command"


def is_ours(process: e2b.ProcessInfo) -> bool:
    """Return True for what the keeper itself runs: the capture of files and the app's own scripts.

    The app itself is not listed: the command that starts it has ended.
    """
    texts = (*process.args, *process.envs.values())
    return any(mark in text for mark in _OWN_MARKS for text in texts)
