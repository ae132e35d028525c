"""`sandkeeper pool`: sandboxes that run before anybody asks."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from sandkeeper.cli.connection import JsonOption, KeeperConnection, QuietOption, UrlOption
from sandkeeper.cli.output import print_json, print_lines, print_table

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Warm pools of sandboxes.")


@app.command("ls")
def list_pools(
    as_json: JsonOption = False, quiet: QuietOption = False, url: UrlOption = None
) -> None:
    """List the pools: how many are wished for, how many are ready, and how often that helped."""
    items = KeeperConnection(url).get("/api/pools")["items"]
    if as_json:
        print_json(items)
    elif quiet:
        print_lines(item["template"] for item in items)
    else:
        _print(items)


@app.command("set")
def set_pool(
    template: Annotated[str, typer.Argument(help="The template.")],
    target: Annotated[int, typer.Argument(help="How many to keep warm; 0 for none.")],
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Keep so many sandboxes of a template warm; a pool that had stopped goes on."""
    body = {"template": template, "target": target}
    pool = KeeperConnection(url).ask("PUT", "/api/pools", body=body)
    if as_json:
        print_json(pool)
    else:
        _print([pool])


def _print(items: list[dict[str, Any]]) -> None:
    columns = ("template", "target", "ready", "starting", "hit rate", "failures", "error")
    print_table(columns, (_row(item) for item in items))


def _row(item: dict[str, Any]) -> tuple[object, ...]:
    rate = "-" if item["hitRate"] is None else f"{item['hitRate']:.0%}"
    error = f"stopped: {item['error']}" if item["stopped"] else item["error"] or "-"
    names = ("template", "target", "ready", "starting")
    return (*(item[name] for name in names), rate, item["failures"], error)
