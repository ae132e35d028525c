"""`sandkeeper costs`: what the fleet costs, and what sleeping saved."""

from __future__ import annotations

import csv
import sys
from decimal import Decimal
from typing import Annotated, Any, Literal

import typer

from sandkeeper.cli.connection import JsonOption, KeeperConnection, UrlOption
from sandkeeper.cli.output import format_duration, print_json, print_message, print_table

Group = Literal["tenant", "template", "owner", "sandbox", "day"]

COLUMNS = ("cost", "running", "asleep", "idle", "pools", "unused", "saved", "saved, timeout only")


def costs(
    *,
    by: Annotated[Group, typer.Option(help="What to sum by.")] = "tenant",
    first: Annotated[
        str | None, typer.Option("--from", help="First day (UTC); the first of this month.")
    ] = None,
    last: Annotated[str | None, typer.Option("--to", help="Last day (UTC); today.")] = None,
    tenant: Annotated[str, typer.Option(help="Only this tenant's.")] = "",
    template: Annotated[str | None, typer.Option(help="Only sandboxes of this template.")] = None,
    limit: Annotated[int, typer.Option(help="Lines at most, the dearest ones.")] = 100,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print comma-separated values.")] = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Show what sandboxes cost, and what sleeping saved.

    `saved` compares with sandboxes that are never paused, `saved, timeout only` with the provider's
    timeout alone.
    """
    query = {"by": by, "from": first, "to": last, "tenant": tenant, "limit": limit}
    report = KeeperConnection(url).get("/api/costs", **query, template=template)
    if as_json:
        print_json(report)
    elif as_csv:
        _print_csv(by, report)
    else:
        total = {"key": "total", **report["total"]}
        print_table((by, *COLUMNS), [_row(item) for item in (*report["items"], total)])
    if report["hasMore"]:
        print_message(f"More than {limit} lines: the total has them all (--limit shows more).")


def _row(item: dict[str, Any]) -> tuple[str, ...]:
    dollars = ("idle", "pools", "unusedWarmups", "savedNeverPaused", "savedTimeoutOnly")
    return (
        item["key"] or "-",
        format_money(item["cost"]),
        format_duration(item["runningS"]),
        format_duration(item["pausedS"]),
        *(format_money(item[name]) for name in dollars),
    )


def format_money(amount: str) -> str:
    """Format dollars with cents, and small amounts with as many places as they need."""
    value = Decimal(amount)
    places = 2 if abs(value) >= 1 or not value else 6
    return f"${value:,.{places}f}"


def _print_csv(by: str, report: dict[str, Any]) -> None:
    names = list(report["total"])
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([by, *names])
    for item in report["items"]:
        # A spreadsheet would run a name that begins like a formula.
        key = item["key"]
        safe = f"'{key}" if key[:1] in "=+-@\t\r" and key else key
        writer.writerow([safe, *(item[name] for name in names)])
