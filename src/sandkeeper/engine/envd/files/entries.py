"""How a file or folder is described on E2B's wire."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from posixpath import basename, dirname, join, normpath

from e2b.envd.filesystem.filesystem_pb import EntryInfo, FileType
from protobuf.wkt import Timestamp

from sandkeeper.engine.envd.files.rooted_fs import RootedFilesystem, real_path

METADATA_PREFIX = "user.e2b."
ENTRIES_MAX = 100_000
"""A listing longer than this is refused: its answer alone would be tens of megabytes."""


@dataclass(frozen=True, slots=True)
class Owners:
    """The names behind the host's ids, as the sandbox's own users know them."""

    users: Mapping[int, str]
    groups: Mapping[int, str]

    @classmethod
    def of(cls, ids: Mapping[str, tuple[int, int]]) -> Owners:
        # Where all users share one id, files are the ordinary user's.
        ordered = sorted(ids.items(), key=lambda item: item[0] == "user")
        users = {uid: name for name, (uid, _) in ordered}
        groups = {gid: name for name, (_, gid) in ordered}
        # Files of the host's root are the template's; inside they belong to root.
        return cls(users={0: "root", **users}, groups={0: "root", **groups})


def describe(tree: RootedFilesystem, owners: Owners, path: str) -> EntryInfo:
    """Describe what lies at `path`; a link is described by what it leads to. Raises OSError."""
    with tree.at(path, os.O_NOFOLLOW) as found:
        own = os.fstat(found)
        if not stat.S_ISLNK(own.st_mode):
            return _render(path, own, own, owners, metadata=read_metadata(found))
        link = os.readlink("", dir_fd=found)
    try:
        with tree.at(path) as target:
            reached = os.fstat(target)
            metadata = read_metadata(target)
            resolved = _resolved(tree, path, link, target)
    except OSError:
        reached, metadata, resolved = None, {}, _joined(path, link)
    entry = _render(path, own, reached, owners, metadata=metadata)
    entry.symlink_target = resolved
    entry.is_symlink = True
    return entry


def list_entries(tree: RootedFilesystem, owners: Owners, path: str, depth: int) -> list[EntryInfo]:
    """Describe what a folder holds, down to `depth` levels, in lexical order. Raises OSError."""
    entries: list[EntryInfo] = []
    for below in _walk(tree, path, depth):
        if len(entries) >= ENTRIES_MAX:
            raise OSError(errno.ENOSPC, f"more than {ENTRIES_MAX} entries", path)
        try:
            entries.append(describe(tree, owners, below))
        except FileNotFoundError:
            # It went away while we looked.
            continue
    return entries


def read_metadata(descriptor: int) -> dict[str, str]:
    """Return the metadata that was stored with a file."""
    path = real_path(descriptor)
    try:
        names = os.listxattr(path)
    except OSError:
        return {}
    found: dict[str, str] = {}
    for name in names:
        if name.startswith(METADATA_PREFIX):
            value = os.getxattr(path, name)
            found[name.removeprefix(METADATA_PREFIX)] = value.decode(errors="replace")
    return found


def render_permissions(mode: int) -> str:
    """Write a mode as Go does, whose letters differ from those of `ls`."""
    letters = "".join(letter for letter, is_so in _kinds(mode) if is_so) or "-"
    bits = "".join("rwx"[i % 3] if mode & (0o400 >> i) else "-" for i in range(9))
    return letters + bits


def _kinds(mode: int) -> tuple[tuple[str, bool], ...]:
    return (
        ("d", stat.S_ISDIR(mode)),
        ("L", stat.S_ISLNK(mode)),
        ("D", stat.S_ISBLK(mode) or stat.S_ISCHR(mode)),
        ("p", stat.S_ISFIFO(mode)),
        ("S", stat.S_ISSOCK(mode)),
        ("u", bool(mode & stat.S_ISUID)),
        ("g", bool(mode & stat.S_ISGID)),
        ("c", stat.S_ISCHR(mode)),
        ("t", bool(mode & stat.S_ISVTX)),
    )


def _render(
    path: str,
    own: os.stat_result,
    reached: os.stat_result | None,
    owners: Owners,
    *,
    metadata: dict[str, str],
) -> EntryInfo:
    return EntryInfo(
        name=basename(path) or "/",
        type=_type_of(reached),
        path=path,
        size=own.st_size,
        mode=0 if reached is None else stat.S_IMODE(reached.st_mode) & 0o777,
        permissions=render_permissions(own.st_mode),
        owner=owners.users.get(own.st_uid, str(own.st_uid)),
        group=owners.groups.get(own.st_gid, str(own.st_gid)),
        modified_time=Timestamp(seconds=own.st_mtime_ns // 10**9, nanos=own.st_mtime_ns % 10**9),
        metadata=metadata,
    )


def _type_of(found: os.stat_result | None) -> FileType:
    if found is None:
        return FileType.UNSPECIFIED
    if stat.S_ISREG(found.st_mode):
        return FileType.FILE
    if stat.S_ISDIR(found.st_mode):
        return FileType.DIRECTORY
    return FileType.UNSPECIFIED


def _joined(path: str, link: str) -> str:
    return normpath(join(dirname(path), link))


def _resolved(tree: RootedFilesystem, path: str, link: str, target: int) -> str:
    """Return the target's full path inside, or the link's own if the kernel's name is unusable."""
    name = str(Path(real_path(target)).readlink())
    try:
        with tree.at(name) as again:
            if os.path.sameopenfile(again, target):
                return name
    except OSError:
        pass
    return _joined(path, link)


def _walk(tree: RootedFilesystem, path: str, depth: int) -> Iterator[str]:
    folder = tree.open_folder(path)
    try:
        with os.scandir(folder) as found:
            listed = sorted((item.name, item.is_dir(follow_symlinks=False)) for item in found)
    finally:
        os.close(folder)
    for name, is_folder in listed:
        below = join(path, name)
        yield below
        if is_folder and depth > 1:
            try:
                yield from _walk(tree, below, depth - 1)
            except (FileNotFoundError, NotADirectoryError):
                continue
