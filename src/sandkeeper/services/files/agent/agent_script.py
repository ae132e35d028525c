"""What runs inside the sandbox: it lists, packs and puts back files, and answers on one line.

It is sent as text, behind `domain/ignoring.py`, to whatever Python the sandbox has. So it needs
nothing but the standard library, and nothing newer than Python 3.7. A sandbox may answer anything:
the keeper checks everything that it reports.
"""

# ruff: noqa: PTH101, PTH103, PTH104, PTH106, PTH108, PTH112, PTH114, PTH115, PTH118, PTH120, PTH123, PTH208, PTH211
# Loading pathlib would take longer than most of the work here.

from __future__ import annotations

import base64
import errno
import fcntl
import hashlib
import json
import os
import random
import select
import signal
import stat
import sys
import time
import zlib
from typing import TYPE_CHECKING

from sandkeeper.domain.files.ignore_rules import IGNORE_FILE, NOT_KEPT_MAX, KeptPaths, read_rules
from sandkeeper.services.files.agent.safe_replace import make_stamp, replace_unchanged

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO, Any

MARK = "sandkeeper:"
CHUNK = 1 << 20
# How often a script at work gives a sign of life. A blank is neither a line nor an answer.
SIGN_S = 10
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


class RefusedByFenceError(Exception):
    """A newer claim has worked in this sandbox."""


class Fence:
    """Refuses what is asked under an older claim than the newest that was here.

    The request names a file, the claim's number, and whether to keep the number whatever is there.
    Without a file nothing is refused. The lock is held for one step at most, so that the next
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


def list_tree(request: dict[str, Any]) -> dict[str, Any]:
    """List what is not ignored below the root, with hashes up to the asked number of bytes.

    An entry is [path, kind, mode, size, mtime_ns, stamp, target or hash]. `not_kept` are the first
    files that only the rules for secrets leave out.
    """
    root = request["root"]
    now = time.time_ns()
    rules = list(request["rules"])
    try:
        with open(os.path.join(root, IGNORE_FILE), errors="replace") as file:
            rules += read_rules(file.read(CHUNK))
    except OSError:
        pass
    kept = KeptPaths(rules, request["secret_rules"])
    entries: list[list[Any]] = []
    problems: list[list[str]] = []
    folders = [""]
    while folders and len(entries) <= request["entries_max"]:
        folder = folders.pop()
        try:
            with os.scandir(os.path.join(root, folder)) as found:
                inside = sorted(found, key=lambda one: one.name)
        except OSError as error:
            if folder or error.errno != errno.ENOENT:
                problems.append([folder, error.strerror or "cannot be listed"])
            continue
        for one in inside:
            _add_entry(one, folder, entries, folders, problems, kept, now)
    if request["hash_bytes"]:
        _hash_some(root, entries, request["hash_bytes"], problems)
    _find_files(root, kept.secret_folders, kept.secret_files, request["entries_max"])
    return {
        "entries": entries,
        "problems": problems,
        "too_many": len(entries) > request["entries_max"],
        "not_kept": [_show(path) for path in sorted(kept.secret_files)[:NOT_KEPT_MAX]],
        "not_kept_count": len(kept.secret_files),
    }


def _find_files(root: str, folders: list[str], files: list[str], files_max: int) -> None:
    """Add the files in these folders, as long as there are not too many."""
    while folders and len(files) <= files_max:
        folder = folders.pop()
        try:
            with os.scandir(os.path.join(root, folder)) as found:
                for one in found:
                    is_folder = one.is_dir(follow_symlinks=False)
                    (folders if is_folder else files).append(folder + "/" + one.name)
        except OSError:
            pass  # What cannot be listed is not kept either.


def _add_entry(
    one: os.DirEntry[str],
    folder: str,
    entries: list[list[Any]],
    folders: list[str],
    problems: list[list[str]],
    kept: KeptPaths,
    now: int,
) -> None:
    path = folder + "/" + one.name if folder else one.name
    try:
        path.encode()
    except UnicodeEncodeError:
        problems.append([_show(path), "its name is not UTF-8"])
        return
    is_folder = one.is_dir(follow_symlinks=False)
    if kept.skips(path, is_folder):
        return
    try:
        status = one.stat(follow_symlinks=False)
        mode = stat.S_IMODE(status.st_mode)
        if is_folder:
            entries.append([path, "dir", mode, 0, status.st_mtime_ns, "", ""])
            folders.append(path)
        elif one.is_symlink():
            target = os.readlink(one.path)
            target.encode()
            stamp = make_stamp(status, now)
            entries.append([path, "symlink", 0o777, 0, status.st_mtime_ns, stamp, target])
        elif stat.S_ISREG(status.st_mode):
            stamp = make_stamp(status, now)
            entries.append([path, "file", mode, status.st_size, status.st_mtime_ns, stamp, ""])
    except UnicodeEncodeError:
        problems.append([path, "its target is not UTF-8"])
    except OSError as error:
        problems.append([path, error.strerror or "cannot be read"])


def _show(path: str) -> str:
    """Return the path as text, whatever bytes are in it."""
    return path.encode(errors="surrogateescape").decode(errors="backslashreplace")


def _hash_some(
    root: str, entries: list[list[Any]], bytes_max: int, problems: list[list[str]]
) -> None:
    """Hash all files if they fit (a negative bound fits everything), else some at random."""
    files = [one for one in entries if one[1] == "file"]
    random.shuffle(files)
    left = bytes_max
    for one in files:
        if bytes_max >= 0 and one[3] > left:
            continue
        left -= one[3]
        try:
            with open(_open(os.path.join(root, one[0])), "rb") as file:
                one[6] = _hash(file)[0]
        except OSError as error:
            problems.append([one[0], error.strerror or "cannot be read"])


def _open(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def _hash(file: IO[bytes]) -> tuple[str, int]:
    digest, size = hashlib.sha256(), 0
    while True:
        piece = file.read(CHUNK)
        if not piece:
            return digest.hexdigest(), size
        digest.update(piece)
        size += len(piece)


def pack(request: dict[str, Any]) -> dict[str, Any]:
    """Write a tar of the named files whose content changed, until it is large enough.

    Its members are named by their place in the list. The answer for each file is [where, mode,
    size, mtime_ns, stamp, hash or reason]: `tar`, `same`, `apart` (to be read by itself, because it
    is large or the disk has no room for the tar), `gone` or `error`. Files not reached have none.
    """
    answers: list[list[Any]] = []
    os.makedirs(request["folder"], 0o700, exist_ok=True)
    name = os.path.join(request["folder"], request["name"])
    is_full = False
    with open(name, "wb") as tar:
        for index, (path, known) in enumerate(request["items"]):
            if tar.tell() >= request["tar_bytes"]:
                break
            whole = os.path.join(request["root"], path)
            try:
                answer, data = _read_file(whole, known, request)
            except OSError as error:
                where = "gone" if error.errno == errno.ENOENT else "error"
                answers.append([where, 0, 0, 0, "", error.strerror or "cannot be read"])
                continue
            if data is not None and not is_full:
                is_full = not _append(tar, str(index), data)
            if data is not None and is_full:
                answer[0] = "apart"
            answers.append(answer)
    return {"answers": answers, "tar": name}


def _read_file(path: str, known: str, request: dict[str, Any]) -> tuple[list[Any], bytes | None]:
    now = time.time_ns()
    with open(_open(path), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is no longer a file")
        if status.st_size > request["file_max"]:
            raise OSError(errno.EFBIG, "it is larger than a kept file may be")
        data = file.read(request["small_max"] + 1)
        if len(data) > request["small_max"]:
            file.seek(0)
            data, (digest, size) = b"", _hash(file)
            where = "apart"
        else:
            digest, size, where = hashlib.sha256(data).hexdigest(), len(data), "tar"
    if digest == known:
        where = "same"
    mode = stat.S_IMODE(status.st_mode)
    answer = [where, mode, size, status.st_mtime_ns, make_stamp(status, now), digest]
    return answer, data if where == "tar" else None


def make_header(name: str, size: int) -> bytes:
    """Return the header of a plain file in a tar; loading `tarfile` would take longer."""
    fields = (name.encode(), b"0000644", b"0000000", b"0000000", b"%011o" % size, b"0" * 11)
    widths = (100, 8, 8, 8, 12, 12)
    pairs = zip(fields, widths)  # noqa: B905  Its argument is newer than 3.7.
    start = b"".join(one.ljust(width, b"\0") for one, width in pairs)
    rest = (b"0".ljust(101, b"\0") + b"ustar\x0000").ljust(356, b"\0")
    return start + b"%06o\0 " % (sum(start) + 8 * 32 + sum(rest)) + rest


def _append(tar: IO[bytes], name: str, data: bytes) -> bool:
    """Add a member; False if the disk has no room, and then the tar is as it was."""
    before = tar.tell()
    try:
        tar.write(make_header(name, len(data)) + data + bytes(-len(data) % 512))
        tar.flush()
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        tar.seek(before)
        tar.truncate()
        return False
    return True


def put_back(request: dict[str, Any]) -> dict[str, Any]:
    """Unpack tars as they arrive, every content proven by hash; stop when the disk is full.

    A tar's first member says what to do: `items`, each of them [path, kind, mode, mtime_ns, hash,
    target, part, stamp], whose contents are the next members, or the file `part`, which becomes it;
    and what to `remove`. With a stamp, what is there is replaced only if it still has it; an empty
    one means that nothing was there. At the end each item is checked once more.
    """
    root = request["root"]
    fence = Fence(request)
    lost: list[list[str]] = []
    placed: list[list[Any]] = []
    is_full = False
    removed = 0
    try:
        with fence:
            os.makedirs(root, exist_ok=True)
        for name in _list_tars(request):
            with open(name, "rb") as tar:
                os.unlink(name)
                order = json.loads(_next_member(tar))
                is_full = _unpack(request, fence, order["items"], tar, placed, lost)
            if is_full:
                break
            with fence:
                gone = (_remove(os.path.join(root, path), at) for path, at in order["remove"])
                removed += sum(gone)
    finally:
        _clear(request["folder"])
    lost += [[item[0], "it did not stay"] for item in placed if not _is_there(root, item)]
    return {"lost": lost, "is_full": is_full, "removed": removed}


def _list_tars(request: dict[str, Any]) -> Iterator[str]:
    """Yield the named tars; without any, one a line of the input, until an empty one.

    When the next is asked for, the last one is done, which the sender sees by it.
    """
    for name in request["tars"]:
        yield name
    if request["tars"]:
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


def _unpack(
    request: dict[str, Any],
    fence: Fence,
    items: list[list[Any]],
    tar: IO[bytes],
    placed: list[list[Any]],
    lost: list[Any],
) -> bool:
    """Put each item where it belongs; True when the disk is full, and the rest was left."""
    for item in items:
        data = _next_member(tar) if item[1] == "file" and not item[6] else b""
        try:
            with fence:
                _put(os.path.join(request["root"], item[0]), item, data, request["part_name"])
        except OSError as error:
            lost.append([item[0], error.strerror or "cannot be written"])
            if error.errno in NO_SPACE:
                return True
        else:
            placed.append(item)
    return False


def _is_there(root: str, item: list[Any]) -> bool:
    """Return whether a path still looks as it was left."""
    path, kind, mode, mtime_ns = item[:4]
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


def _clear(folder: str) -> None:
    try:
        for name in os.listdir(folder):
            os.unlink(os.path.join(folder, name))
        os.rmdir(folder)
    except OSError:
        pass  # The sender of the tars removes it too.


def _next_member(tar: IO[bytes]) -> bytes:
    header = tar.read(512)
    size = int(header[124:135], 8)
    data = tar.read(size)
    tar.read(-size % 512)
    return data


def _put(path: str, item: list[Any], data: bytes, part_name: str) -> None:
    _, kind, mode, mtime_ns, _, _, part, stamp = item
    os.makedirs(path if kind == "dir" else os.path.dirname(path), exist_ok=True)
    if kind == "dir":
        os.chmod(path, mode)
        return
    made = part or os.path.join(os.path.dirname(path), part_name)
    try:
        _make(made, item, data)
        os.utime(made, ns=(mtime_ns, mtime_ns), follow_symlinks=False)
        if stamp is not None:
            replace_unchanged(made, path, stamp)
            return
        if os.path.isdir(path) and not os.path.islink(path):
            os.rmdir(path)
        os.rename(made, path)
    except OSError:
        if os.path.lexists(made):
            os.unlink(made)
        raise


def _make(made: str, item: list[Any], data: bytes) -> None:
    _, kind, mode, _, digest, target, part, _ = item
    if kind == "symlink":
        os.symlink(target, made)
        return
    if part:
        with open(part, "rb") as file:
            found = _hash(file)[0]
    else:
        found = hashlib.sha256(data).hexdigest()
        with open(made, "wb") as file:
            file.write(data)
    if found != digest:
        raise OSError(errno.EIO, "other content arrived than was kept")
    os.chmod(made, mode)


def _remove(path: str, at: int) -> bool:
    """Delete a file that was not changed since `at`."""
    try:
        if os.lstat(path).st_mtime_ns > at:
            return False
        os.unlink(path)
    except OSError:
        return False
    return True


VERBS = {"list": list_tree, "pack": pack, "put_back": put_back}


def main() -> None:
    """Answer the request that is the first argument, or one line of the input if that is `-`."""
    signal.signal(signal.SIGALRM, lambda *_: os.write(1, b" "))
    signal.setitimer(signal.ITIMER_REAL, SIGN_S, SIGN_S)
    text = sys.argv[1] if sys.argv[1] != "-" else sys.stdin.readline()
    request = json.loads(zlib.decompress(base64.b64decode(text)))
    try:
        with Fence(request):
            pass
        if request.get("fence"):
            request["fence"][2] = False
        found = VERBS[request["verb"]](request)
    except RefusedByFenceError:
        found = {"refused": True}
    signal.setitimer(signal.ITIMER_REAL, 0)
    answer = json.dumps(found).encode()
    sys.stdout.write("\n" + MARK + base64.b64encode(zlib.compress(answer, 1)).decode() + "\n")


if __name__ == "__main__":
    main()
