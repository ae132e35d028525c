"""`sandkeeper webhook`: where the provider sends its events."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from sandkeeper.cli.connection import JsonOption, KeeperConnection, UrlOption
from sandkeeper.cli.output import print_json, print_lines, print_table

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Webhooks at the provider.")


@app.command("register")
def register(
    target: Annotated[
        str, typer.Argument(help="Public URL of this keeper; empty means the configured one.")
    ] = "",
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Have the provider send its events here. A second call changes nothing."""
    _print(KeeperConnection(url).post("/api/webhooks", {"url": target})["items"], as_json=as_json)


@app.command("list")
def list_registrations(as_json: JsonOption = False, url: UrlOption = None) -> None:
    """List this keeper's registrations at the provider."""
    _print(KeeperConnection(url).get("/api/webhooks")["items"], as_json=as_json)


@app.command("unregister")
def unregister(as_json: JsonOption = False, url: UrlOption = None) -> None:
    """Have the provider stop sending its events here, and list what was removed."""
    _print(KeeperConnection(url).ask("DELETE", "/api/webhooks")["items"], as_json=as_json)


@app.command("test")
def send_test(as_json: JsonOption = False, url: UrlOption = None) -> None:
    """Send a signed test delivery through this keeper's own receiver."""
    answer = KeeperConnection(url).post("/api/webhooks/test")
    if as_json:
        print_json(answer)
    else:
        print_lines([answer["outcome"]])


def _print(items: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        print_json(items)
        return
    columns = ("id", "enabled", "url", "name")
    print_table(columns, ([item[name] for name in columns] for item in items))
