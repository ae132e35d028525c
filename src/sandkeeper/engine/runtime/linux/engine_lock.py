"""The lock of an engine's data folder, and which process holds it.

The holder writes into the file who it is. A process id may be reused; together with its start time
it is unique. So a process that is told to stop is certainly the engine of this folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sandkeeper.engine.runtime.linux import process_records

LOCK_FILE = "engine.lock"
_RECORD_BYTES_MAX = 100


@dataclass(frozen=True, slots=True)
class LockHolder:
    """The engine that works in a data folder."""

    pid: int
    parent: int
    """The process that it stops with; 0 if it was started on its own."""

    @property
    def is_orphan(self) -> bool:
        """Return whether the process that it should have stopped with has ended."""
        return self.parent != 0 and _read_parent(self.pid) != self.parent


@contextlib.contextmanager
def hold_lock(data: Path, *, parent: int) -> Iterator[None]:
    """Hold the folder's lock. Raises BlockingIOError if another process does."""
    descriptor = os.open(data / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        pid = os.getpid()
        record = f"{pid} {process_records.read_start(pid)} {parent}"
        os.pwrite(descriptor, record.encode().ljust(_RECORD_BYTES_MAX), 0)
        yield
    finally:
        os.close(descriptor)


def find_holder(data: Path) -> LockHolder | None:
    """Return the engine that holds the folder's lock; None if none does, or it is not known."""
    try:
        descriptor = os.open(data / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        words = os.pread(descriptor, _RECORD_BYTES_MAX, 0).split()
    else:
        return None
    finally:
        os.close(descriptor)
    if len(words) != 3:  # It was locked a moment ago.
        return None
    pid, started, parent = map(int, words)
    return LockHolder(pid, parent) if process_records.is_same(pid, started) else None


def _read_parent(pid: int) -> int:
    """Return a process's parent; 0 if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
    except OSError:
        return 0
