"""A sandbox's files, reached only below its own root.

Every path is resolved by the kernel with RESOLVE_IN_ROOT: `..` and symbolic links, absolute ones
too, end inside the sandbox. What is found is then used through its descriptor, so nothing can be
exchanged between check and use. Only plain files and folders of real filesystems are opened:
the engine may be root, and the kernel's own files (`/proc`, `/sys`) and devices must not feel it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from posixpath import normpath
from posixpath import split as split_path

from sandkeeper.engine.envd.files.ownership import create_as_user
from sandkeeper.engine.runtime.linux.paths import open_below
from sandkeeper.engine.runtime.linux.removal import remove_tree

_libc = ctypes.CDLL(None, use_errno=True)

FOLDER_MODE = 0o755
FILE_MODE = 0o644

PROC = 0x9FA0
KERNEL_FILESYSTEMS = frozenset(
    {
        PROC,
        0x62656572,  # sysfs
        0x27E0EB,  # cgroup
        0x63677270,  # cgroup2
        0x1CD1,  # devpts
        0x64626720,  # debugfs
        0x74726163,  # tracefs
        0x73636673,  # securityfs
        0xCAFE4A11,  # bpf
        0xF97CFF8C,  # selinux
        0x19800202,  # mqueue
        0x6165676C,  # pstore
        0x62656570,  # configfs
        0x65735543,  # fusectl
        0x42494E4D,  # binfmt_misc
        0x6E736673,  # nsfs
        0xDE5E81E4,  # efivarfs
    }
)


class NotPlainError(OSError):
    """What is there is neither a plain file nor a folder, or belongs to the kernel."""

    def __init__(self, path: str) -> None:
        super().__init__(errno.EINVAL, "not a regular file", path)


def real_path(descriptor: int) -> str:
    """Return the name under which the kernel lets one use exactly this file again."""
    return f"/proc/self/fd/{descriptor}"


def is_kernels(descriptor: int) -> bool:
    """Return whether the file lies on one of the kernel's own filesystems."""
    return _find_filesystem(descriptor) in {*KERNEL_FILESYSTEMS, None}


def is_process_file(descriptor: int) -> bool:
    """Return whether it is a plain file of `/proc`, which has content but no size."""
    is_plain = stat.S_ISREG(os.fstat(descriptor).st_mode)
    return is_plain and _find_filesystem(descriptor) == PROC


def _find_filesystem(descriptor: int) -> int | None:
    buffer = ctypes.create_string_buffer(256)
    if _libc.fstatfs(descriptor, buffer) != 0:
        return None
    kind: int = struct.unpack_from("l", buffer)[0]
    return kind & 0xFFFFFFFF


class RootedFilesystem:
    """The files of one living sandbox; `owner` owns what is made."""

    def __init__(self, root: int, owner: tuple[int, int]) -> None:
        self._root = root
        self._owner = owner

    @contextmanager
    def at(self, path: str, flags: int = 0) -> Iterator[int]:
        """Hold a descriptor for looking at `path`, whatever it is. Raises OSError."""
        descriptor = open_below(self._root, path, os.O_PATH | flags)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def is_folder(self, path: str) -> bool:
        try:
            with self.at(path, os.O_DIRECTORY):
                return True
        except OSError:
            return False

    def open_file(self, path: str) -> int:
        """Open a plain file for reading. Raises IsADirectoryError, NotPlainError, OSError."""
        with self.at(path) as found:
            self._check_plain(found, path)
            return os.open(real_path(found), os.O_RDONLY | os.O_CLOEXEC)

    def open_folder(self, path: str) -> int:
        """Open a folder for listing. Raises NotADirectoryError, OSError."""
        return open_below(self._root, path, os.O_RDONLY | os.O_DIRECTORY)

    def create_file(self, path: str) -> int:
        """Open a plain file for writing from its start; it and missing folders are made first."""
        self.make_folders(split_path(path)[0])
        try:
            with self.at(path) as found:
                self._check_plain(found, path)
                descriptor = os.open(real_path(found), os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
                # What existed keeps its mode, and belongs to the one who wrote it last.
                self._give(descriptor)
                return descriptor
        except FileNotFoundError:
            pass
        flags = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_NOCTTY
        with create_as_user(*self._owner):
            descriptor = open_below(self._root, path, flags, FILE_MODE)
        try:
            self._check_plain(descriptor, path)
            os.fchmod(descriptor, FILE_MODE)
            self._give(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def make_folders(self, path: str) -> None:
        """Make a folder and all that lead to it. Raises NotADirectoryError, OSError."""
        current, missing = self._open_nearest(path)
        try:
            for name in reversed(missing):
                below = self._make_folder(current, name)
                os.close(current)
                current = below
        finally:
            os.close(current)

    def make_link(self, path: str, target: str) -> None:
        """Make a symbolic link in place of whatever is there. Raises OSError."""
        self.make_folders(split_path(path)[0])
        self.remove(path)
        with self._parent(path) as (parent, name), create_as_user(*self._owner):
            os.symlink(target, name, dir_fd=parent)

    def move(self, source: str, destination: str) -> None:
        """Rename; missing folders of the destination are made. Raises OSError."""
        with self.at(source, os.O_NOFOLLOW):
            self.make_folders(split_path(destination)[0])
        with (
            self._parent(source) as (old, old_name),
            self._parent(destination) as (new, new_name),
            # The kernel takes the new name for a new file, and asks who makes it.
            create_as_user(*self._owner),
        ):
            os.rename(old_name, new_name, src_dir_fd=old, dst_dir_fd=new)

    def remove(self, path: str) -> None:
        """Delete a file, a link or a whole folder. A missing path is fine. Raises OSError."""
        try:
            with self._parent(path) as (parent, name):
                found = os.stat(name, dir_fd=parent, follow_symlinks=False)
                if stat.S_ISDIR(found.st_mode):
                    remove_tree(name, dir_fd=parent)
                else:
                    os.unlink(name, dir_fd=parent)
        except FileNotFoundError:
            return

    @contextmanager
    def _parent(self, path: str) -> Iterator[tuple[int, str]]:
        folder, name = split_path(normpath(path))
        if not name:
            raise OSError(errno.EBUSY, "the root folder stays where it is", path)
        with self.at(folder, os.O_DIRECTORY) as parent:
            if is_kernels(parent):
                raise NotPlainError(path)
            yield parent, name

    def _open_nearest(self, path: str) -> tuple[int, list[str]]:
        """Return the last folder on the way that is there, and the missing names, deepest first."""
        missing: list[str] = []
        while True:
            try:
                return open_below(self._root, path, os.O_PATH | os.O_DIRECTORY), missing
            except FileNotFoundError:
                path, name = split_path(path)
                if not name:
                    raise
                missing.append(name)

    def _make_folder(self, parent: int, name: str) -> int:
        if is_kernels(parent):
            raise NotPlainError(name)
        flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with create_as_user(*self._owner):
                os.mkdir(name, FOLDER_MODE, dir_fd=parent)
        except FileExistsError:
            # A process inside created it first.
            return os.open(name, flags, dir_fd=parent)
        made = os.open(name, flags, dir_fd=parent)
        # The engine's own umask must not apply inside.
        Path(real_path(made)).chmod(FOLDER_MODE)
        os.chown(real_path(made), *self._owner)
        return made

    def _give(self, descriptor: int) -> None:
        if (os.fstat(descriptor).st_uid, os.fstat(descriptor).st_gid) != self._owner:
            os.fchown(descriptor, *self._owner)

    def _check_plain(self, descriptor: int, path: str) -> None:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        if not stat.S_ISREG(mode) or is_kernels(descriptor):
            raise NotPlainError(path)
