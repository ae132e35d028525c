"""What both directions share: the fence, and how a file is opened, hashed and described."""

# ruff: noqa: PTH106, PTH108, PTH118, PTH208
# Loading pathlib would take longer than most of the work here.

from __future__ import annotations

import errno
import hashlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import IO, Any

MARK = "sandkeeper:"
CHUNK = 1 << 20
ZEROS = bytes(CHUNK)
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


class RefusedByFenceError(Exception):
    """A newer claim has worked in this sandbox."""


class Fence:
    """Refuses what is asked under an older claim than the newest that was here.

    The request names a file, the claim's number, and whether to keep the number whatever is there.
    Without a file nothing is refused. The lock is held for a few files at most, so that the next
    holder never waits for long.
    """

    def __init__(self, request: dict[str, Any]) -> None:
        asked = request.get("fence") or ["", 0, False]
        self._path: str = asked[0]
        self._number: int = asked[1]
        self._is_forced: bool = asked[2]
        self._fd = -1

    def __enter__(self) -> Fence:  # noqa: PYI034  `Self` is newer than 3.7.
        if not self._path:
            return self
        # Not above: the keeper imports this module too, on systems that have no such locks.
        import fcntl  # noqa: PLC0415

        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        known = os.pread(self._fd, 20, 0).strip()
        newest = int(known) if known.isdigit() else 0
        if newest > self._number and not self._is_forced:
            self.__exit__()
            raise RefusedByFenceError
        if newest != self._number:
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, b"%d" % self._number, 0)
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def describe(kind: str, mode: int, mtime_ns: int, stamp: str, target: str) -> str:
    """Return how a path looks from outside; empty while it may change under the same look."""
    if kind == "file":
        return stamp
    return f"dir.{mode}.{mtime_ns}" if kind == "dir" else f"link.{mtime_ns}.{target}"


def open_file(path: str) -> int:
    """Open a file to read it; nothing that is special, and no link."""
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def hash_file(file: IO[bytes]) -> str:
    """Return the hash of what is left to read."""
    digest = hashlib.sha256()
    while True:
        piece = file.read(CHUNK)
        if not piece:
            return digest.hexdigest()
        digest.update(piece)


def hash_zeros(digest: Any, count: int) -> None:
    """Add so many zeros to a hash."""
    while count > 0:
        digest.update(ZEROS[:count] if count < CHUNK else ZEROS)
        count -= CHUNK


def remove_file(path: str) -> None:
    """Delete what is at this path; nothing there is fine."""
    if os.path.lexists(path):
        os.unlink(path)


def clear(folder: str) -> None:
    """Remove the folder of what is on its way."""
    try:
        for name in os.listdir(folder):
            os.unlink(os.path.join(folder, name))
        os.rmdir(folder)
    except OSError:
        pass  # The other side removes it too.
