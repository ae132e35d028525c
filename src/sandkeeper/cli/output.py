"""What commands print: data on stdout, talk on stderr, a table on a terminal only."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

COLOURS = {
    "RUNNING": "green",
    "STARTING": "blue",
    "PAUSED": "yellow",
    "KILLED": "red",
    "EXPIRED": "dark_orange",
    "TERMINATED": "bright_black",
    "UNKNOWN": "bright_yellow",
}


def print_json(value: object) -> None:
    """One JSON document on stdout."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=2) + "\n")


def print_json_line(value: object) -> None:
    """One JSON line, written at once: somebody may be following."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def is_for_a_person() -> bool:
    """True on a terminal, where lines are read; a pipe gets every figure as the API gives it."""
    return sys.stdout.isatty()


def print_lines(lines: Iterable[str]) -> None:
    """Lines on stdout, written at once: somebody may be following."""
    for line in lines:
        sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def say(text: str) -> None:
    """Talk to the person, not to the pipe."""
    sys.stderr.write(f"{text}\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table for a terminal; tab-separated lines for a pipe."""
    listed = [[plain(cell) for cell in row] for row in rows]
    if not is_for_a_person():
        print_lines("\t".join(row) for row in listed)
        return
    table = Table(*columns, box=None, header_style="bold", pad_edge=False)
    for row in listed:
        table.add_row(*[Text(cell, style=COLOURS.get(cell, "")) for cell in row])
    Console().print(table)


def print_fields(pairs: Iterable[tuple[str, object]]) -> None:
    """A record, one field a line."""
    listed = [(name, plain(value)) for name, value in pairs]
    if not is_for_a_person():
        print_lines(f"{name}\t{value}" for name, value in listed)
        return
    grid = Table.grid(padding=(0, 2))
    for name, value in listed:
        grid.add_row(Text(name, style="bright_black"), Text(value, style=COLOURS.get(value, "")))
    Console().print(grid)


def age(instant: str | None) -> str:
    """How long ago an instant was, at a glance."""
    if not instant:
        return "-"
    seconds = (datetime.now(UTC) - datetime.fromisoformat(instant)).total_seconds()
    return "just now" if 0 <= seconds < 1 else f"{span(seconds)} ago"


def moment(instant: str) -> str:
    """An instant as this machine's clock shows it; the day only where it is not today."""
    local = datetime.fromisoformat(instant).astimezone()
    today = local.date() == datetime.now().astimezone().date()
    return f"{local:%H:%M:%S}" if today else f"{local:%Y-%m-%d %H:%M:%S}"


def until(instant: str | None) -> str:
    """How long until an instant, at a glance."""
    if not instant:
        return "-"
    seconds = (datetime.fromisoformat(instant) - datetime.now(UTC)).total_seconds()
    return "now" if seconds <= 0 else span(seconds)


def span(seconds: float) -> str:
    """A duration in the two largest units that say something."""
    whole = int(abs(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} m {whole % 60} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} m"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def plain(cell: Any) -> str:
    """One cell as text that moves no cursor."""
    if cell is None:
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, dict | list):
        return json.dumps(cell, ensure_ascii=False)
    # A control character in a name must not move the terminal's cursor.
    return "".join(char if char.isprintable() else " " for char in str(cell))
