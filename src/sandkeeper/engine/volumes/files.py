"""The files of one volume, as its API shows and changes them.

Sandboxes write into the same folder at the same time, so nothing in it is trusted: every path is
resolved below the volume's own root, as those of a sandbox's files are.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from posixpath import join, normpath
from typing import Any

from sandkeeper.engine.envd.files.rooted_fs import NotPlainError, RootedFilesystem, real_path
from sandkeeper.engine.envd.files.upload import FileSink
from sandkeeper.engine.errors import (
    BadRequestError,
    MachineError,
    NoRoomError,
    ResourceNotFoundError,
)
from sandkeeper.engine.volumes.store import VolumeStore

ENTRIES_MAX = 10_000
DEPTH_MAX = 32
_KINDS = {stat.S_IFDIR: "directory", stat.S_IFREG: "file", stat.S_IFLNK: "symlink"}


class VolumeFiles:
    """The files of one volume. Use it within `opened`."""

    def __init__(self, store: VolumeStore, volume_id: str, root: int) -> None:
        self._store = store
        self._volume_id = volume_id
        self._root = root

    def tree(self, uid: int | None = None, gid: int | None = None) -> RootedFilesystem:
        return RootedFilesystem(self._root, self._store.find_owner(uid, gid))

    def describe(self, path: str) -> dict[str, Any]:
        """Describe what lies at a path; of a link, the link itself."""
        path = clean(path)
        with self.tree().at(path, os.O_NOFOLLOW) as found:
            status = os.fstat(found)
            target = os.readlink("", dir_fd=found) if stat.S_ISLNK(status.st_mode) else None
        entry = {
            "name": path.rpartition("/")[2] or "/",
            "type": _KINDS.get(stat.S_IFMT(status.st_mode), "unknown"),
            "path": path,
            "size": status.st_size,
            "mode": stat.S_IMODE(status.st_mode),
            "uid": self._store.show_id(status.st_uid),
            "gid": self._store.show_id(status.st_gid),
            "atime": _render(status.st_atime),
            "mtime": _render(status.st_mtime),
            "ctime": _render(status.st_ctime),
        }
        return entry if target is None else {**entry, "target": target}

    def list_folder(self, path: str, depth: int) -> list[dict[str, Any]]:
        """Describe what is in a folder, down to `depth` levels, in lexical order."""
        entries: list[dict[str, Any]] = []
        for below in self._walk(clean(path), depth):
            if len(entries) >= ENTRIES_MAX:
                raise BadRequestError(f"the folder has more than {ENTRIES_MAX} entries")
            try:
                entries.append(self.describe(below))
            except FileNotFoundError:
                continue  # A sandbox deleted it while we looked.
        return entries

    def _walk(self, path: str, depth: int) -> Iterator[str]:
        folder = self.tree().open_folder(path)
        try:
            with os.scandir(folder) as found:
                names = sorted(entry.name for entry in found)
        finally:
            os.close(folder)
        for name in names:
            below = join(path, name)
            yield below
            if depth > 1 and self._is_own_folder(below):
                yield from self._walk(below, depth - 1)

    def _is_own_folder(self, path: str) -> bool:
        try:
            with self.tree().at(path, os.O_NOFOLLOW | os.O_DIRECTORY):
                return True
        except OSError:
            return False

    def make_folder(
        self, path: str, *, uid: int | None, gid: int | None, mode: int | None, force: bool
    ) -> dict[str, Any]:
        path = clean(path)
        tree = self.tree(uid, gid)
        if not force:
            if tree.is_folder(path):
                raise BadRequestError(f"'{path}' is there already; send force=true to accept that")
            with tree.at(path.rpartition("/")[0] or "/", os.O_DIRECTORY):
                pass
        tree.make_folders(path)
        return self.change(path, uid=uid, gid=gid, mode=mode)

    async def write(
        self, path: str, body: AsyncIterator[bytes], *, uid: int | None, gid: int | None
    ) -> None:
        """Replace a file's content, or make it and the folders that lead to it."""
        async with FileSink(self.tree(uid, gid), clean(path), {}) as sink:
            async for data in body:
                await sink.write(data)

    def change(
        self, path: str, *, uid: int | None, gid: int | None, mode: int | None
    ) -> dict[str, Any]:
        path = clean(path)
        with self.tree().at(path) as found:
            status = os.fstat(found)
            if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
                raise NotPlainError(path)
            if uid is not None or gid is not None:
                owner = self._store.find_owner(uid, gid)
                keep = (-1 if uid is None else owner[0], -1 if gid is None else owner[1])
                os.chown(real_path(found), *keep)
            if mode is not None:
                # Afterwards: a change of the owner takes the set-uid bit away.
                Path(real_path(found)).chmod(mode)
        return self.describe(path)

    def remove(self, path: str) -> None:
        path = clean(path)
        with self.tree().at(path, os.O_NOFOLLOW):
            pass
        self.tree().remove(path)


@contextmanager
def opened(store: VolumeStore, volume_id: str) -> Iterator[VolumeFiles]:
    """Open a volume's files, and turn the kernel's errors into the API's."""
    folder = store.get_folder(volume_id)
    try:
        root = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise MachineError(f"the files of the volume are not at {folder} any more") from None
    try:
        yield VolumeFiles(store, volume_id, root)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ResourceNotFoundError(f"there is nothing at '{error.filename}'") from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NoRoomError("the engine's disk is full") from error
        raise BadRequestError(f"path: {error.strerror}") from error
    finally:
        os.close(root)


def clean(path: str) -> str:
    """Return the path from the volume's root. Raises BadRequestError."""
    if "\0" in path or len(path) > 4096:
        raise BadRequestError("'path' is not a path")
    return "/" + normpath("/" + path).lstrip("/")


def _render(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")
