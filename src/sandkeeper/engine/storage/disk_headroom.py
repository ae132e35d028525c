"""Room kept back on the disk, so that the engine can still write when a sandbox has filled it.

Without it a full disk could not even be freed: killing a sandbox has to be written down first.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

RESERVE_BYTES = 4 * 1024 * 1024
"""A few thousand of the ledger's writes; more would be taken from every data folder."""
_ROOM_FACTOR = 8  # It is put back only when there is plenty again, not to take the last itself.


class DiskHeadroom:
    """One file that holds room and nothing else. Made where there is plenty; `spend` gives it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_kept = False

    def allocate(self) -> None:
        """Hold the room back, if it is not and if the disk has plenty. Never raises."""
        if self._is_kept:
            return
        with contextlib.suppress(OSError):
            if shutil.disk_usage(self._path.parent).free < RESERVE_BYTES * _ROOM_FACTOR:
                return
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(fd, 0, RESERVE_BYTES)
            finally:
                os.close(fd)
            self._is_kept = True

    def release(self) -> bool:
        """Give the room to whoever writes next; False if there was none."""
        was_kept, self._is_kept = self._is_kept, False
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)
        return was_kept
