"""Tables fit every terminal from 60 columns on, one line a row."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from sandkeeper.cli.tables import fit_table

COLUMNS = ("project", "state", "what is true", "sleeps in", "last use")
ROWS = (
    ("shop", "Running", "Its app answers on port 8000.", "2 m 3 s", "12 s ago"),
    ("session:se-3b03d63c40633f60", "App crashed (exit 1)", "Its app ended.", "-", "3 m 0 s ago"),
    ("übergröße-日本語-projekt", "Asleep", "It was paused on request.", "-", "1 d 3 h ago"),
    ("k1", "Killed", "It was killed on request. A wake creates a new instance.", "-", "-"),
)
GOLDEN = {
    60: """\
project                  state       what is true  sleeps in
shop                     Running     Its app ans…  2 m 3 s
session:se-…63c40633f60  App crash…  Its app end…  -
übergröße- …語-projekt   Asleep      It was paus…  -
k1                       Killed      It was kill…  -
""",
    80: """\
project                      state         what is true   sleeps in  last use
shop                         Running       Its app answ…  2 m 3 s    12 s ago
session:se-3b03d63c40633f60  App crashed…  Its app ende…  -          3 m 0 s ago
übergröße-日本語-projekt     Asleep        It was pause…  -          1 d 3 h ago
k1                           Killed        It was kille…  -          -
""",
    200: """\
project                      state                 what is true                                              sleeps in  last use
shop                         Running               Its app answers on port 8000.                             2 m 3 s    12 s ago
session:se-3b03d63c40633f60  App crashed (exit 1)  Its app ended.                                            -          3 m 0 s ago
übergröße-日本語-projekt     Asleep                It was paused on request.                                 -          1 d 3 h ago
k1                           Killed                It was killed on request. A wake creates a new instance.  -          -
""",  # noqa: E501  As wide as it is.
}


@pytest.mark.parametrize("width", GOLDEN)
def test_a_row_is_one_line_at_every_width(width: int) -> None:
    lines = ["  ".join(row).rstrip() for row in fit_table(COLUMNS, ROWS, width)]
    assert "\n".join(lines) + "\n" == GOLDEN[width]


def test_no_line_is_wider_than_the_terminal_and_the_first_column_stays() -> None:
    for width in range(60, 201):
        rows = fit_table(COLUMNS, ROWS, width)
        assert max(cell_len("  ".join(row).rstrip()) for row in rows) <= width
        assert rows[1][0].startswith("shop")


def test_an_empty_table_has_its_header() -> None:
    assert fit_table(COLUMNS, (), 60) == [list(COLUMNS)]
