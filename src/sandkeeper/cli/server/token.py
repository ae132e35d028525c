"""`sandkeeper token` and `sandkeeper login`: tokens for browsers, and logins to the dashboard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from sandkeeper.cli.connection import (
    JsonOption,
    KeeperConnection,
    QuietOption,
    UrlOption,
    parse_duration,
)
from sandkeeper.cli.output import print_json, print_lines, print_table

if TYPE_CHECKING:
    from collections.abc import Iterator

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Tokens for browsers.")
logins = typer.Typer(add_completion=False, no_args_is_help=True, help="Logins to the dashboard.")

IdArgument = Annotated[str, typer.Argument(help="The id, as the list shows it.")]


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
    answer = KeeperConnection(url).post("/api/client-tokens", body)
    if as_json:
        print_json(answer)
    else:
        print_lines([answer["token"]])


@app.command("list")
def list_tokens(
    as_json: JsonOption = False, quiet: QuietOption = False, url: UrlOption = None
) -> None:
    """List the client tokens that are good now, newest first."""
    items = list(_read_all(KeeperConnection(url), "/api/client-tokens"))
    _print(items, "project", as_json=as_json, quiet=quiet)


@app.command("revoke")
def revoke_token(token_id: IdArgument, url: UrlOption = None) -> None:
    """Revoke a client token; it opens nothing more within two seconds."""
    KeeperConnection(url).ask("DELETE", f"/api/client-tokens/{quote(token_id, safe='')}")


@logins.command("list")
def list_logins(
    as_json: JsonOption = False, quiet: QuietOption = False, url: UrlOption = None
) -> None:
    """List the logins that are good now, newest first."""
    items = list(_read_all(KeeperConnection(url), "/api/logins"))
    _print(items, "role", as_json=as_json, quiet=quiet)


@logins.command("revoke")
def revoke_login(token_id: IdArgument, url: UrlOption = None) -> None:
    """Revoke a login; its browser is signed out within two seconds."""
    KeeperConnection(url).ask("DELETE", f"/api/logins/{quote(token_id, safe='')}")


def _read_all(connection: KeeperConnection, path: str) -> Iterator[dict[str, Any]]:
    cursor: str | None = None
    while True:
        page = connection.get(path, limit=500, cursor=cursor)
        yield from page["items"]
        cursor = page["nextCursor"]
        if cursor is None:
            return


def _print(items: list[dict[str, Any]], whose: str, *, as_json: bool, quiet: bool) -> None:
    if as_json:
        print_json(items)
    elif quiet:
        print_lines(item["id"] for item in items)
    else:
        names = ("id", whose, "issuedAt", "expiresAt")
        rows = ([item[name] for name in names] for item in items)
        print_table(("id", whose, "issued at", "expires at"), rows)
