"""Deletes folders of any depth. `shutil.rmtree` recurses and holds one file open per level."""

from __future__ import annotations

import contextlib
import errno
import os
from dataclasses import dataclass
from pathlib import Path

_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(slots=True)
class _Level:
    """A folder on the way down: its name in the one above, and the folders in it that are left."""

    name: str
    parent: tuple[int, int]
    folders: list[str]


def remove_tree(name: str, *, dir_fd: int, make_writable: bool = False) -> None:
    """Delete a folder and all in it, with two files open at most. Raises OSError.

    With `make_writable`, folders that this process may not change are made so first. A folder that
    is moved elsewhere while it is being deleted ends the deletion: nothing else is deleted.
    """
    levels: list[_Level] = []
    current = _enter(levels, name, dir_fd, make_writable=make_writable)
    try:
        while levels:
            level = levels[-1]
            if level.folders:
                inner = _enter(levels, level.folders.pop(), current, make_writable=make_writable)
                os.close(current)
                current = inner
                continue
            outer = os.open("..", _OPEN_FOLDER, dir_fd=current)
            os.close(current)
            current = outer
            if _identify(current) != level.parent:
                raise OSError(errno.EBUSY, "the folder was moved while it was deleted", name)
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(level.name, dir_fd=current)
            levels.pop()
    finally:
        os.close(current)


def _enter(levels: list[_Level], name: str, parent: int, *, make_writable: bool) -> int:
    """Delete what is in a folder but for its folders, and return it opened."""
    if make_writable:
        _make_writable(name, parent)
    folder = os.open(name, _OPEN_FOLDER, dir_fd=parent)
    try:
        folders = []
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.name)
                else:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(entry.name, dir_fd=folder)
    except BaseException:
        os.close(folder)
        raise
    levels.append(_Level(name, _identify(parent), folders))
    return folder


def _make_writable(name: str, parent: int) -> None:
    handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        Path(f"/proc/self/fd/{handle}").chmod(0o700)
    finally:
        os.close(handle)


def _identify(folder: int) -> tuple[int, int]:
    found = os.fstat(folder)
    return found.st_dev, found.st_ino
