"""Tables that fit the terminal: from 60 columns on every row is one line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.cells import cell_len, set_cell_size

GAP: Final = 2
FIRST_MIN: Final = 16
"""The first column names the row: it is cut last, in the middle, and not below this."""
TEXT_MIN: Final = 10


def fit_table(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[list[str]]:
    """Return the header and the rows as cells of equal width that fit together.

    Long columns are cut first, the longest most. If that is not enough the last columns are left
    out, so a table's columns stand in the order of their importance.
    """
    count = len(columns)
    natural = [
        max([cell_len(name), *(cell_len(row[place]) for row in rows)])
        for place, name in enumerate(columns)
    ]
    least = [
        min(natural[place], max(cell_len(name), FIRST_MIN if place == 0 else TEXT_MIN))
        for place, name in enumerate(columns)
    ]
    while count > 1 and sum(least[:count]) + GAP * (count - 1) > width:
        count -= 1
    widths = _shrink(natural[:count], least[:count], width - GAP * (count - 1))
    return [_cut_row(row[:count], widths) for row in (columns, *rows)]


def _shrink(natural: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """Return widths that fit into the room: the widest after the first give way first."""
    widths = list(natural)
    while sum(widths) > room:
        places = [place for place in range(len(widths)) if widths[place] > least[place]]
        if not places:
            break
        widest = max(places, key=lambda place: (place > 0, widths[place]))
        widths[widest] -= 1
    return widths


def _cut_row(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    cells = []
    for place, (cell, width) in enumerate(zip(row, widths, strict=True)):
        if cell_len(cell) <= width:
            cells.append(set_cell_size(cell, width))
        elif place == 0:
            head = (width - 1) // 2
            tail = _take_end(cell, width - 1 - head)
            cells.append(set_cell_size(set_cell_size(cell, head) + "…" + tail, width))
        else:
            cells.append(set_cell_size(cell, width - 1) + "…")
    return cells


def _take_end(cell: str, width: int) -> str:
    """Return as much of the end as fits."""
    start = len(cell) - width
    while cell_len(cell[start:]) > width:
        start += 1
    return cell[start:]
