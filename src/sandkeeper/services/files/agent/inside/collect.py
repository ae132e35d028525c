"""Capturing: what changed since the last time goes out in parcels, while the next one is made."""

# ruff: noqa: PTH103, PTH118, PTH123
# Loading pathlib would take longer than most of the work here.

from __future__ import annotations

import base64
import errno
import hashlib
import json
import os
import select
import stat
import sys
import time
import zlib
from typing import TYPE_CHECKING

from sandkeeper.services.files.agent.inside.common import (
    CHUNK,
    NO_SPACE,
    ZEROS,
    clear,
    describe,
    hash_file,
    open_file,
    remove_file,
)
from sandkeeper.services.files.agent.inside.safe_replace import make_stamp
from sandkeeper.services.files.agent.inside.walk import Walk

if TYPE_CHECKING:
    from typing import IO, Any

# Contents up to this size come with the answer, which saves the other side a request.
INLINE_BYTES = 128 * 1024


class Outbox:
    """Parcels on their way out: files in a folder of our own, which the other side reads.

    A parcel is a line with its rows, and behind it the contents that they name, in their order.
    Each one is announced by a dot. Only some may lie there: the other side says how many it has
    read. What is left at the end and is short goes out with the answer. Once the disk is full,
    no more contents are sent.
    """

    def __init__(self, request: dict[str, Any]) -> None:
        self._folder: str = request["folder"]
        self._bytes_max: int = request["parcel_bytes"]
        self._rows_max: int = request["parcel_rows"]
        self._window: int = request["window"]
        self._patience_s: float = request["patience_s"]
        self._rows: list[list[Any]] = []
        self._contents: list[bytes] = []
        self._size = 0
        self._sent = 0
        self._taken = 0
        self.is_full = False

    def add(self, row: list[Any], data: bytes = b"") -> None:
        """Take a row and its content; without room for the content, it is read by itself."""
        if data and self.is_full:
            row = _without_content(row)
        elif data:
            self._contents.append(data)
            self._size += len(data)
        self._rows.append(row)
        if self._size >= self._bytes_max or len(self._rows) >= self._rows_max:
            self.send()

    def add_piece(self, path: str, offset: int, data: bytes) -> None:
        """Take a piece of a large file; it becomes one with the last if it follows it."""
        row = ["piece", path, offset, len(data)]
        if self._rows and self._rows[-1][0] == "piece":
            _, _, start, size = self._rows[-1]
            if start + size == offset:
                row = ["piece", path, start, size + len(data)]
                self._rows.pop()
        self.add(row, data)

    def send(self) -> None:
        """Close the parcel."""
        if self.is_full or not self._rows:
            return
        name = os.path.join(self._folder, str(self._sent))
        try:
            os.makedirs(self._folder, 0o700, exist_ok=True)
            with open(name, "wb", buffering=0) as file:
                for piece in (self._make_head(), b"".join(self._contents)):
                    view = memoryview(piece)
                    while view:
                        view = view[file.write(view) :]
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            self.is_full = True
            self._rows = [_without_content(row) for row in self._rows if row[0] != "piece"]
            remove_file(name)
        else:
            self._sent += 1
            self._rows = []
            sys.stdout.write(".")
            sys.stdout.flush()
        self._contents, self._size = [], 0
        self._wait(self._window - 1)

    def finish(self) -> str:
        """Close the last parcel, and return it if it is short; all others have been read then."""
        if self._size > INLINE_BYTES:
            self.send()
        rest = self._make_head() + b"".join(self._contents)
        self._wait(0)
        if self._sent:
            clear(self._folder)
        return base64.b64encode(zlib.compress(rest, 1)).decode()

    def _make_head(self) -> bytes:
        return json.dumps(self._rows).encode() + b"\n"

    def _wait(self, left_max: int) -> None:
        """Wait until so few lie there."""
        while self._sent - self._taken > left_max:
            if not select.select([0], [], [], self._patience_s)[0]:
                clear(self._folder)
                raise OSError(errno.ETIMEDOUT, "the parcels are not read")
            line = os.read(0, 1000).decode().split()
            if not line:
                raise OSError(errno.EPIPE, "the other side is gone")
            while self._taken < int(line[-1]):
                remove_file(os.path.join(self._folder, str(self._taken)))
                self._taken += 1


def capture(request: dict[str, Any]) -> dict[str, Any]:
    """Send what is not as `known` says, which has a look and a hash by path.

    A row is [where, path, kind, mode, size, mtime_ns, stamp, target or hash or reason]: `seen` is
    a folder or link, `same` a file of the known content, `here` one whose content is in the parcel,
    `apart` one to be read by itself, `error` one that cannot be read. A large file is `apart`, and
    `proof` has its hash as soon as it is known here; one with holes comes as rows `piece` of
    [where, path, offset, size], and then `end`. The answer says what is `gone`.
    """
    walk = Walk(request)
    total = sum(one[3] for one in walk.entries if one[3] <= request["file_max"])
    found = dict(walk.summarize(), bytes=total, seen=len(walk.entries), gone=[], rest="")
    if walk.is_too_long or total > request["bytes_max"]:
        return found
    known = request["known"]
    outbox = Outbox(request)
    for entry in walk.entries:
        path, kind, mode, _, mtime_ns, stamp, target = entry
        look, digest = known.pop(path, ("", ""))
        if look and look == describe(kind, mode, mtime_ns, stamp, target):
            continue
        if kind != "file":
            outbox.add(["seen", *entry])
            continue
        try:
            _send_file(outbox, request, path, digest)
        except OSError as error:
            if error.errno == errno.ENOENT:
                found["gone"].append(path)
            else:
                reason = error.strerror or "cannot be read"
                outbox.add(["error", path, "file", 0, 0, 0, "", reason])
    found["gone"] += known
    found["rest"] = outbox.finish()
    return found


def _send_file(outbox: Outbox, request: dict[str, Any], path: str, known: str) -> None:
    now = time.time_ns()
    fd = open_file(os.path.join(request["root"], path))
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is no longer a file")
        size = status.st_size
        if size > request["file_max"]:
            raise OSError(errno.EFBIG, "it is larger than a kept file may be")
        row = ["", path, "file", stat.S_IMODE(status.st_mode), size, status.st_mtime_ns]
        row.append(make_stamp(status, now))
        if size > request["small_max"]:
            with open(fd, "rb", closefd=False) as file:
                _send_large(outbox, row, file, known)
            return
        data = _read(fd, size)
    finally:
        os.close(fd)
    row[4] = len(data)
    if len(data) != size:
        row[6] = ""  # It changed at this moment: the next capture reads it again.
    digest = hashlib.sha256(data).hexdigest()
    row.append(digest)
    row[0] = "same" if digest == known else "here"
    outbox.add(row, data if row[0] == "here" else b"")


def _send_large(outbox: Outbox, row: list[Any], file: IO[bytes], known: str) -> None:
    """Send a large file.

    One without holes is read by the other side and hashed here, both at the same time. One with
    holes goes in pieces, in parcels of its own; what is nothing but zeros is left out.
    """
    if known and hash_file(file) == known:
        outbox.add(["same", *row[1:], known])
        return
    file.seek(0)
    if not _has_holes(file.fileno(), row[4]):
        outbox.add(["apart", *row[1:], ""])
        outbox.send()
        outbox.add(["proof", *row[1:], hash_file(file)])
        return
    outbox.send()
    digest = hashlib.sha256()
    at, size = 0, row[4]
    while at < size and not outbox.is_full:
        data = file.read(min(CHUNK, size - at))
        if not data:
            row[6] = ""
            break
        digest.update(data)
        if data != (ZEROS if len(data) == CHUNK else ZEROS[: len(data)]):
            outbox.add_piece(row[1], at, data)
        at += len(data)
    if outbox.is_full:
        outbox.add(["apart", *row[1:], ""])
        return
    row[4] = at
    outbox.add(["end", *row[1:], digest.hexdigest()])
    outbox.send()


def _has_holes(fd: int, size: int) -> bool:
    try:
        is_sparse = os.lseek(fd, 0, os.SEEK_HOLE) < size
    except OSError:
        is_sparse = True  # It cannot be told: the pieces leave out what is zeros.
    os.lseek(fd, 0, os.SEEK_SET)
    return is_sparse


def _read(fd: int, size: int) -> bytes:
    """Read a whole file of about this size."""
    data = os.read(fd, size + 1) if size else b""
    while len(data) < size:
        more = os.read(fd, size + 1 - len(data))
        if not more:
            break
        data += more
    return data


def _without_content(row: list[Any]) -> list[Any]:
    return ["apart", *row[1:]] if row[0] == "here" else row
