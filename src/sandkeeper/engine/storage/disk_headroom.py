"""Reserved disk space, so that the engine can still write when a sandbox has filled the disk.

Without it a full disk could not be freed: killing a sandbox must be recorded first.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

RESERVE_BYTES = 4 * 1024 * 1024
"""Enough for a few thousand database writes; more would cost every data folder."""
_FREE_FACTOR = 8  # Allocate only when the disk has plenty, so as not to fill it.


class DiskHeadroom:
    """A file that only reserves space. `allocate` creates it, `release` deletes it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_kept = False

    def allocate(self) -> None:
        """Reserve the space, unless it is reserved or the disk is nearly full. Never raises."""
        if self._is_kept:
            return
        with contextlib.suppress(OSError):
            if shutil.disk_usage(self._path.parent).free < RESERVE_BYTES * _FREE_FACTOR:
                return
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(fd, 0, RESERVE_BYTES)
            finally:
                os.close(fd)
            self._is_kept = True

    def release(self) -> bool:
        """Free the space for the next write; return False if none was reserved."""
        was_kept, self._is_kept = self._is_kept, False
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)
        return was_kept
