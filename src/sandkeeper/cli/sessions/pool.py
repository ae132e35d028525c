"""`sandkeeper pool`: sandboxes started before they are needed."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from sandkeeper.cli.connection import JsonOption, KeeperConnection, QuietOption, UrlOption
from sandkeeper.cli.output import print_items, print_json, print_table

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Warm pools of sandboxes.")

COLUMNS = ("template", "target", "ready", "starting", "hit rate", "failures", "error")


@app.command("ls")
def list_pools(
    as_json: JsonOption = False, quiet: QuietOption = False, url: UrlOption = None
) -> None:
    """List the pools with target, ready sandboxes, hit rate and failures."""
    items = KeeperConnection(url).get("/api/pools")["items"]
    print_items(items, columns=COLUMNS, row=_row, id_field="template", as_json=as_json, quiet=quiet)


@app.command("set")
def set_pool(
    template: Annotated[str, typer.Argument(help="The template.")],
    target: Annotated[int, typer.Argument(help="Number of warm sandboxes; 0 empties the pool.")],
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Set the number of warm sandboxes of a template and restart a stopped pool."""
    body = {"template": template, "target": target}
    pool = KeeperConnection(url).request("PUT", "/api/pools", body=body)
    if as_json:
        print_json(pool)
    else:
        print_table(COLUMNS, [_row(pool)])


def _row(item: dict[str, Any]) -> tuple[object, ...]:
    rate = "-" if item["hitRate"] is None else f"{item['hitRate']:.0%}"
    error = f"stopped: {item['error']}" if item["stopped"] else item["error"] or "-"
    names = ("template", "target", "ready", "starting")
    return (*(item[name] for name in names), rate, item["failures"], error)
