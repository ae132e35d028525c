"""`sandkeeper token` and `sandkeeper login`: client tokens and dashboard logins."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer

from sandkeeper.cli.connection import (
    JsonOption,
    KeeperConnection,
    QuietOption,
    UrlOption,
    parse_duration,
)
from sandkeeper.cli.output import print_items, print_json, print_lines

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Client tokens for browsers.")
logins = typer.Typer(add_completion=False, no_args_is_help=True, help="Dashboard logins.")

IdArgument = Annotated[str, typer.Argument(help="The id, as shown by list.")]


@app.command("issue")
def issue(
    project: Annotated[str, typer.Argument(help="The project that the token gives access to.")],
    ttl: Annotated[str | None, typer.Option(help="Time to live, such as 15m.")] = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Issue a token that lets a page show and use one project's sandbox."""
    body: dict[str, object] = {"project": project}
    if ttl is not None:
        body["ttlS"] = round(parse_duration(ttl))
    answer = KeeperConnection(url).post("/api/client-tokens", body)
    if as_json:
        print_json(answer)
    else:
        print_lines([answer["token"]])


@app.command("list")
def list_tokens(
    as_json: JsonOption = False, quiet: QuietOption = False, url: UrlOption = None
) -> None:
    """List valid client tokens, newest first."""
    _print_all(url, "/api/client-tokens", "project", as_json=as_json, quiet=quiet)


@app.command("revoke")
def revoke_token(token_id: IdArgument, url: UrlOption = None) -> None:
    """Revoke a client token; it stops working within two seconds."""
    KeeperConnection(url).request("DELETE", f"/api/client-tokens/{quote(token_id, safe='')}")


@logins.command("list")
def list_logins(
    as_json: JsonOption = False, quiet: QuietOption = False, url: UrlOption = None
) -> None:
    """List valid logins, newest first."""
    _print_all(url, "/api/logins", "role", as_json=as_json, quiet=quiet)


@logins.command("revoke")
def revoke_login(token_id: IdArgument, url: UrlOption = None) -> None:
    """Revoke a login; its browser is signed out within two seconds."""
    KeeperConnection(url).request("DELETE", f"/api/logins/{quote(token_id, safe='')}")


def _print_all(url: str | None, path: str, subject: str, *, as_json: bool, quiet: bool) -> None:
    names = ("id", subject, "issuedAt", "expiresAt")
    print_items(
        list(KeeperConnection(url).iter_items(path, page_size=500)),
        columns=("id", subject, "issued at", "expires at"),
        row=lambda item: [item[name] for name in names],
        as_json=as_json,
        quiet=quiet,
    )
