"""A folder that becomes a sandbox's root: every path is resolved below it, by the kernel.

Nothing in an image can name a file outside: symbolic links are followed as if the folder were `/`.
Owners are the image's own numbers, mapped to those of the sandboxes where the engine has a range.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import PurePosixPath

from sandkeeper.engine.images.errors import ImageError
from sandkeeper.engine.runtime.bubblewrap.user_database import ID_COUNT
from sandkeeper.engine.runtime.linux.paths import open_below
from sandkeeper.engine.runtime.linux.removal import remove_tree

_FOLDER = os.O_PATH | os.O_DIRECTORY
_DEPTH_MAX = 256
_OVERFLOW_ID = 65_534
"""The owner of what belongs to an id that no sandbox has."""


class Tree:
    """A folder, filled and changed as the root of a sandbox."""

    def __init__(self, root: int, uid_base: int | None) -> None:
        self.root = root
        self.uid_base = uid_base

    def open(self, path: str, flags: int) -> int:
        """Open a path as a process inside would. Raises OSError."""
        return open_below(self.root, path or ".", flags)

    @contextlib.contextmanager
    def parent_of(self, path: str) -> Iterator[tuple[int, str]]:
        """Give a descriptor of the folder that a path is in, made if missing, and the last name."""
        folder, name = os.path.split(path)
        fd = self.make_folders(folder)
        try:
            yield fd, name
        finally:
            os.close(fd)

    def make_folders(self, path: str, mode: int = 0o755) -> int:
        """Return a descriptor of a folder, which is made with those above it if it is missing."""
        try:
            return self.open(path, _FOLDER)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise ImageError(f"'{path}' in the image is not a folder: {error.strerror}") from error
        above, name = os.path.split(path)
        parent = self.make_folders(above)
        try:
            os.mkdir(name, mode, dir_fd=parent)
            os.chmod(name, mode, dir_fd=parent)
            self.give(name, parent, 0, 0)
            return self.open(path, _FOLDER)
        except FileExistsError:
            raise ImageError(f"'{path}' in the image is a link that leads nowhere") from None
        finally:
            os.close(parent)

    def give(self, name: str, parent: int, uid: int, gid: int) -> None:
        """Set the owner of a file, by the image's numbers; with one id, all is the engine's."""
        if self.uid_base is not None:
            owner, group = self.map_id(uid), self.map_id(gid)
            os.chown(name, owner, group, dir_fd=parent, follow_symlinks=False)

    def map_id(self, number: int) -> int:
        assert self.uid_base is not None
        return self.uid_base + (number if 0 <= number < ID_COUNT else _OVERFLOW_ID)

    def limit_mode(self, mode: int, *, is_folder: bool) -> int:
        """Return the mode for a file; with one id, its owner must be able to work with folders."""
        if self.uid_base is not None:
            return mode & 0o7777
        return (mode & 0o1777) | (0o700 if is_folder else 0o400)

    def remove(self, name: str, parent: int) -> None:
        """Delete a file or folder, if it is there."""
        try:
            is_folder = stat.S_ISDIR(os.lstat(name, dir_fd=parent).st_mode)
        except FileNotFoundError:
            return
        if is_folder:
            remove_tree(name, dir_fd=parent, make_writable=self.uid_base is None)
        else:
            os.unlink(name, dir_fd=parent)

    def read(self, path: str, most: int = 1 << 20) -> bytes | None:
        """Return a plain file's content; None if there is none, or it is too large."""
        try:
            fd = self.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
        except OSError:
            return None
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            return None
        with os.fdopen(fd, "rb") as file:
            content = file.read(most + 1)
        return content if len(content) <= most else None

    def has(self, path: str) -> bool:
        """Return whether something is at a path, links followed."""
        try:
            os.close(self.open(path, os.O_PATH))
        except OSError:
            return False
        return True

    def write(
        self, path: str, content: bytes, mode: int = 0o644, owner: tuple[int, int] = (0, 0)
    ) -> None:
        """Write a plain file; what was at its place, also a link, is replaced."""
        with self.parent_of(path) as (parent, name):
            self.remove(name, parent)
            fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, dir_fd=parent)
            with os.fdopen(fd, "wb") as file:
                file.write(content)
                self.give(name, parent, *owner)
                os.fchmod(file.fileno(), mode)


def split_name(name: str) -> tuple[str, ...]:
    """Return the parts of an entry's path; a leading slash means the root. Raises ImageError."""
    parts = tuple(part for part in PurePosixPath(name).parts if part != "/")
    if ".." in parts or "\0" in name:
        raise ImageError(
            f"a layer holds the path {name[:200]!r}, which leads out of the image: it is refused"
        )
    if len(parts) > _DEPTH_MAX:
        raise ImageError(f"a layer holds a path of more than {_DEPTH_MAX} folders: it is refused")
    return parts


def is_missing(error: OSError) -> bool:
    return error.errno in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}
