"""Making files whose owner only the sandbox knows.

A sandbox's disk is mounted for its own range of user ids, and the kernel refuses a new file from
anyone outside that range, the host's root too. So root takes on the owner's file-system identity
for the one act, and keeps its right to pass permission checks: E2B's envd, being root inside,
writes anywhere in the sandbox. An ordinary user already is the sandbox's user.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections.abc import Iterator

_libc = ctypes.CDLL(None, use_errno=True)

PR_GET_SECUREBITS = 27
PR_SET_SECUREBITS = 28
SECBIT_NO_SETUID_FIXUP = 4


@contextlib.contextmanager
def create_as_user(uid: int, gid: int) -> Iterator[None]:
    """Let what this thread makes belong to the given host ids. The block must not await.

    Where the machine does not let root keep its rights, the owner's own permissions decide.
    """
    if os.geteuid() != 0:
        yield
        return
    # The bits would be inherited by children, so they are set for no longer than the act.
    bits = _libc.prctl(PR_GET_SECUREBITS, 0, 0, 0, 0)
    _libc.prctl(PR_SET_SECUREBITS, bits | SECBIT_NO_SETUID_FIXUP, 0, 0, 0)
    _libc.setfsgid(gid)
    _libc.setfsuid(uid)
    try:
        # Neither call reports failure, but each returns the previous value.
        if (_libc.setfsuid(-1), _libc.setfsgid(-1)) != (uid, gid):
            raise PermissionError(errno.EPERM, f"the kernel refuses the identity {uid}:{gid}")
        yield
    finally:
        _libc.setfsuid(0)
        _libc.setfsgid(0)
        _libc.prctl(PR_SET_SECUREBITS, bits, 0, 0, 0)
