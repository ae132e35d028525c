"""Paths as a sandbox's own processes see them, resolved by the kernel and never outside."""

from __future__ import annotations

import ctypes
import errno
import os
import struct

_libc = ctypes.CDLL(None, use_errno=True)

_SYS_OPENAT2 = 437
_RESOLVE_NO_MAGICLINKS = 0x02
_RESOLVE_IN_ROOT = 0x10
_RACES_MAX = 64
"""openat2 answers EAGAIN when a rename may have raced with `..`; it is asked again so often."""


def open_below(root: int, path: str, flags: int, mode: int = 0) -> int:
    """Open `path` as a process of the sandbox would see it. Raises OSError."""
    if "\0" in path:
        raise OSError(errno.EINVAL, "path holds a zero byte", path)
    how = struct.pack("QQQ", flags | os.O_CLOEXEC, mode, _RESOLVE_IN_ROOT | _RESOLVE_NO_MAGICLINKS)
    name = os.fsencode(path)
    for _ in range(_RACES_MAX):
        descriptor: int = _libc.syscall(_SYS_OPENAT2, root, name, how, len(how))
        if descriptor >= 0:
            return descriptor
        if ctypes.get_errno() not in (errno.EAGAIN, errno.EINTR):
            break
    number = ctypes.get_errno()
    raise OSError(number, os.strerror(number), path)
