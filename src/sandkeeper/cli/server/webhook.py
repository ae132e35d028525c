"""`sandkeeper webhook`: webhook registrations at the provider."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from sandkeeper.cli.connection import JsonOption, KeeperConnection, UrlOption
from sandkeeper.cli.output import print_items, print_json, print_lines

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Webhooks at the provider.")


@app.command("register")
def register(
    target: Annotated[
        str, typer.Argument(help="Public URL of this keeper. [default: the configured one]")
    ] = "",
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Register a webhook at the provider; does nothing if it is registered."""
    _print(KeeperConnection(url).post("/api/webhooks", {"url": target})["items"], as_json=as_json)


@app.command("list")
def list_registrations(as_json: JsonOption = False, url: UrlOption = None) -> None:
    """List this keeper's registrations at the provider."""
    _print(KeeperConnection(url).get("/api/webhooks")["items"], as_json=as_json)


@app.command("unregister")
def unregister(as_json: JsonOption = False, url: UrlOption = None) -> None:
    """Remove this keeper's webhooks at the provider and list them."""
    _print(KeeperConnection(url).request("DELETE", "/api/webhooks")["items"], as_json=as_json)


@app.command("test")
def send_test(as_json: JsonOption = False, url: UrlOption = None) -> None:
    """Send a signed test delivery to this keeper's own receiver."""
    answer = KeeperConnection(url).post("/api/webhooks/test")
    if as_json:
        print_json(answer)
    else:
        print_lines([answer["outcome"]])


def _print(items: list[dict[str, Any]], *, as_json: bool) -> None:
    columns = ("id", "enabled", "url", "name")
    print_items(
        items, columns=columns, row=lambda item: [item[name] for name in columns], as_json=as_json
    )
