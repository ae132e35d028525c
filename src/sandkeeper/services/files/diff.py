"""Pure decisions about one path: what is kept against what is inside."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from sandkeeper.domain.files.manifest import Kind, ManifestEntry
from sandkeeper.services.files.agent.replies import SeenEntry

Comparison = Literal["whole", "missing", "older", "damaged", "newer", "stale"]


def compare(kept: ManifestEntry, seen: SeenEntry | None, *, exact: bool) -> Comparison:
    """Compare a path inside with what is kept of it; `exact` counts permissions too."""
    if kept.kind is Kind.GONE:
        return "stale" if seen is not None and seen.mtime_ns <= kept.mtime_ns else "whole"
    if seen is None:
        return "missing"
    if _is_same(kept, seen):
        differs = exact and kept.kind is not Kind.SYMLINK and kept.mode != seen.mode
        return "damaged" if differs else "whole"
    if seen.mtime_ns == kept.mtime_ns:
        return "damaged"
    return "newer" if seen.mtime_ns > kept.mtime_ns else "older"


def _is_same(kept: ManifestEntry, seen: SeenEntry) -> bool:
    if kept.kind is not seen.kind:
        return False
    if kept.kind is Kind.FILE and seen.sha256:
        return kept.sha256 == seen.sha256
    if kept.kind is Kind.FILE:
        return (kept.size, kept.mtime_ns) == (seen.size, seen.mtime_ns)
    return kept.target == seen.target


def describe_look(seen: SeenEntry | None) -> str:
    """Return how a path looks, to know later whether it was changed; empty if it is missing."""
    if seen is None:
        return ""
    return seen.stamp or f"{seen.size}.{seen.mtime_ns // 10**9}"


def is_ahead(kept: ManifestEntry, seen: SeenEntry) -> bool:
    """Return True if the change of the API is newer than what is inside the sandbox."""
    if kept.kind is Kind.GONE:
        return seen.mtime_ns <= kept.mtime_ns
    if kept.kind is Kind.FILE and seen.kind is Kind.FILE:
        return False
    return not _is_same(kept, seen) and seen.mtime_ns < kept.mtime_ns


def to_entry(seen: SeenEntry) -> ManifestEntry:
    """Return a folder or a link as it is kept."""
    return ManifestEntry(
        path=seen.path,
        kind=seen.kind,
        mode=seen.mode,
        target=seen.target,
        mtime_ns=seen.mtime_ns,
    )


def is_under(path: str, folders: Sequence[str]) -> bool:
    """Return whether this path is, or lies in, one of these; an empty one is the work folder."""
    return any(not one or path == one or path.startswith(f"{one}/") for one in folders)


def split_batches(
    entries: Sequence[ManifestEntry], *, small_bytes: int, parcel_bytes: int, items_max: int
) -> Iterator[list[ManifestEntry]]:
    """Yield small files together, each large one alone, links, and folders from the depth up.

    A folder comes after what lies in it, because its permissions may forbid to write there.
    """
    files = [one for one in entries if one.kind is Kind.FILE]
    small = [one for one in files if one.size <= small_bytes]
    large = [one for one in files if one.size > small_bytes]
    links = [one for one in entries if one.kind is Kind.SYMLINK]
    folders = [one for one in entries if one.kind is Kind.FOLDER]
    others = [*links, *reversed(folders)]
    # Without large files in between, links and folders travel with the last of the small ones.
    runs = [small, *([one] for one in large), others] if large else [[*small, *others]]
    for run in runs:
        batch: list[ManifestEntry] = []
        size = 0
        for one in run:
            if batch and (size + one.size > parcel_bytes or len(batch) >= items_max):
                yield batch
                batch, size = [], 0
            batch.append(one)
            size += one.size
        if batch:
            yield batch
