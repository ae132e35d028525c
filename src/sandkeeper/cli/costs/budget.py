"""`sandkeeper budget`: what tenants may cost in a month."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import quote

import typer

from sandkeeper.cli.connection import JsonOption, KeeperConnection, QuietOption, UrlOption
from sandkeeper.cli.costs.costs import format_money
from sandkeeper.cli.output import print_items, print_json, print_table

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Monthly budgets of tenants.")

COLUMNS = ("tenant", "budget", "spent", "share", "forecast", "spent on", "at 100 %", "notices")
TenantArgument = Annotated[str, typer.Argument(help="The tenant; `*` is the fleet.")]


@app.command("ls")
def list_budgets(
    as_json: JsonOption = False, quiet: QuietOption = False, url: UrlOption = None
) -> None:
    """List the budgets with what is spent and what the month will cost."""
    items = KeeperConnection(url).get("/api/budgets")["items"]
    print_items(items, columns=COLUMNS, row=_row, id_field="tenant", as_json=as_json, quiet=quiet)


@app.command("set")
def set_budget(
    tenant: TenantArgument,
    dollars: Annotated[str, typer.Argument(help="Dollars for a calendar month (UTC).")],
    action: Annotated[
        Literal["notify", "refuse", "pause"],
        typer.Option(help="At 100 %: only notify, refuse new sandboxes, or also pause idle ones."),
    ] = "notify",
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Set what a tenant may cost in a month. Nothing is ever ended for money."""
    body = {"tenant": tenant, "dollars": dollars, "action": action}
    budget = KeeperConnection(url).request("PUT", "/api/budgets", body=body)
    if as_json:
        print_json(budget)
    else:
        print_table(COLUMNS, [_row(budget)])


@app.command("rm")
def remove_budget(tenant: TenantArgument, url: UrlOption = None) -> None:
    """Remove a budget."""
    KeeperConnection(url).request("DELETE", f"/api/budgets/{quote(tenant, safe='')}")


def _row(item: dict[str, Any]) -> tuple[object, ...]:
    forecast = "-" if item["forecast"] is None else format_money(item["forecast"])
    notices = ", ".join(f"{one['share']} %" for one in item["notices"]) or "-"
    return (
        item["tenant"],
        format_money(item["dollars"]),
        format_money(item["spent"]),
        "-" if item["share"] is None else f"{item['share']:.0%}",
        forecast,
        item["spentOn"] or "-",
        item["action"],
        notices,
    )
