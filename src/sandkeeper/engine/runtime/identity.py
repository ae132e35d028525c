"""Acting on files as one of the sandbox's users.

Files of a sandbox belong to ids that only its own user namespace knows. An engine that runs as root
would create files with an owner the sandbox cannot name (the kernel refuses that), and would pass
every permission check. So it takes on the user's file-system identity for the time of one act: the
kernel then checks and owns as it would inside. The sandbox's root passes every check there, so for
it the engine keeps its own power over files. An ordinary user already is that identity.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from typing import TYPE_CHECKING

from sandkeeper.engine.runtime import kernel
from sandkeeper.engine.runtime.tools import UID_BASE

if TYPE_CHECKING:
    from collections.abc import Iterator

_libc = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def acting_as(uid: int, gid: int) -> Iterator[None]:
    """Let this thread's file operations count as the given host ids, and nothing else.

    The change holds for the calling thread alone, so the block must not await. Does nothing for an
    engine that is not root.
    """
    if os.geteuid() != 0:
        yield
        return
    _libc.setfsgid(gid)
    _libc.setfsuid(uid)
    if uid == UID_BASE:
        # The kernel took away the power over files along with root's name.
        kernel.regain_capabilities()
    try:
        yield
    finally:
        _libc.setfsuid(0)
        _libc.setfsgid(0)
