"""Output of the commands: data on stdout, messages on stderr, tables on a terminal only."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any


def print_json(value: object) -> None:
    """Print one JSON document to stdout."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=2) + "\n")


def print_json_line(value: object) -> None:
    """Print one JSON line and flush, so that a reader of the pipe sees it immediately."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def is_terminal() -> bool:
    """Return whether stdout is a terminal. A pipe gets every value as the API returns it."""
    return sys.stdout.isatty()


def print_lines(lines: Iterable[str]) -> None:
    """Print lines to stdout and flush, so that a reader of the pipe sees them immediately."""
    for line in lines:
        sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def print_message(text: str) -> None:
    """Print a message for the user to stderr."""
    sys.stderr.write(f"{text}\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table to a terminal, tab-separated lines to a pipe."""
    listed = [[format_cell(cell) for cell in row] for row in rows]
    if not is_terminal():
        print_lines("\t".join(row) for row in listed)
        return
    from sandkeeper.cli.terminal import draw_table  # noqa: PLC0415  A pipe needs no colours.

    draw_table(columns, listed)


def print_items(
    items: Sequence[dict[str, Any]],
    *,
    columns: Sequence[str],
    row: Callable[[dict[str, Any]], Sequence[object]],
    id_field: str = "id",
    as_json: bool,
    quiet: bool = False,
) -> None:
    """Print a list as `--json` and `--quiet` ask: JSON, one id per line, or a table."""
    if as_json:
        print_json(items)
    elif quiet:
        print_lines(str(item[id_field]) for item in items)
    else:
        print_table(columns, [row(item) for item in items])


def print_fields(pairs: Iterable[tuple[str, object]]) -> None:
    """Print a record, one field per line."""
    listed = [(name, format_cell(value)) for name, value in pairs]
    if not is_terminal():
        print_lines(f"{name}\t{value}" for name, value in listed)
        return
    from sandkeeper.cli.terminal import draw_fields  # noqa: PLC0415

    draw_fields(listed)


def format_age(instant: str | None) -> str:
    """Format how long ago an instant was."""
    if not instant:
        return "-"
    seconds = (datetime.now(UTC) - datetime.fromisoformat(instant)).total_seconds()
    return "just now" if 0 <= seconds < 1 else f"{format_duration(seconds)} ago"


def format_time(instant: str) -> str:
    """Format an instant in local time, with the date unless it is today."""
    local = datetime.fromisoformat(instant).astimezone()
    today = local.date() == datetime.now().astimezone().date()
    return f"{local:%H:%M:%S}" if today else f"{local:%Y-%m-%d %H:%M:%S}"


def format_time_left(instant: str | None) -> str:
    """Format the time until an instant."""
    if not instant:
        return "-"
    seconds = (datetime.fromisoformat(instant) - datetime.now(UTC)).total_seconds()
    return "now" if seconds <= 0 else format_duration(seconds)


def format_duration(seconds: float) -> str:
    """Format a duration in its two largest units."""
    whole = int(abs(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} m {whole % 60} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} m"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def format_cell(cell: Any) -> str:
    """Format one cell as text without control characters."""
    if cell is None:
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, dict | list):
        return json.dumps(cell, ensure_ascii=False)
    # A control character in a name could move the terminal's cursor.
    return "".join(char if char.isprintable() else " " for char in str(cell))
