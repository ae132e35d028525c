"""The lock beside an SQLite file: it tells a starting keeper whether another one is alive.

Every keeper holds it shared for as long as its process lives; the kernel releases it when the
process dies, however that happens. So a keeper that gets it exclusively is the only one.
"""

from __future__ import annotations

import os
from pathlib import Path

from sandkeeper.common.file_lock import HAS_SHARED_LOCKS, share_file, try_lock_file


class ProcessLock:
    """The lock of one process. Without a path nothing is locked and nothing is known.

    Nor on Windows, which has no shared locks: a dead keeper's claims are freed by its heartbeat.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path if HAS_SHARED_LOCKS else None
        self._file: int | None = None

    def acquire_alone(self) -> bool:
        """Lock the file exclusively; return False if another process has it."""
        if self._path is None:
            return False
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        return try_lock_file(self._file)

    def share(self) -> None:
        """Share the lock; wait for a process that has it alone, which is for a moment."""
        if self._file is not None:
            share_file(self._file)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
