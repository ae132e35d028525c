"""`sandkeeper simulate`: what another idle timeout would have cost."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from sandkeeper.cli.connection import JsonOption, KeeperConnection, UrlOption
from sandkeeper.cli.costs.costs import format_money
from sandkeeper.cli.output import format_duration, print_json, print_message, print_table

COLUMNS = ("idle", "running", "cost", "pauses", "too early", "wakes", "waiting", "best", "setting")


def simulate(
    idle: Annotated[
        str, typer.Option(help="Timeouts to compare: seconds, adaptive or never, with commas.")
    ] = "60,180,300,adaptive",
    days: Annotated[int, typer.Option(help="Days of recorded use, 1 to 35.")] = 14,
    by: Annotated[
        Literal["tenant", "template"] | None, typer.Option(help="Show each of them.")
    ] = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Replay recorded use under other idle timeouts, and compare cost and waiting.

    `current` is the policies in force; a star marks timeouts that no other beats in both.
    """
    query = {"idle": idle, "days": days, "by": by}
    report = KeeperConnection(url).get("/api/costs/simulation", **query)
    if as_json:
        print_json(report)
        return
    rows = [_row(by, group["key"], item) for group in report["groups"] for item in group["items"]]
    print_table((by, *COLUMNS) if by else COLUMNS, rows)
    real = format_duration(report["realRunningS"])
    count = sum(group["sandboxes"] for group in report["groups"])
    sample = ", a sample" if report["isSample"] else ""
    span = f"from {report['first']} to {report['last']} (UTC)"
    print_message(f"{count} sandboxes{sample} really ran for {real} {span}.")


def _row(by: str | None, key: str, item: dict[str, Any]) -> tuple[object, ...]:
    cells = (
        item["idle"],
        format_duration(item["runningS"]),
        format_money(item["cost"]),
        item["pauses"],
        item["earlyPauses"],
        item["wakes"],
        format_duration(item["waitingS"]),
        "*" if item["best"] else "",
        item["setting"] or "-",
    )
    return (key or "-", *cells) if by else cells
