"""Locks on files that end with the process that holds them, however it dies.

Windows has no shared locks of this kind: there only the exclusive one exists.
"""

from __future__ import annotations

import sys

if sys.platform == "win32":
    import msvcrt

    HAS_SHARED_LOCKS = False

    def lock_file(descriptor: int) -> None:
        """Wait for the exclusive lock of an open file."""
        msvcrt.locking(descriptor, msvcrt.LK_LOCK, 1)

    def try_lock_file(descriptor: int) -> bool:
        """Return whether the exclusive lock was free and is ours now."""
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def share_file(descriptor: int) -> None:
        """Do nothing: see `HAS_SHARED_LOCKS`."""

else:
    import fcntl

    HAS_SHARED_LOCKS = True

    def lock_file(descriptor: int) -> None:
        """Wait for the exclusive lock of an open file."""
        fcntl.flock(descriptor, fcntl.LOCK_EX)

    def try_lock_file(descriptor: int) -> bool:
        """Return whether the exclusive lock was free and is ours now."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def share_file(descriptor: int) -> None:
        """Turn the lock into a shared one; wait for a process that has it exclusively."""
        fcntl.flock(descriptor, fcntl.LOCK_SH)
