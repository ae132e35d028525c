"""`sandkeeper logs`: the output of a sandbox's app."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer

from sandkeeper.cli.connection import (
    Exit,
    JsonOption,
    KeeperConnection,
    ProjectArgument,
    UrlOption,
    fail,
)
from sandkeeper.cli.output import print_json, print_lines, print_message

POLL_S: Final = 1.0
WINDOW: Final = 1000
"""Lines that are asked for while the log is followed; what is more in a second is left out."""


def logs(
    project: ProjectArgument,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=1, max=WINDOW, help="Maximum number of lines.")
    ] = 100,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing new lines; wakes nothing.")
    ] = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Print the last log lines of a sandbox's app; with --follow, also new ones."""
    connection = KeeperConnection(url)
    path = connection.path(project, "log")
    if follow and as_json:
        raise fail(Exit.USAGE, "--follow prints lines of text, so it has no --json.")
    answer = connection.get(path, lines=WINDOW if follow else lines)
    if as_json:
        print_json(answer)
        return
    print_lines(answer["lines"][-lines:])
    note = _tell(answer, "")
    if follow:
        _follow(connection, path, answer["lines"], note)


def _follow(connection: KeeperConnection, path: str, seen: list[str], note: str) -> None:
    """Print what is new until Ctrl-C; a note is printed when it changes."""
    while True:
        time.sleep(POLL_S)
        answer = connection.get(path, lines=WINDOW)
        if answer["lines"]:
            new = find_new_lines(seen, answer["lines"])
            if seen and len(new) == WINDOW:
                print_message("… some lines were left out")
            print_lines(new)
            seen = answer["lines"]
        note = _tell(answer, note)


def find_new_lines(seen: Sequence[str], now: Sequence[str]) -> list[str]:
    """Return the lines of `now` after those at the end of `seen` with which it begins."""
    for start in range(max(0, len(seen) - len(now)), len(seen)):
        if list(seen[start:]) == list(now[: len(seen) - start]):
            return list(now[len(seen) - start :])
    return list(now)


def _tell(answer: dict[str, Any], told: str) -> str:
    """Print why there are no lines, or that the app ended, unless it was just told."""
    note = str(answer["note"])
    if answer["exitCode"] is not None:
        note = f"The app exited with code {answer['exitCode']}."
    if note and note != told:
        print_message(note)
    return note
