"""Saved files through time: the list of versions, their names, and what differs between two.

Reads come from the database and the store of contents. They ask nothing of a sandbox.
"""

from __future__ import annotations

import asyncio
import difflib
import io
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from sandkeeper.domain.errors import (
    InvalidRequestError,
    SandboxBusyError,
    SavedFileNotFoundError,
)
from sandkeeper.domain.files.manifest import (
    Kind,
    Manifest,
    ManifestEntry,
    PathChange,
    find_difference,
    validate_path,
)
from sandkeeper.domain.owner import Owner
from sandkeeper.domain.states import State
from sandkeeper.services.deps import Deps
from sandkeeper.services.files.capture import FileCapture
from sandkeeper.services.files.versions import FileVersions
from sandkeeper.store import FileCheckpoint, FileVersion

NAME_MAX: Final = 100
TEXT_BYTES_MAX: Final = 256 * 1024
TEXT_LINES_MAX: Final = 5000
"""Of each text, without the lines that both begin and end with. Comparing two texts of many equal
lines takes time by the square of their length; of longer ones, the reader compares the contents."""


@dataclass(frozen=True, slots=True)
class NamedVersion:
    """A version and the names that it has."""

    version: FileVersion
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class VersionComparison:
    """What differs between two versions; `old` is 0 for the state before the first."""

    old: int
    new: int
    changes: list[PathChange]


@dataclass(frozen=True, slots=True)
class TextComparison:
    """What differs between two states of one file, as a unified diff.

    Without a text, `problem` says why: the file is `binary`, or `too_large` to compare here.
    """

    old: int
    new: int
    change: PathChange
    text: str | None
    problem: Literal["binary", "too_large"] | None = None


class FileHistory:
    """List, name and compare the versions of an owner's files."""

    def __init__(self, deps: Deps, versions: FileVersions, capture: FileCapture) -> None:
        self._versions = versions
        self._capture = capture
        self._store = deps.store
        self._clock = deps.clock
        self._comparing = asyncio.Semaphore(1)

    async def list(
        self, owner: Owner, *, before: int | None = None, limit: int, only_named: bool = False
    ) -> list[NamedVersion]:
        """Return versions with their names, newest first."""
        checkpoints = await self._store.checkpoints.list(owner)
        names = defaultdict(list)
        for one in checkpoints:
            names[one.number].append(one.name)
        if not only_named:
            found = await self._store.files.list_versions(owner, before=before, limit=limit)
        else:
            numbers = [one for one in names if before is None or one < before][:limit]
            asked = [await self._store.files.find(owner, one) for one in numbers]
            found = [one for one in asked if one is not None]
        return [NamedVersion(one, tuple(names[one.number])) for one in found]

    async def add_checkpoint(
        self, owner: Owner, name: str, *, number: int | None = None, actor: str
    ) -> FileCheckpoint:
        """Name a version; without a number, capture a running sandbox and name its newest one."""
        check_checkpoint_name(name)
        if number is None:
            number = await self.save_present(owner, actor=actor, reason="for a checkpoint")
        checkpoint = FileCheckpoint(owner, name, number, self._clock(), actor)
        return await self._store.checkpoints.add(checkpoint)

    async def save_present(self, owner: Owner, *, actor: str, reason: str) -> int:
        """Return the version of the files as they are now; a running sandbox is captured first."""
        sandbox = await self._store.sandboxes.find_by_owner(owner)
        if sandbox is not None and sandbox.is_waking(self._clock()):
            raise SandboxBusyError(held_for="wake", retry_after_s=1)
        if sandbox is not None and sandbox.state is State.RUNNING:
            captured = await self._capture.capture(sandbox, actor=actor, reason=reason)
            number = captured.version
        else:
            latest = await self._store.files.find_latest(owner)
            number = 0 if latest is None else latest.number
        if number == 0:
            raise SavedFileNotFoundError("No files are saved yet.")
        return number

    async def remove_checkpoint(self, owner: Owner, name: str) -> None:
        """Remove a name. Raise SavedFileNotFoundError if no version has it."""
        if not await self._store.checkpoints.remove(owner, name):
            raise SavedFileNotFoundError(f"No version has the name {name[:NAME_MAX]!r}.")

    async def compare(self, owner: Owner, number: int, against: int | None) -> VersionComparison:
        """Return what differs from another version, or from the one saved before it."""
        old, new, before, after = await self._open_both(owner, number, against)
        return VersionComparison(old, new, await asyncio.to_thread(find_difference, before, after))

    async def compare_file(
        self, owner: Owner, path: str, number: int, against: int | None
    ) -> TextComparison:
        """Return what differs in one file. Raise SavedFileNotFoundError if neither has it."""
        validate_path(path)
        old, new, before, after = await self._open_both(owner, number, against)
        change = PathChange(path, before.find(path), after.find(path))
        sides = [one for one in (change.old, change.new) if one is not None]
        if not sides:
            raise SavedFileNotFoundError(f"{path!r} is in neither of the two versions.", path=path)
        if any(one.kind is Kind.FOLDER for one in sides):
            raise InvalidRequestError(f"{path!r} is a folder.", path=path)
        if any(one.size > TEXT_BYTES_MAX for one in sides):
            return TextComparison(old, new, change, None, "too_large")
        contents = await self._versions.read([one for one in sides if one.kind is Kind.FILE])
        texts = [_read_text(one, contents) for one in (change.old, change.new)]
        if None in texts:
            return TextComparison(old, new, change, None, "binary")
        lines = [list(io.StringIO(text, newline="\n")) for text in texts]
        if _count_different(*lines) > TEXT_LINES_MAX:
            return TextComparison(old, new, change, None, "too_large")
        async with self._comparing:
            diff = await asyncio.to_thread(_render_diff, path, *lines)
        return TextComparison(old, new, change, diff)

    async def _open_both(
        self, owner: Owner, number: int, against: int | None
    ) -> tuple[int, int, Manifest, Manifest]:
        after = await self._versions.open(owner, number)
        if against is None:
            earlier = await self._store.files.list_versions(owner, before=number, limit=1)
            against = earlier[0].number if earlier else 0
        if against == 0:
            return 0, number, Manifest(), after.manifest
        before = await self._versions.open(owner, against)
        return against, number, before.manifest, after.manifest


def check_checkpoint_name(name: str) -> None:
    """Raise InvalidRequestError for a name that is empty, too long, or not one line of text."""
    if not name.strip(" .") or name != name.strip():
        raise InvalidRequestError(
            "A checkpoint's name needs a letter or the like, and has no spaces around it."
        )
    if len(name) > NAME_MAX:
        raise InvalidRequestError(f"A checkpoint's name has at most {NAME_MAX} characters.")
    if not name.isprintable():
        raise InvalidRequestError("A checkpoint's name is one line of printable text.")
    if name.isdecimal():
        raise InvalidRequestError("A checkpoint's name is no number: numbers name versions.")


def _read_text(entry: ManifestEntry | None, contents: dict[str, bytes]) -> str | None:
    """Return the text of a file, or where a link leads; None if it is no text."""
    if entry is None:
        return ""
    if entry.kind is Kind.SYMLINK:
        return f"-> {entry.target}\n"
    data = contents[entry.sha256]
    try:
        return None if b"\0" in data else data.decode()
    except UnicodeDecodeError:
        return None


def _count_different(old: Sequence[str], new: Sequence[str]) -> int:
    """Return the lines of the longer text without those that both begin and end with."""
    shorter = min(len(old), len(new))
    head = 0
    while head < shorter and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < shorter - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    return max(len(old), len(new)) - head - tail


def _render_diff(path: str, old: Sequence[str], new: Sequence[str]) -> str:
    lines = []
    for line in difflib.unified_diff(old, new, path, path):
        end = "" if line.endswith("\n") else "\n\\ No newline at end of file\n"
        lines.append(line + end)
    return "".join(lines)
