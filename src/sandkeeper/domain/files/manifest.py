"""A manifest: the names, kinds and contents of a sandbox's working files at one moment."""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, Literal

from sandkeeper.domain.errors import InvalidRequestError

PATH_BYTES_MAX = 4000
NAME_BYTES_MAX = 255
_PLAIN_PATH: Final = re.compile(r"(?:\.?[A-Za-z0-9_\-][A-Za-z0-9_\-. ]*(?:/(?!$)|$))+")
"""What most paths are like; nothing is wrong with these, and it takes less time to see it."""


class Kind(StrEnum):
    """The kind of a path. GONE was deleted through the API and not yet inside the sandbox."""

    FILE = "file"
    SYMLINK = "symlink"
    FOLDER = "dir"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class ManifestEntry:
    """One path of a manifest.

    `stamp` describes the file inside the sandbox when it was captured: while it is the same, the
    file need not be read again. `is_pending` marks what the API changed and no sandbox has seen
    yet; a capture must not mistake it for a file deleted inside. `pack` and `offset` say where the
    content is stored; `holes`, as start and size, are zeros in it that are not stored.
    """

    path: str
    kind: Kind
    mode: int = 0o644
    size: int = 0
    sha256: str = ""
    target: str = ""
    mtime_ns: int = 0
    stamp: str = ""
    is_pending: bool = False
    pack: str = ""
    offset: int = 0
    holes: tuple[tuple[int, int], ...] = ()

    def is_same_as(self, other: ManifestEntry | None) -> bool:
        """Return True if both name the same thing with the same content; times do not count."""
        return other is not None and self.identity == other.identity

    @property
    def identity(self) -> tuple[str, str, int, str, str]:
        """Return the values that make a version a different one."""
        mode = 0 if self.kind in (Kind.SYMLINK, Kind.GONE) else self.mode
        return (self.path, self.kind.value, mode, self.sha256, self.target)

    def evolve(self, **changes: object) -> ManifestEntry:
        """Return a copy with some fields changed."""
        return replace(self, **changes)  # type: ignore[arg-type]  # Fields vary in type.


@dataclass(frozen=True, slots=True)
class NotKept:
    """The files that the policy leaves out because they may hold secrets: the first, and all."""

    paths: tuple[str, ...] = ()
    count: int = 0


ALL_KEPT: Final = NotKept()


@dataclass(frozen=True, slots=True)
class Manifest:
    """All paths by name. Immutable: each change creates a new manifest.

    `not_kept` was seen by the last capture and is no part of the version.
    """

    entries: Mapping[str, ManifestEntry] = field(default_factory=dict)
    not_kept: NotKept = ALL_KEPT

    @classmethod
    def of(cls, entries: Iterable[ManifestEntry], not_kept: NotKept = ALL_KEPT) -> Manifest:
        """Return a manifest of these entries, sorted by path."""
        by_path = {entry.path: entry for entry in sorted(entries, key=lambda one: one.path)}
        return cls(by_path, not_kept)

    @property
    def files(self) -> list[ManifestEntry]:
        """Return the existing entries, without those that were deleted but still exist inside."""
        return [entry for entry in self.entries.values() if entry.kind is not Kind.GONE]

    @property
    def file_count(self) -> int:
        """Return the number of files and links; folders are not counted."""
        return sum(entry.kind in (Kind.FILE, Kind.SYMLINK) for entry in self.entries.values())

    @property
    def bytes(self) -> int:
        """Return the size of all contents."""
        return sum(entry.size for entry in self.entries.values())

    @property
    def packs(self) -> set[str]:
        """Return the packs that hold its contents."""
        return {entry.pack for entry in self.entries.values() if entry.pack}

    @property
    def tree(self) -> str:
        """Return one hash over everything that makes a version; two equal trees are one version."""
        digest = hashlib.sha256()
        for path in sorted(self.entries):
            digest.update("\0".join(map(str, self.entries[path].identity)).encode())
            digest.update(b"\0\n")
        return digest.hexdigest()

    def find(self, path: str) -> ManifestEntry | None:
        """Return the entry of an existing path."""
        entry = self.entries.get(path)
        return None if entry is None or entry.kind is Kind.GONE else entry

    def has_under(self, folder: str) -> bool:
        """Return True if anything lies in this folder."""
        prefix = f"{folder}/"
        return any(entry.path.startswith(prefix) for entry in self.files)


@dataclass(frozen=True, slots=True)
class PathChange:
    """A path that differs between two manifests; an entry is None where the path is not there."""

    path: str
    old: ManifestEntry | None
    new: ManifestEntry | None

    @property
    def verb(self) -> Literal["added", "changed", "removed"]:
        """Return what became of the path."""
        if self.old is None:
            return "added"
        return "removed" if self.new is None else "changed"


def find_difference(old: Manifest, new: Manifest) -> list[PathChange]:
    """Return every path that differs, sorted; times do not count."""
    changes = []
    for path in old.entries.keys() | new.entries.keys():
        before, after = old.find(path), new.find(path)
        # A capture leaves the entries of unchanged files as they are: most are the same object.
        if before is not after and not (before and before.is_same_as(after)):
            changes.append(PathChange(path, before, after))
    return sorted(changes, key=lambda one: one.path)


def put_entries(manifest: Manifest, added: Iterable[ManifestEntry]) -> Manifest:
    """Return the manifest with these entries; raise if a file would have to be a folder too."""
    entries = dict(manifest.entries)
    folders = find_folders(entry.path for entry in entries.values() if entry.kind is not Kind.GONE)
    for entry in added:
        present = entries.get(entry.path)
        is_folder = entry.path in folders or (present and present.kind is Kind.FOLDER)
        if entry.kind is not Kind.FOLDER and is_folder:
            raise InvalidRequestError(f"{entry.path!r} is a folder.", path=entry.path)
        for folder in find_folders([entry.path]):
            above = entries.get(folder)
            if above is not None and above.kind in (Kind.FILE, Kind.SYMLINK):
                raise InvalidRequestError(
                    f"{entry.path!r} cannot lie in {folder!r}, which is a {above.kind.value}.",
                    path=entry.path,
                )
            folders.add(folder)
        entries[entry.path] = entry
    return Manifest.of(entries.values())


def find_folders(paths: Iterable[str]) -> set[str]:
    """Return every folder above these paths."""
    folders: set[str] = set()
    for path in paths:
        folder = path.rpartition("/")[0]
        while folder and folder not in folders:
            folders.add(folder)
            folder = folder.rpartition("/")[0]
    return folders


def validate_path(text: str) -> str:
    """Return the path if it is inside the work folder; raise InvalidRequestError otherwise."""
    problem = find_path_problem(text)
    if problem:
        raise InvalidRequestError(f"The path {text[:200]!r} {problem}.", path=text[:200])
    return text


def find_path_problem(text: str) -> str:
    """Return what is wrong with a path, or nothing."""
    if len(text) <= NAME_BYTES_MAX and _PLAIN_PATH.fullmatch(text):
        return ""
    parts = text.split("/")
    names = [part.encode(errors="surrogatepass") for part in parts]
    problems = {
        "is empty": not text,
        "is absolute; paths are relative to the work folder": text.startswith("/"),
        "is not valid UTF-8": any("\ud800" <= char <= "\udfff" for char in text),
        "has a NUL byte in it": "\0" in text,
        "leads out of the work folder": ".." in parts,
        "ends in '/', or has '//' or '/./' in it": "" in parts or "." in parts,
        f"has a name longer than {NAME_BYTES_MAX} bytes": max(map(len, names)) > NAME_BYTES_MAX,
        f"is longer than {PATH_BYTES_MAX} bytes": sum(map(len, names)) > PATH_BYTES_MAX,
    }
    return next((problem for problem, is_so in problems.items() if is_so), "")


def leads_out(path: str, target: str) -> bool:
    """Return True if a link at `path` with this target points out of the work folder."""
    if target.startswith("/") or "\0" in target:
        return True
    found = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    return found == ".." or found.startswith("../")
