"""When a sandbox was in use on a day, in a bounded number of bytes.

A *span* is a stretch of use, in whole seconds of a day in UTC. Spans closer than ``MERGE_S`` are
one: no idle timeout is shorter. A day that needs more than ``BYTES_MAX`` is stored more coarsely,
with a longer such distance.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Final

MERGE_S: Final = 15
"""Use within this time is one span. Higher makes short timeouts look better than they are; lower
stores more.
"""

BYTES_MAX: Final = 512
"""The most that one sandbox takes on one day: about a hundred spans."""

_DAY_S: Final = 86_400


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """From the first to the last use, in seconds of the day.

    ``stopped`` says that the sandbox was paused or ended at its end, and not for being idle.
    """

    start: int
    end: int
    stopped: bool = False


def make_spans(start: datetime, end: datetime, *, stopped: bool = False) -> list[tuple[date, Span]]:
    """Return a stretch of use as spans of the days that it touches."""
    found: list[tuple[date, Span]] = []
    begin, last = start.astimezone(UTC), max(start, end).astimezone(UTC)
    while True:
        midnight = datetime.combine(begin.date(), time(), UTC)
        first_s = (begin - midnight) // timedelta(seconds=1)
        last_s = (last - midnight) // timedelta(seconds=1)
        if last_s < _DAY_S:
            return [*found, (begin.date(), Span(first_s, last_s, stopped))]
        found.append((begin.date(), Span(first_s, _DAY_S)))
        begin = midnight + timedelta(days=1)


def merge_spans(spans: Iterable[Span], *, within_s: int = MERGE_S) -> list[Span]:
    """Return spans in order, joined where less than ``within_s`` is between them.

    Use after a stop begins another span. The same spans again change nothing.
    """
    merged: list[Span] = []
    for span in sorted(set(spans)):
        last = merged[-1] if merged else None
        if (
            last is None
            or span.start - last.end >= within_s
            or (last.stopped and span.start > last.end)
        ):
            merged.append(span)
        else:
            is_last = span.end >= last.end
            stopped = span.stopped if is_last else last.stopped
            if span.end == last.end:
                stopped = span.stopped or last.stopped
            merged[-1] = Span(last.start, max(last.end, span.end), stopped)
    return merged


def render_spans(spans: Iterable[Span]) -> str:
    """Return spans as text of at most ``BYTES_MAX`` characters."""
    within_s = MERGE_S
    while True:
        merged = merge_spans(spans, within_s=within_s)
        numbers: list[int] = []
        at = 0
        for span in merged:
            numbers += (span.start - at, 2 * (span.end - span.start) + span.stopped)
            at = span.end
        text = base64.b64encode(b"".join(_render_number(one) for one in numbers)).decode()
        if len(text) <= BYTES_MAX:
            return text
        within_s *= 2
        spans = [Span(one.start, one.end) for one in merged] if within_s > _DAY_S else merged


def parse_spans(text: str) -> list[Span]:
    """Return the spans of a stored text."""
    numbers: list[int] = []
    value = shift = 0
    for byte in base64.b64decode(text):
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            numbers.append(value)
            value = shift = 0
    spans: list[Span] = []
    at = 0
    for gap_s, length in zip(numbers[::2], numbers[1::2], strict=True):
        start = at + gap_s
        at = start + length // 2
        spans.append(Span(start, at, bool(length % 2)))
    return spans


def list_instants(days: Sequence[tuple[date, str]]) -> list[tuple[datetime, datetime, bool]]:
    """Return the stretches of use of some days, in order, joined over midnight."""
    found: list[tuple[datetime, datetime, bool]] = []
    for day, text in sorted(days):
        midnight = datetime.combine(day, time(), UTC)
        for span in parse_spans(text):
            start = midnight + timedelta(seconds=span.start)
            end = midnight + timedelta(seconds=span.end)
            if found and not found[-1][2] and start <= found[-1][1]:
                found[-1] = (found[-1][0], end, span.stopped)
            else:
                found.append((start, end, span.stopped))
    return found


def _render_number(value: int) -> bytes:
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)
