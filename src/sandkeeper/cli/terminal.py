"""Tables with colours, for people. Imported when a command prints to a terminal, not before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

COLOURS = {
    "RUNNING": "green",
    "STARTING": "blue",
    "PAUSED": "yellow",
    "KILLED": "red",
    "EXPIRED": "dark_orange",
    "TERMINATED": "bright_black",
    "UNKNOWN": "bright_yellow",
}


def draw_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows below a bold head."""
    table = Table(*columns, box=None, header_style="bold", pad_edge=False)
    for row in rows:
        table.add_row(*[Text(cell, style=COLOURS.get(cell, "")) for cell in row])
    Console().print(table)


def draw_fields(pairs: Iterable[tuple[str, str]]) -> None:
    """Print names and values in two columns."""
    grid = Table.grid(padding=(0, 2))
    for name, value in pairs:
        grid.add_row(Text(name, style="bright_black"), Text(value, style=COLOURS.get(value, "")))
    Console().print(grid)
