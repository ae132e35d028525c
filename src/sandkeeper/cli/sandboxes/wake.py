"""`sandkeeper wake` and `warm`."""

from __future__ import annotations

import shutil
import sys
import time
from typing import Annotated, Any
from urllib.parse import quote

import typer

from sandkeeper.cli.connection import (
    Exit,
    JsonOption,
    KeeperConnection,
    ProjectArgument,
    QuietOption,
    TimeoutOption,
    UrlOption,
    fail,
    parse_duration,
)
from sandkeeper.cli.output import print_json, print_lines, print_message

POLL_INTERVAL_S = 0.15
CLEAR = "\r\x1b[2K"


def wake(
    project: ProjectArgument,
    *,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Do not wait for the wake to finish.")
    ] = False,
    timeout: TimeoutOption = "5m",
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    url: UrlOption = None,
) -> None:
    """Start a sandbox from any state, with its files and its app."""
    connection = KeeperConnection(url)
    path = connection.path(project, "wake")
    answer: dict[str, Any] = connection.post(path, {})
    if not no_wait:
        answer = _follow(connection, path, answer, within_s=parse_duration(timeout))
    if as_json:
        print_json(answer)
    elif quiet:
        print_lines([answer["project"]])
    else:
        print_lines(_sentences(connection, answer))
    if answer["status"] == "failed":
        raise typer.Exit(int(Exit.PROVIDER))


def warm(
    project: ProjectArgument,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    url: UrlOption = None,
) -> None:
    """Resume a paused sandbox before its user needs it, within the budget."""
    connection = KeeperConnection(url)
    answer: dict[str, Any] = connection.post(connection.path(project, "warm"), {})
    if as_json:
        print_json(answer)
    elif quiet:
        print_lines([answer["project"]])
    else:
        result = str(answer["result"]).replace("_", " ")
        print_lines([f"{answer['project']}: {result}, {answer['reason']}."])


def follow_status(connection: KeeperConnection, project: str, is_over: Any) -> None:
    """Show the steps of a wake on one terminal line until `is_over()`."""
    progress = Progress()
    path = f"/api/sandboxes/{quote(project, safe='')}/wake"
    while not is_over():
        response = connection.send("GET", path)
        if response.is_success and response.json()["status"] == "running":
            progress.show(response.json())
        time.sleep(POLL_INTERVAL_S)
    progress.clear()


class Progress:
    """A progress line on stderr; nothing unless stderr is a terminal."""

    def __init__(self) -> None:
        self._is_shown = sys.stderr.isatty()

    def show(self, answer: dict[str, Any]) -> None:
        """Show the current step, the elapsed time, and the usual time if known."""
        if not self._is_shown:
            return
        step = str(answer["step"] or "waiting").replace("_", " ")
        usual = f" of about {answer['usualMs'] / 1000:.1f} s" if answer["usualMs"] else ""
        done = " ".join(f"{_name(one)} ✓" for one in answer["steps"] if one["outcome"] == "done")
        line = f"{step}  {answer['elapsedMs'] / 1000:.1f} s{usual}  {done}"
        # A line that wraps cannot be cleared.
        room = shutil.get_terminal_size().columns - 1
        sys.stderr.write(f"{CLEAR}{line[:room]}")
        sys.stderr.flush()

    def clear(self) -> None:
        """Clear the line."""
        if self._is_shown:
            sys.stderr.write(CLEAR)
            sys.stderr.flush()


def _follow(
    connection: KeeperConnection, path: str, answer: dict[str, Any], *, within_s: float
) -> dict[str, Any]:
    progress = Progress()
    deadline = time.monotonic() + within_s
    wake_id = answer["id"]
    while answer["status"] == "running":
        progress.show(answer)
        if time.monotonic() > deadline:
            progress.clear()
            raise fail(
                Exit.TIMEOUT,
                "The wake is still in progress.",
                "Run `sandkeeper wake` again to join it.",
            )
        time.sleep(POLL_INTERVAL_S)
        answer = connection.get(path)
        if answer["id"] != wake_id:
            break
    progress.clear()
    return answer


def _name(step: dict[str, Any]) -> str:
    return str(step["name"]).replace("_", " ")


def _sentences(connection: KeeperConnection, answer: dict[str, Any]) -> list[str]:
    """Return the preview's URL; print steps, duration and files as messages."""
    if answer["status"] == "running":
        return [f"{answer['project']} is waking."]
    for step in answer["steps"]:
        print_message(
            f"  {_name(step):18} {(step['tookMs'] or 0) / 1000:7.2f} s  {step['outcome']}"
        )
    if answer["status"] == "failed":
        print_message(f"{answer['error']['message']} ({answer['error']['code']})")
        return []
    receipt = answer["receipt"] or {}
    is_only_app = answer["method"] == "nothing" and receipt.get("appStarted")
    done = "app started again" if is_only_app else answer["method"]
    files = []
    if receipt.get("restored"):
        files.append(f"{receipt['restored']} files restored")
    if receipt.get("filesNote"):
        files.append(receipt["filesNote"])
    if receipt.get("lostCount"):
        files.append(f"{receipt['lostCount']} lost: {', '.join(receipt['lost'][:5])}")
    if receipt.get("appKept"):
        files.append("app kept running")
    if receipt.get("appStarted") and not is_only_app:
        files.append("app started again")
    if receipt.get("filesPending"):
        files.append("files are compared beside its use")
    took = f"{answer['elapsedMs'] / 1000:.1f} s"
    print_message(", ".join([f"{answer['project']}: {done}", took, *files]))
    status = connection.get(f"/api/sandboxes/{quote(answer['project'], safe='')}/status")
    return [status["sandboxUrl"]] if status["sandboxUrl"] else []
