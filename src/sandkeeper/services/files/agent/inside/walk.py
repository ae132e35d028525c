"""Finding what is below the work folder, less what is ignored."""

# ruff: noqa: PTH115, PTH118, PTH123
# Loading pathlib would take longer than most of the work here.

from __future__ import annotations

import errno
import os
import stat
import time
from typing import TYPE_CHECKING

from sandkeeper.domain.files.ignore_rules import IGNORE_FILE, NOT_KEPT_MAX, KeptPaths, read_rules
from sandkeeper.services.files.agent.inside.common import CHUNK, hash_file, open_file
from sandkeeper.services.files.agent.inside.safe_replace import make_stamp

if TYPE_CHECKING:
    from typing import Any


class Walk:
    """Everything below the root that is not ignored.

    An entry is [path, kind, mode, size, mtime_ns, stamp, target or hash].
    """

    def __init__(self, request: dict[str, Any]) -> None:
        self._root: str = request["root"]
        self._entries_max: int = request["entries_max"]
        self._now = time.time_ns()
        self._kept = KeptPaths([*request["rules"], *self._read_rules()], request["secret_rules"])
        self._folders = [""]
        self.entries: list[list[Any]] = []
        self.problems: list[list[str]] = []
        while self._folders and not self.is_too_long:
            self._list_folder(self._folders.pop())

    @property
    def is_too_long(self) -> bool:
        """There are more paths than may be kept, and the rest was not looked at."""
        return len(self.entries) > self._entries_max

    def summarize(self) -> dict[str, Any]:
        """Return what to say beside the entries; only the rules for secrets make `not_kept`."""
        kept = self._kept
        _find_files(self._root, kept.secret_folders, kept.secret_files, self._entries_max)
        return {
            "problems": self.problems,
            "too_many": self.is_too_long,
            "not_kept": [_show(path) for path in sorted(kept.secret_files)[:NOT_KEPT_MAX]],
            "not_kept_count": len(kept.secret_files),
        }

    def _read_rules(self) -> list[str]:
        try:
            with open(os.path.join(self._root, IGNORE_FILE), errors="replace") as file:
                return read_rules(file.read(CHUNK))
        except OSError:
            return []

    def _list_folder(self, folder: str) -> None:
        try:
            with os.scandir(os.path.join(self._root, folder)) as found:
                for one in sorted(found, key=lambda one: one.name):
                    self._add(one, folder + "/" + one.name if folder else one.name)
        except OSError as error:
            if folder or error.errno != errno.ENOENT:
                self.problems.append([folder, error.strerror or "cannot be listed"])

    def _add(self, one: os.DirEntry[str], path: str) -> None:
        if not _is_text(path):
            self.problems.append([_show(path), "its name is not UTF-8"])
            return
        is_folder = one.is_dir(follow_symlinks=False)
        if self._kept.skips(path, is_folder):
            return
        try:
            status = one.stat(follow_symlinks=False)
            mode, mtime_ns = status.st_mode & 0o7777, status.st_mtime_ns
            if is_folder:
                self.entries.append([path, "dir", mode, 0, mtime_ns, "", ""])
                self._folders.append(path)
                return
            stamp = make_stamp(status, self._now)
            if stat.S_ISREG(status.st_mode):
                self.entries.append([path, "file", mode, status.st_size, mtime_ns, stamp, ""])
            elif stat.S_ISLNK(status.st_mode):
                target = os.readlink(one.path)
                if _is_text(target):
                    self.entries.append([path, "symlink", 0o777, 0, mtime_ns, stamp, target])
                else:
                    self.problems.append([path, "its target is not UTF-8"])
        except OSError as error:
            self.problems.append([path, error.strerror or "cannot be read"])


def list_tree(request: dict[str, Any]) -> dict[str, Any]:
    """List all entries, with hashes up to the asked number of bytes."""
    walk = Walk(request)
    if request["hash_bytes"]:
        _hash_some(request["root"], walk, request["hash_bytes"])
    return dict(walk.summarize(), entries=walk.entries)


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


def _is_text(name: str) -> bool:
    try:
        return name.isascii() or bool(name.encode())
    except UnicodeEncodeError:
        return False


def _show(path: str) -> str:
    """Return the path as text, whatever bytes are in it."""
    return path.encode(errors="surrogateescape").decode(errors="backslashreplace")


def _hash_some(root: str, walk: Walk, bytes_max: int) -> None:
    """Hash all files if they fit (a negative bound fits everything), else some at random."""
    import random  # noqa: PLC0415  Most requests hash nothing, and it takes long to load.

    files = [one for one in walk.entries if one[1] == "file"]
    random.shuffle(files)
    left = bytes_max
    for one in files:
        if bytes_max >= 0 and one[3] > left:
            continue
        left -= one[3]
        try:
            with open(open_file(os.path.join(root, one[0])), "rb") as file:
                one[6] = hash_file(file)
        except OSError as error:
            walk.problems.append([one[0], error.strerror or "cannot be read"])
