"""Restoring: what arrives is written beside its place, proven by hash, and moved there."""

# ruff: noqa: PTH101, PTH103, PTH104, PTH106, PTH108, PTH118, PTH120, PTH123, PTH211
# Loading pathlib would take longer than most of the work here.

from __future__ import annotations

import errno
import hashlib
import json
import os
import select
import stat
import sys
import time
from typing import TYPE_CHECKING

from sandkeeper.services.files.agent.inside.common import (
    CHUNK,
    NO_SPACE,
    Fence,
    clear,
    hash_zeros,
    open_file,
    remove_file,
)
from sandkeeper.services.files.agent.inside.safe_replace import replace_unchanged

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO, Any

# Files that are put in place under one lock: more let a newer claim wait for longer.
STEP_ITEMS = 50
# How often to look for more of a file that arrives slower than it is read.
ARRIVAL_S = 0.005


def put_back(request: dict[str, Any]) -> dict[str, Any]:
    """Unpack parcels as they arrive; stop when the disk is full.

    A parcel begins with a line that says what to do: `items`, and what to `remove`. Behind it are
    the contents of the items, in their order. An item is [what, path, kind, mode, mtime_ns, hash,
    target, size, stamp]: `put` is a whole one, with its content. A large file comes as items
    `piece` of [what, path, offset, size], and then `end`, or `drop` if it is not to be; or it
    arrives beside its place, and `follow`, which has that name as well, is alone in its parcel.
    With a stamp, what is there is replaced only if it still has it; an empty one means that nothing
    was there. At the end each item that was put in place is checked once more.
    """
    placing = Placing(request)
    removed = 0
    try:
        for name in _list_parcels(request):
            with open(name, "rb") as parcel:
                os.unlink(name)
                order = json.loads(parcel.readline())
                placing.unpack(order["items"], parcel)
            if placing.is_full:
                break
            removed += placing.remove(order["remove"])
    finally:
        placing.close()
        clear(request["folder"])
    return {"lost": placing.check(), "is_full": placing.is_full, "removed": removed}


def _list_parcels(request: dict[str, Any]) -> Iterator[str]:
    """Yield the named parcels; without any, one a line of the input, until an empty one.

    When the next is asked for, the last one is done, which the sender sees by it.
    """
    for name in request["parcels"]:
        yield name
    if request["parcels"]:
        return
    with open(0, "rb", buffering=0, closefd=False) as lines:
        while select.select([lines], [], [], request["patience_s"])[0]:
            name = lines.readline().decode().rstrip("\n")
            if not name:
                return
            yield name
            sys.stdout.write("\n")
            sys.stdout.flush()
    raise OSError(errno.ETIMEDOUT, "no more data arrives")


class Placing:
    """Puts items where they belong. The fence is asked before every few of them."""

    def __init__(self, request: dict[str, Any]) -> None:
        self._root: str = request["root"]
        self._part_name: str = request["part_name"]
        self._patience_s: float = request["patience_s"]
        self._fence = Fence(request)
        self._folders = {""}
        self._placed: list[list[Any]] = []
        self._lost: list[list[str]] = []
        self._large: Large | None = None
        self.is_full = False
        with self._fence:
            os.makedirs(self._root, exist_ok=True)
        # Each file is made with the permissions that it is to have.
        os.umask(0)

    def unpack(self, items: list[list[Any]], parcel: IO[bytes]) -> None:
        """Put each item where it belongs; when the disk is full, the rest is left."""
        if items and items[0][0] == "follow":
            self._follow(items[0])
            return
        for start in range(0, len(items), STEP_ITEMS):
            with self._fence:
                for item in items[start : start + STEP_ITEMS]:
                    if not self.is_full:
                        self._take(item, parcel)

    def remove(self, paths: list[list[Any]]) -> int:
        """Delete files that were not changed since the given time, and empty folders."""
        with self._fence:
            return sum(_remove(os.path.join(self._root, path), at) for path, at in paths)

    def check(self) -> list[list[str]]:
        """Return what could not be put in place, or did not stay there."""
        away = [item for item in self._placed if not _is_there(self._root, item)]
        return self._lost + [[item[1], "it did not stay"] for item in away]

    def close(self) -> None:
        """Leave no file that is written only half."""
        if self._large is not None:
            self._large.drop()
            self._large = None

    def _take(self, item: list[Any], parcel: IO[bytes]) -> None:
        what, path = item[:2]
        # It is read in any case: the next item's content lies behind it.
        data = parcel.read(item[3] if what == "piece" else item[7] if what == "put" else 0)
        try:
            if what == "piece":
                self._add_piece(path, item[2], data)
            elif what == "drop":
                self.close()
            else:
                self._put(os.path.join(self._root, path), item, data)
                self._placed.append(item)
        except OSError as error:
            self.close()
            self._lost.append([path, error.strerror or "cannot be written"])
            self.is_full = error.errno in NO_SPACE

    def _follow(self, item: list[Any]) -> None:
        """Prove a large file while it arrives beside its place, and move it there."""
        _, path, _, mode, mtime_ns, digest, _, size, stamp, part = item
        try:
            _prove_arriving(part, size, digest, self._patience_s)
            os.chmod(part, mode)
            os.utime(part, ns=(mtime_ns, mtime_ns))
            with self._fence:
                _place(part, os.path.join(self._root, path), stamp)
            self._placed.append(item)
        except FileNotFoundError:
            pass  # It was taken back: the sender knows why.
        except OSError as error:
            self._lost.append([path, error.strerror or "cannot be written"])
            remove_file(part)

    def _add_piece(self, path: str, offset: int, data: bytes) -> None:
        if self._large is None:
            folder = self._make_folder(os.path.join(self._root, path))
            self._large = Large(os.path.join(folder, self._part_name))
        self._large.add(offset, data)

    def _put(self, path: str, item: list[Any], data: bytes) -> None:
        what, _, kind, mode, mtime_ns, digest, target, size, stamp = item
        if kind == "dir":
            os.makedirs(path, exist_ok=True)
            os.chmod(path, mode)
            return
        made = os.path.join(self._make_folder(path), self._part_name)
        try:
            if kind == "symlink":
                os.symlink(target, made)
                os.utime(made, ns=(mtime_ns, mtime_ns), follow_symlinks=False)
            elif what == "end":
                large, self._large = self._large or Large(made), None
                large.finish(size, digest, mode, mtime_ns)
            else:
                _prove(hashlib.sha256(data), digest)
                _write(made, data, mode, mtime_ns)
            _place(made, path, stamp)
        except OSError:
            remove_file(made)
            raise

    def _make_folder(self, path: str) -> str:
        folder = os.path.dirname(path)
        if folder not in self._folders:
            os.makedirs(folder, exist_ok=True)
            self._folders.add(folder)
        return folder


class Large:
    """A large file that arrives in pieces; what lies between them is zeros, and takes no room."""

    def __init__(self, made: str) -> None:
        self._made = made
        self._fd = _create(made, 0o600)
        self._digest = hashlib.sha256()
        self._at = 0

    def add(self, offset: int, data: bytes) -> None:
        """Write the next piece."""
        hash_zeros(self._digest, offset - self._at)
        self._digest.update(data)
        self._at = offset + len(data)
        view = memoryview(data)
        while view:
            count = os.pwrite(self._fd, view, offset)
            offset += count
            view = view[count:]

    def finish(self, size: int, digest: str, mode: int, mtime_ns: int) -> None:
        """Prove the whole file, which is ready to be moved then."""
        try:
            hash_zeros(self._digest, size - self._at)
            _prove(self._digest, digest)
            os.ftruncate(self._fd, size)
            os.fchmod(self._fd, mode)
            os.utime(self._fd, ns=(mtime_ns, mtime_ns))
        finally:
            os.close(self._fd)

    def drop(self) -> None:
        """Remove what has arrived."""
        os.close(self._fd)
        os.unlink(self._made)


def _prove(found: Any, digest: str) -> None:
    if found.hexdigest() != digest:
        raise OSError(errno.EIO, "other content arrived than was kept")


def _prove_arriving(part: str, size: int, digest: str, patience_s: float) -> None:
    """Hash a file while it is written by another; raise FileNotFoundError if it is taken back."""
    ends = time.monotonic() + patience_s
    found = hashlib.sha256()
    fd = open_file(part)
    try:
        at = 0
        while at < size:
            data = os.read(fd, CHUNK)
            if data:
                found.update(data)
                at += len(data)
                ends = time.monotonic() + patience_s
            elif os.fstat(fd).st_nlink == 0:
                raise OSError(errno.ENOENT, "it was taken back")
            else:
                _wait_for_more(ends)
        if os.fstat(fd).st_size != size:
            raise OSError(errno.EIO, "other content arrived than was kept")
    finally:
        os.close(fd)
    _prove(found, digest)


def _wait_for_more(ends: float) -> None:
    if time.monotonic() > ends:
        raise OSError(errno.ETIMEDOUT, "no more data arrives")
    time.sleep(ARRIVAL_S)


def _create(path: str, mode: int) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags, mode)


def _write(made: str, data: bytes, mode: int, mtime_ns: int) -> None:
    fd = _create(made, mode)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        if mode > 0o777:
            os.fchmod(fd, mode)
        os.utime(fd, ns=(mtime_ns, mtime_ns))
    finally:
        os.close(fd)


def _place(made: str, path: str, stamp: str | None) -> None:
    """Move what was made to its place; with a stamp, only over what still has it."""
    if stamp is None:
        _move(made, path)
    else:
        replace_unchanged(made, path, stamp)


def _move(made: str, path: str) -> None:
    try:
        os.rename(made, path)
    except IsADirectoryError:
        os.rmdir(path)
        os.rename(made, path)


def _is_there(root: str, item: list[Any]) -> bool:
    """Return whether a path still looks as it was left."""
    _, path, kind, mode, mtime_ns = item[:5]
    try:
        status = os.lstat(os.path.join(root, path))
    except OSError:
        return False
    if kind == "symlink":
        return stat.S_ISLNK(status.st_mode)
    if kind == "dir":
        return stat.S_ISDIR(status.st_mode)
    is_same = (stat.S_IMODE(status.st_mode), status.st_mtime_ns) == (mode, mtime_ns)
    return stat.S_ISREG(status.st_mode) and is_same


def _remove(path: str, at: int) -> bool:
    """Delete a file that was not changed since `at`, or a folder if nothing is in it."""
    try:
        status = os.lstat(path)
        if stat.S_ISDIR(status.st_mode):
            os.rmdir(path)
        elif status.st_mtime_ns > at:
            return False
        else:
            os.unlink(path)
    except OSError:
        return False
    return True
