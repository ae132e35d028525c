"""A fingerprint of a folder: it stays the same only while nothing below the folder changes.

It is made of what the kernel says about each path and no program can set back: the inode and the
time of its last change. No process is started inside, and no content is read.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Collection
from typing import Final

from sandkeeper.engine.runtime.linux.paths import open_below

ENTRIES_MAX: Final = 5000
"""A larger folder has no fingerprint: walking it would keep the engine from its other requests."""
SETTLED_NS: Final = 100_000_000
"""What changed this recently may change again at the same time of the kernel's coarse clock."""


def compute_fingerprint(root: int, path: str, skipped: Collection[str]) -> str | None:
    """Return the fingerprint of `path` below a sandbox's root, without folders of these names.

    None if it has too many entries, changed just now, or cannot be read whole.
    """
    digest = hashlib.sha256()
    settled = time.time_ns() - SETTLED_NS
    left = ENTRIES_MAX
    folders = [""]
    try:
        top = open_below(root, path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            if os.fstat(top).st_ctime_ns > settled:
                return None
            while folders:
                below = folders.pop()
                found = _look(top, below, skipped)
                left -= len(found)
                if left < 0 or any(look.st_ctime_ns > settled for _, look, _ in found):
                    return None
                for name, look, is_folder in found:
                    # A repr is unambiguous, whatever bytes a name has.
                    told = (below, name, look.st_mode, look.st_ino, look.st_size)
                    digest.update(repr((*told, look.st_mtime_ns, look.st_ctime_ns)).encode())
                    if is_folder:
                        folders.append(f"{below}{name}/")
        finally:
            os.close(top)
    except OSError:
        return None
    return digest.hexdigest()


def _look(top: int, below: str, skipped: Collection[str]) -> list[tuple[str, os.stat_result, bool]]:
    """Return the name and status of all that is in a folder, in order, and whether it is one."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
    folder = open_below(top, f"./{below}", flags)
    try:
        with os.scandir(folder) as entries:
            return sorted(
                (one.name, one.stat(follow_symlinks=False), is_folder)
                for one in entries
                if not ((is_folder := one.is_dir(follow_symlinks=False)) and one.name in skipped)
            )
    finally:
        os.close(folder)
