"""`sandkeeper snapshot` and `resume`: pause and resume a job's preview."""

from __future__ import annotations

import threading
from typing import Annotated
from urllib.parse import quote

import httpx
import typer

from sandkeeper.cli.connection import Exit, JsonOption, KeeperConnection, UrlOption, fail
from sandkeeper.cli.output import print_json, print_lines
from sandkeeper.cli.sandboxes.wake import follow_status

JobArgument = Annotated[str, typer.Argument(help="The job's id.")]


def snapshot(job: JobArgument, as_json: JsonOption = False, url: UrlOption = None) -> None:
    """Save a ready job's files and pause its sandbox."""
    answer = KeeperConnection(url).post(_path(job, "snapshot"), {})
    if as_json:
        print_json(answer)
    else:
        print_lines(["paused" if answer["paused"] else f"not paused: {answer['error_type']}"])
    if not answer["paused"]:
        raise typer.Exit(int(Exit.WRONG_STATE))


def resume(job: JobArgument, as_json: JsonOption = False, url: UrlOption = None) -> None:
    """Resume a ready job's preview and print its URL."""
    connection = KeeperConnection(url)
    responses: list[httpx.Response] = []
    # The response comes when the preview is ready; the steps are polled in the meantime.
    request = threading.Thread(
        target=lambda: responses.append(
            KeeperConnection(url).send("POST", _path(job, "resume"), body={})
        ),
        daemon=True,
    )
    request.start()
    follow_status(connection, f"job:{job}", lambda: not request.is_alive())
    request.join()
    if not responses:
        raise fail(Exit.FAILURE, "The keeper did not respond.")
    response = responses[0]
    if not response.is_success:
        raise connection.make_exit(response)
    if as_json:
        print_json(response.json())
    else:
        print_lines([response.json()["preview_url"] or ""])


def _path(job: str, verb: str) -> str:
    return f"/api/jobs/{quote(job, safe='')}/{verb}"
