"""The lock beside an SQLite file: it tells a starting keeper whether another one is alive.

Every keeper holds it shared for as long as its process lives; the kernel releases it when the
process dies, however that happens. So a keeper that gets it exclusively is the only one.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


class ProcessLock:
    """The lock of one process. Without a path nothing is locked and nothing is known."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._file: int | None = None

    def acquire_alone(self) -> bool:
        """Lock the file exclusively; return False if another process has it."""
        if self._path is None:
            return False
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def share(self) -> None:
        """Share the lock; wait for a process that has it alone, which is for a moment."""
        if self._file is not None:
            fcntl.flock(self._file, fcntl.LOCK_SH)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
