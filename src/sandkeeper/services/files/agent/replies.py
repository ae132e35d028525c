"""What a sandbox says about its files, read with suspicion: it may say anything."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import orjson

from sandkeeper.domain.errors import ProviderAmbiguousError
from sandkeeper.domain.files.ignore_rules import NOT_KEPT_MAX
from sandkeeper.domain.files.manifest import ALL_KEPT, Kind, NotKept, find_path_problem
from sandkeeper.services.files.agent.agent_script import MARK
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
class AgentReply:
    """What became of one file that was asked for. `data` is its content if it came in the tar."""

    where: str
    mode: int
    size: int
    mtime_ns: int
    stamp: str
    text: str
    data: bytes | None = None


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
    """Return what the script inside answered: the last marked line of its output."""
    with distrust():
        line = next(one for one in reversed(text.splitlines()) if one.startswith(MARK))
        unpacker = zlib.decompressobj()
        body = unpacker.decompress(base64.b64decode(line[len(MARK) :]), ANSWER_BYTES_MAX)
        if unpacker.unconsumed_tail:
            raise ValueError("too long")
        found = orjson.loads(body)
        if not isinstance(found, dict):
            raise TypeError(type(found))
        return found


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


def read_answers(answer: dict[str, Any], *, asked: int) -> list[AgentReply]:
    """Return the answers of `pack`: one for each file that it reached, at least for the first."""
    with distrust():
        rows = [_read_answer(row) for row in answer["answers"]]
        if not 0 < len(rows) <= asked:
            raise ValueError(len(rows))
        return rows


def _read_answer(row: Sequence[Any]) -> AgentReply:
    where, mode, size, mtime_ns, stamp, text = row
    return AgentReply(
        str(where), int(mode) & 0o7777, int(size), int(mtime_ns), str(stamp), str(text)[:300]
    )


def join_contents(rows: Sequence[AgentReply], raw: bytes) -> list[AgentReply]:
    """Give each answer that is in the tar its content; the members are in the same order."""
    with distrust():
        return list(_join(rows, raw))


def _join(rows: Sequence[AgentReply], raw: bytes) -> Iterator[AgentReply]:
    at = 0
    for index, row in enumerate(rows):
        if row.where != "tar":
            yield row
            continue
        name = raw[at : at + 100].rstrip(b"\0")
        size = int(raw[at + 124 : at + 135], 8)
        data = raw[at + 512 : at + 512 + size]
        if name != str(index).encode() or size != row.size or len(data) != size:
            raise ValueError(index)
        at += 512 + size + -size % 512
        yield AgentReply(row.where, row.mode, size, row.mtime_ns, row.stamp, row.text, data)
