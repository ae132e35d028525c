"""`snapshot` and `resume`: put a job's preview to sleep, and bring it back."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from sandkeeper.cli.connection import Exit, JsonOption, KeeperConnection, UrlOption, fail
from sandkeeper.cli.output import print_json, print_lines
from sandkeeper.cli.sandboxes.wake import follow_status

if TYPE_CHECKING:
    import httpx

JobArgument = Annotated[str, typer.Argument(help="The job's id.")]


def snapshot(job: JobArgument, as_json: JsonOption = False, url: UrlOption = None) -> None:
    """Keep a ready job's files and put its sandbox to sleep."""
    answer = KeeperConnection(url).post(_path(job, "snapshot"), {})
    if as_json:
        print_json(answer)
    else:
        print_lines(["paused" if answer["paused"] else f"not paused: {answer['error_type']}"])
    if not answer["paused"]:
        raise typer.Exit(int(Exit.WRONG_STATE))


def resume(job: JobArgument, as_json: JsonOption = False, url: UrlOption = None) -> None:
    """Bring a ready job's preview back, and print where it is."""
    connection = KeeperConnection(url)
    answers: list[httpx.Response] = []
    # The answer comes when the preview does; its steps are read beside it.
    asking = threading.Thread(
        target=lambda: answers.append(
            KeeperConnection(url).send("POST", _path(job, "resume"), body={})
        ),
        daemon=True,
    )
    asking.start()
    follow_status(connection, f"job:{job}", lambda: not asking.is_alive())
    asking.join()
    if not answers:
        raise fail(Exit.FAILURE, "The keeper did not answer.")
    answer = answers[0]
    if not answer.is_success:
        raise connection.explain_failure(answer)
    if as_json:
        print_json(answer.json())
    else:
        print_lines([answer.json()["preview_url"] or ""])


def _path(job: str, verb: str) -> str:
    return f"/api/jobs/{quote(job, safe='')}/{verb}"
