"""A log that is followed shows each line once."""

from __future__ import annotations

import pytest

from sandkeeper.cli.sandboxes.logs import find_new_lines


@pytest.mark.parametrize(
    ("seen", "now", "new"),
    [
        ([], ["a", "b"], ["a", "b"]),
        (["a", "b"], ["a", "b"], []),
        (["a", "b"], ["a", "b", "c"], ["c"]),
        (["a", "b", "c"], ["b", "c", "d"], ["d"]),
        (["a", "a", "b"], ["a", "b", "a"], ["a"]),
        (["old run"], ["new run", "ready"], ["new run", "ready"]),
        (["a", "b", "c", "d"], ["d"], []),
    ],
)
def test_only_the_lines_after_the_last_known_ones_are_new(
    seen: list[str], now: list[str], new: list[str]
) -> None:
    assert find_new_lines(seen, now) == new
