"""`sandkeeper token`: short-lived tokens for browsers."""

from __future__ import annotations

from typing import Annotated

import typer

from sandkeeper.cli.connection import Connection, JsonOption, UrlOption, parse_duration
from sandkeeper.cli.output import print_json, print_lines

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Tokens for browsers.")


@app.callback()
def token() -> None:
    """Tokens for browsers, each good for one owner."""


@app.command("issue")
def issue(
    project: Annotated[str, typer.Argument(help="The only owner it is good for.")],
    ttl: Annotated[str | None, typer.Option(help="How long it is good, as 15m.")] = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Issue a token that lets a page see and use one project's sandbox."""
    body: dict[str, object] = {"project": project}
    if ttl is not None:
        body["ttlS"] = round(parse_duration(ttl))
    answer = Connection(url).post("/api/client-tokens", body)
    if as_json:
        print_json(answer)
    else:
        print_lines([answer["token"]])
