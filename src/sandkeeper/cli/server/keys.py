"""`sandkeeper keys` and `sandkeeper audit`: named API keys, and who did what with them."""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Any
from urllib.parse import quote

import typer

from sandkeeper.cli.connection import (
    Exit,
    JsonOption,
    KeeperConnection,
    QuietOption,
    UrlOption,
    fail,
    parse_duration,
)
from sandkeeper.cli.output import print_items, print_json, print_lines

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Named API keys.")

KeyArgument = Annotated[str, typer.Argument(help="The name or the id, as shown by list.")]
ExpiresOption = Annotated[str | None, typer.Option(help="Time until it expires, such as 90d.")]


@app.command("create")
def create(
    name: Annotated[str, typer.Argument(help="Name of the key, for the logs.")],
    scope: Annotated[
        str, typer.Option(help="read, operate, operate:PREFIX (of project names) or admin.")
    ],
    expires: ExpiresOption = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Create a key and print it; it is not shown again."""
    body: dict[str, object] = {"name": name, "scope": scope}
    _print(KeeperConnection(url).post("/api/keys", _with_expiry(body, expires)), as_json=as_json)


@app.command("list")
def list_keys(
    as_json: JsonOption = False, quiet: QuietOption = False, url: UrlOption = None
) -> None:
    """List the valid keys."""
    names = ("id", "name", "scope", "createdAt", "createdBy", "expiresAt")
    print_items(
        KeeperConnection(url).get("/api/keys")["items"],
        columns=("id", "name", "scope", "created at", "created by", "expires at"),
        row=lambda item: [item[one] for one in names],
        as_json=as_json,
        quiet=quiet,
    )


@app.command("revoke")
def revoke(key: KeyArgument, url: UrlOption = None) -> None:
    """Revoke a key, or all with this name; logins and tokens that came from it end as well."""
    connection = KeeperConnection(url)
    for one in _find(connection, key):
        connection.request("DELETE", f"/api/keys/{quote(one['id'], safe='')}")


@app.command("rotate")
def rotate(
    key: KeyArgument,
    overlap: Annotated[str, typer.Option(help="How long the old key stays valid.")] = "24h",
    expires: ExpiresOption = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Create a key with the same name and scope, and let the old one expire after the overlap."""
    connection = KeeperConnection(url)
    newest = _find(connection, key)[-1]["id"]
    body = _with_expiry({"overlapS": round(parse_duration(overlap))}, expires)
    _print(connection.post(f"/api/keys/{quote(newest, safe='')}/rotate", body), as_json=as_json)


def audit(
    limit: Annotated[int, typer.Option(min=1, help="How many entries.")] = 100,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Show who signed in, and who changed keys, tokens and files, newest first."""
    names = ("at", "actor", "action", "subject", "address")
    print_items(
        list(islice(KeeperConnection(url).iter_items("/api/audit"), limit)),
        columns=names,
        row=lambda item: [item[one] for one in names],
        as_json=as_json,
    )


def _with_expiry(body: dict[str, object], expires: str | None) -> dict[str, object]:
    return body if expires is None else body | {"expiresInS": round(parse_duration(expires))}


def _find(connection: KeeperConnection, key: str) -> list[dict[str, Any]]:
    found = [one for one in connection.get("/api/keys")["items"] if key in {one["id"], one["name"]}]
    if not found:
        raise fail(Exit.NOT_FOUND, f"There is no valid key {key!r}.", "Run `sandkeeper keys list`.")
    return found


def _print(answer: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(answer)
    else:
        print_lines([answer["key"]])
