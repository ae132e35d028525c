"""The fingerprint of a folder stays the same only while nothing below it changes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandkeeper.engine.runtime.linux.fingerprint import ENTRIES_MAX, compute_fingerprint
from support.eventually import eventually_sync


@pytest.fixture
def root(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    yield descriptor
    os.close(descriptor)


def settle(root: int, path: str = "/work") -> str:
    """Return the fingerprint as soon as the last change is old enough."""
    return eventually_sync(lambda: compute_fingerprint(root, path, ["skipped"]))


def test_what_is_skipped_changes_nothing_and_all_else_does(root: int, tmp_path: Path) -> None:
    work = tmp_path / "work"
    (work / "deep" / "skipped").mkdir(parents=True)
    (work / "deep" / "file").write_text("one")
    (work / os.fsdecode(b"\xff")).write_text("not UTF-8")
    first = settle(root)
    (work / "deep" / "skipped" / "more").write_text("more")
    assert settle(root) == first
    look = (work / "deep" / "file").stat()
    (work / "deep" / "file").write_text("two")
    os.utime(work / "deep" / "file", ns=(look.st_atime_ns, look.st_mtime_ns))
    second = settle(root)
    (work / "deep" / "file").chmod(0o700)
    third = settle(root)
    (work / "deep" / "file").rename(work / "deep" / "other")
    assert len({first, second, third, settle(root)}) == 4


def test_a_folder_that_changed_just_now_is_gone_or_is_too_large_has_none(
    root: int, tmp_path: Path
) -> None:
    (tmp_path / "work").mkdir()
    assert compute_fingerprint(root, "/work", ()) is None
    assert settle(root)
    assert compute_fingerprint(root, "/nowhere", ()) is None
    for number in range(ENTRIES_MAX + 1):
        (tmp_path / "work" / str(number)).touch()
    assert compute_fingerprint(root, "/work", ()) is None
