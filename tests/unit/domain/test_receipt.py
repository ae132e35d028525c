"""What the mark of a wake says about the files of the present run."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from sandkeeper.domain.receipt import (
    FileLoss,
    Receipt,
    WakeMethod,
    WakeSummary,
    parse_summary,
    render_summary,
)

BEGAN_AT = datetime(2026, 1, 1, tzinfo=UTC)
LATER = BEGAN_AT + timedelta(seconds=1)
WHOLE = Receipt(WakeMethod.RESUME, files_version=3)
MARK = WakeSummary("wk-1", WakeMethod.RESUME, BEGAN_AT, 1, receipt=WHOLE, finished_at=LATER)


@pytest.mark.parametrize(
    ("mark", "has_compared"),
    [
        (MARK, True),
        (replace(MARK, finished_at=BEGAN_AT - timedelta(seconds=1)), False),
        (replace(MARK, finished_at=None), False),
        (replace(MARK, receipt=None), False),
        (replace(MARK, receipt=replace(WHOLE, files_version=0)), False),
        (replace(MARK, receipt=replace(WHOLE, lost_count=1)), False),
    ],
)
def test_files_are_in_order_if_a_wake_of_this_run_compared_them_and_lost_none(
    mark: WakeSummary, *, has_compared: bool
) -> None:
    assert mark.has_compared(since=BEGAN_AT) is has_compared


def test_a_mark_is_read_as_it_was_written() -> None:
    receipt = replace(
        WHOLE,
        restored_paths=("a",),
        lost=(FileLoss("b", "no room"),),
        lost_count=1,
        unread=(FileLoss("c", "Permission denied"),),
    )
    mark = replace(MARK, receipt=receipt)
    assert parse_summary(render_summary(mark)) == mark
