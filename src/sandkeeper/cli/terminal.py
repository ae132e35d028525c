"""Tables with colours, for people. Imported when a command prints to a terminal, not before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sandkeeper.cli.tables import fit_table

COLOURS = {
    "RUNNING": "green",
    "STARTING": "blue",
    "PAUSED": "yellow",
    "KILLED": "red",
    "EXPIRED": "dark_orange",
    "TERMINATED": "bright_black",
    "UNKNOWN": "bright_yellow",
    "Running": "green",
    "Starting": "blue",
    "Starting app": "blue",
    "Waking": "blue",
    "Asleep": "yellow",
    "Killed": "red",
    "Expired": "dark_orange",
    "Stopped": "bright_black",
    "Unknown": "bright_yellow",
    "Provider unreachable": "bright_yellow",
}


def draw_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows below a bold head, each on one line."""
    listed = list(rows)
    console = Console()
    header, *cells = fit_table(columns, listed, console.width)
    draw = partial(console.print, no_wrap=True, overflow="ignore", crop=False)
    draw(Text("  ".join(header).rstrip(), style="bold"))
    for whole, row in zip(listed, cells, strict=True):
        # The last columns may have been left out.
        styles = [COLOURS.get(cell, "") for cell in whole]
        line = Text("  ").join(Text(cell, style) for cell, style in zip(row, styles, strict=False))
        line.rstrip()
        draw(line)


def draw_fields(pairs: Iterable[tuple[str, str]]) -> None:
    """Print names and values in two columns."""
    grid = Table.grid(padding=(0, 2))
    for name, value in pairs:
        grid.add_row(Text(name, style="bright_black"), Text(value, style=COLOURS.get(value, "")))
    Console().print(grid)
