"""What a sandbox says about its files, read with suspicion: it may say anything."""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import orjson

from sandkeeper.domain.errors import ProviderAmbiguousError
from sandkeeper.domain.files.ignore_rules import NOT_KEPT_MAX
from sandkeeper.domain.files.manifest import ALL_KEPT, Kind, NotKept, find_path_problem
from sandkeeper.services.files.agent.inside.common import MARK
from sandkeeper.services.files.contract import SkippedFile

ANSWER_BYTES_MAX: Final = 256 * 1024 * 1024
NOT_KEPT_CHARS: Final = 300
"""Of each path that is named as not kept: every status carries them."""


@dataclass(frozen=True, slots=True)
class SeenEntry:
    """One path as it is inside. `sha256` is empty where it was not computed."""

    path: str
    kind: Kind
    mode: int
    size: int
    mtime_ns: int
    stamp: str
    target: str
    sha256: str


@dataclass(frozen=True, slots=True)
class SeenTree:
    """What was found inside, what could not be read, and what the policy leaves out."""

    seen: Mapping[str, SeenEntry]
    problems: tuple[SkippedFile, ...]
    not_kept: NotKept = ALL_KEPT


@dataclass(frozen=True, slots=True)
class SentFile:
    """A path that is not as it was known, and how it came: see `collect.py`.

    `data` is its content if that is in the parcel, and `reason` says why it cannot be read.
    """

    how: str
    seen: SeenEntry
    data: bytes = b""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a large file, and where it belongs."""

    path: str
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Collected:
    """What the end of a capture says: what is gone, and the rest of what is not as it was known."""

    gone: Sequence[str]
    problems: tuple[SkippedFile, ...]
    not_kept: NotKept
    rest: bytes


@contextmanager
def distrust() -> Iterator[None]:
    """Turn each way in which an answer cannot be read into one error."""
    try:
        yield
    except (ValueError, TypeError, KeyError, IndexError, StopIteration, zlib.error) as error:
        raise ProviderAmbiguousError(
            "The sandbox gave an answer about its files that cannot be read."
        ) from error


def read_reply(text: str) -> dict[str, Any]:
    """Return what the script inside answered on the last marked line of its output."""
    with distrust():
        line = next(one for one in reversed(text.splitlines()) if one.startswith(MARK))
        found = orjson.loads(_inflate(line[len(MARK) :]))
        if not isinstance(found, dict):
            raise TypeError(type(found))
        return found


def _inflate(text: str) -> bytes:
    unpacker = zlib.decompressobj()
    body = unpacker.decompress(base64.b64decode(text), ANSWER_BYTES_MAX)
    if unpacker.unconsumed_tail:
        raise ValueError("too long")
    return body


def read_unkept(row: Sequence[object]) -> SkippedFile:
    """Return a path and a reason, neither of them too long."""
    path, reason = row
    return SkippedFile(str(path)[:4000], str(reason)[:200])


def read_tree(answer: dict[str, Any]) -> SeenTree:
    """Return the walk of `list`; an invalid path is a problem and not an entry."""
    with distrust():
        problems = [read_unkept(row) for row in answer["problems"]]
        seen: dict[str, SeenEntry] = {}
        for row in answer["entries"]:
            one = _read_seen(row)
            if problem := find_path_problem(one.path):
                problems.append(SkippedFile(one.path[:200], problem))
            else:
                seen[one.path] = one
        return SeenTree(seen, tuple(problems), _read_not_kept(answer))


def read_collected(answer: dict[str, Any]) -> Collected:
    """Return the end of a capture."""
    with distrust():
        return Collected(
            gone=[str(path) for path in answer["gone"]],
            problems=tuple(read_unkept(row) for row in answer["problems"]),
            not_kept=_read_not_kept(answer),
            rest=_inflate(answer["rest"]),
        )


def _read_not_kept(answer: dict[str, Any]) -> NotKept:
    paths = tuple(str(path)[:NOT_KEPT_CHARS] for path in answer["not_kept"][:NOT_KEPT_MAX])
    count = int(answer["not_kept_count"])
    if not len(paths) <= count < 2**31:
        raise ValueError(count)
    return NotKept(paths, count)


def _read_seen(row: Sequence[Any]) -> SeenEntry:
    path, kind, mode, size, mtime_ns, stamp, text = row
    kind = Kind(kind)
    size = int(size)
    if size < 0 or not isinstance(path, str):
        raise ValueError(size)
    return SeenEntry(
        path=path,
        kind=kind,
        mode=int(mode) & 0o7777,
        size=size,
        mtime_ns=int(mtime_ns),
        stamp=str(stamp),
        target=str(text) if kind is Kind.SYMLINK else "",
        sha256=str(text) if kind is Kind.FILE else "",
    )


def read_parcel(raw: bytes) -> list[SentFile | Piece]:
    """Return the rows of a parcel with their contents, each of which is what its hash says."""
    with distrust():
        at = raw.index(b"\n")
        rows = orjson.loads(raw[:at])
        contents = memoryview(raw)[at + 1 :]
        found: list[SentFile | Piece] = []
        at = 0
        for row in rows:
            if row[0] == "piece":
                _, path, offset, size = row
                found.append(Piece(str(path), int(offset), bytes(contents[at : at + size])))
            else:
                found.append(_read_sent(row, contents[at:]))
                size = len(found[-1].data)
            at += size
        if at != len(contents):
            raise ValueError(at)
        return found


def _read_sent(row: Sequence[Any], contents: memoryview) -> SentFile:
    how, *rest = row
    if how == "error":
        seen = _read_seen([*rest[:-1], ""])
        return SentFile(how, seen, reason=str(rest[-1])[:200])
    seen = _read_seen(rest)
    data = bytes(contents[: seen.size]) if how == "here" else b""
    if problem := find_path_problem(seen.path):
        return SentFile("error", seen, data, problem)
    if how == "here" and (
        len(data) != seen.size or hashlib.sha256(data).hexdigest() != seen.sha256
    ):
        raise ValueError(seen.path)
    return SentFile(how, seen, data)
