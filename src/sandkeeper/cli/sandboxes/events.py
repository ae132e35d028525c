"""`sandkeeper events`: past and live events."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from sandkeeper.cli.connection import JsonOption, KeeperConnection, UrlOption
from sandkeeper.cli.output import (
    format_cell,
    format_time,
    is_terminal,
    print_json_line,
    print_lines,
)


def events(
    project: Annotated[str | None, typer.Argument(help="Show only this sandbox's events.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing new events.")
    ] = False,
    limit: Annotated[int, typer.Option(help="Maximum number of past events.")] = 50,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Print past events, oldest first; with --follow, also new ones as they happen."""
    connection = KeeperConnection(url)
    path = f"/api/sandboxes/{quote(connection.resolve(project), safe='')}" if project else None
    past = connection.get(f"{path}/history" if path else "/api/fleet/history", limit=limit)
    items = list(reversed(past["items"]))
    for item in items:
        _print(item, as_json=as_json)
    if not follow:
        return
    after = str(items[-1]["seq"]) if items else "0"
    stream = f"{path}/events" if path else "/api/fleet/events"
    for name, data in connection.follow(stream, after=after):
        if name == "change":
            _print(data, as_json=as_json)


def format_change(item: dict[str, Any]) -> tuple[str, str, str, str]:
    """Format time, change, reason and actor of an event for a terminal."""
    return (
        format_time(item["at"]),
        _name(item, _shorten(item["type"])),
        item["reason"],
        item["actor"],
    )


def _print(item: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json_line(item)
    elif is_terminal():
        at, what, why, who = format_change(item)
        print_lines([format_cell(f"{at}  {item['project']:<16}  {what:<20}  {why} ({who})")])
    else:
        cells = (
            item["at"],
            item["project"],
            _name(item, item["type"]),
            item["reason"],
            item["actor"],
        )
        print_lines(["\t".join(str(cell) for cell in cells)])


def _name(item: dict[str, Any], otherwise: str) -> str:
    return f"{item['fromState']} → {item['toState']}" if item["toState"] else otherwise


def _shorten(kind: str) -> str:
    return kind.removeprefix("sandbox.").replace("_", " ")
