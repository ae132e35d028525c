"""Wrong clocks: of the machine on which a replica runs, and of the provider.

A replica's machine clock is moved with libfaketime, while it runs: the date is wrong, and the time
that passes is not. The provider's clock is moved in what it sends: the `Date` of its replies, and
every time in a body.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime, parsedate_to_datetime
from pathlib import Path
from typing import Final

MACHINE_OFFSETS_S: Final = (5, -5, 90, -90, 3600, -3600)
"""How far a machine's clock is moved: what is ordinary on a bad day, and an hour."""
PROVIDER_OFFSETS_S: Final = (7, -7, 300, -300, 7200, -7200)
"""The same for the provider. Two clocks that are wrong in the same way look right to a keeper on
SQLite, which has no third.
"""
DATABASE_OFFSETS_S: Final = (9, -9, 150, -150, 5400, -5400)
"""The same for PostgreSQL."""

_LIBRARIES: Final = ("/usr/lib/*/faketime/libfaketime.so.1", "/usr/lib*/faketime/libfaketime.so.1")
_DATE: Final = re.compile(rb"(?im)^date: *([^\r\n]+)")
_LENGTH: Final = re.compile(rb"(?im)^content-length: *\d+")
_INSTANT: Final = re.compile(rb'"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d))"')


def find_library() -> Path | None:
    """Return libfaketime, if it is installed."""
    found = (path for pattern in _LIBRARIES for path in Path("/").glob(pattern[1:]))
    return next(found, None)


class MachineClock:
    """The clock of one replica's machine. It jumps when it is moved."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._library = find_library()
        self.ahead_s = 0
        self.move(0)

    @property
    def can_move(self) -> bool:
        return self._library is not None

    @property
    def environment(self) -> Mapping[str, str]:
        """Return what a process needs to work by this clock."""
        if self._library is None:
            return {}
        return {
            "LD_PRELOAD": str(self._library),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_CACHE_DURATION": "1",
            # The time that passes is true, and so are the times of files.
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",
        }

    def move(self, ahead_s: int) -> None:
        """Let the clock be so far ahead from the next second on."""
        self.ahead_s = ahead_s
        made = self._file.with_suffix(".new")
        made.write_text(f"{ahead_s:+d}\n")
        made.replace(self._file)


def move_answer(answer: bytes, ahead_s: int) -> bytes:
    """Return an HTTP answer as a server sends it whose clock is so far ahead."""
    head, mark, body = answer.partition(b"\r\n\r\n")
    if b"transfer-encoding" in head.lower():
        return answer
    body = move_times(body, ahead_s)
    head = _LENGTH.sub(b"content-length: %d" % len(body), head)
    return _DATE.sub(lambda found: b"date: " + _move_date(found[1], ahead_s), head) + mark + body


def move_times(body: bytes, ahead_s: int) -> bytes:
    """Return a JSON text with every time in it moved."""
    return _INSTANT.sub(lambda found: b'"' + _move_instant(found[1], ahead_s) + b'"', body)


def _move_date(date: bytes, ahead_s: int) -> bytes:
    at = parsedate_to_datetime(date.decode()) + timedelta(seconds=ahead_s)
    return format_datetime(at.astimezone(UTC), usegmt=True).encode()


def _move_instant(instant: bytes, ahead_s: int) -> bytes:
    at = datetime.fromisoformat(instant.decode()) + timedelta(seconds=ahead_s)
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z").encode()
