"""COPY: puts an uploaded archive's files into a sandbox, with the rules of Dockerfiles.

A folder's contents go into the target, a single file becomes the target (or goes into it, if that
is a folder), and what a pattern matches goes into it. Everything is written below the sandbox's
root, so an archive that holds `..` or odd links reaches nothing else.
"""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from posixpath import join, normpath
from posixpath import split as split_path
from typing import IO

from sandkeeper.engine.envd.files.rooted_fs import RootedFilesystem


class NothingToCopyError(Exception):
    """The archive holds nothing of what the step names."""


def copy_archive(
    tree: RootedFilesystem, archive: Path, source: str, target: str, mode: int | None
) -> None:
    """Unpack. Raises NothingToCopyError, OSError, tarfile.TarError."""
    source = normpath(source).lstrip("/")
    with tarfile.open(archive) as tar:
        members = {normpath(member.name): member for member in tar if _is_inside(member.name)}
        places = _place(members, source, target, tree.is_folder)
        if not places:
            raise NothingToCopyError(f"COPY: nothing matches {source}")
        for name, place in places.items():
            _write(tree, tar, members[name], place, mode)


def _is_inside(name: str) -> bool:
    return not name.startswith("/") and ".." not in PurePosixPath(name).parts


def _place(
    members: dict[str, tarfile.TarInfo], source: str, target: str, is_folder: Callable[[str], bool]
) -> dict[str, str]:
    """Return the target of each member."""
    into = normpath(target)
    if source == ".":
        return {name: normpath(join(into, name)) for name in members}
    single = members.get(source)
    if single is not None and not single.isdir():
        if target.endswith("/") or is_folder(into):
            return {source: join(into, split_path(source)[1])}
        return {source: into}
    pattern = PurePosixPath(source).parts
    places = {}
    for name, member in members.items():
        parts = PurePosixPath(name).parts
        head = parts[: len(pattern)]
        if len(head) < len(pattern) or not all(map(fnmatchcase, head, pattern)):
            continue
        rest = parts[len(pattern) :]
        if rest or member.isdir():
            places[name] = normpath(join(into, *rest))
        else:
            places[name] = join(into, head[-1])
    return places


def _write(
    tree: RootedFilesystem,
    tar: tarfile.TarFile,
    member: tarfile.TarInfo,
    place: str,
    mode: int | None,
) -> None:
    if member.isdir():
        tree.make_folders(place)
    elif member.issym():
        tree.make_link(place, member.linkname)
    elif member.isfile() or member.islnk():
        content = _open(tar, member)
        with content, os.fdopen(tree.create_file(place), "wb") as file:
            shutil.copyfileobj(content, file, 1 << 18)
            os.fchmod(file.fileno(), member.mode & 0o777 if mode is None else mode)


def _open(tar: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    """Return the content of a file, or of the file that a hard link names."""
    try:
        content = tar.extractfile(member)
    except KeyError:
        content = None
    if content is None:
        raise tarfile.ReadError(f"{member.name!r} links to a file that the archive does not hold")
    return content
