"""The first process of a sandbox whose files are all an image's.

An image may have no program at all that waits, or one for another C library. So the engine brings
its own: a few instructions without any library, which sleep until they are killed.
"""

from __future__ import annotations

import platform
import struct

PATH = "/run/pause"
"""Below the memory file system that every sandbox has there."""
_ADDRESS = 0x400000
_HEADERS_SIZE = 64 + 56
_EXECUTABLE, _LOADED, _READ_AND_RUN = 2, 1, 5
# rt_sigaction(SIGCHLD, what follows the code, 0, 8); then pause(), and back.
_X86_64 = bytes.fromhex(
    "b80d000000 bf11000000 488d3513000000 31d2 41ba08000000 0f05 b822000000 0f05 ebf7"
)
# The same; ppoll(0, 0, 0, 0, 0) instead of pause().
_AARCH64 = struct.pack(
    "<14I",
    *(0xD2800000 | 17 << 5, 0x10000000 | 13 << 5 | 1, 0xD2800002, 0xD2800000 | 8 << 5 | 3),
    *(0xD2800000 | 134 << 5 | 8, 0xD4000001),
    *(0xD2800000 | register for register in range(5)),
    *(0xD2800000 | 73 << 5 | 8, 0xD4000001, 0x14000000 | -7 & 0x3FFFFFF),
)
_IGNORE = struct.pack("<4Q", 1, 0, 0, 0)
"""The handling of a signal that is ignored: then the kernel reaps orphans."""
_MACHINES = {"x86_64": (62, _X86_64), "aarch64": (183, _AARCH64)}


def build_program() -> bytes:
    """Return the program's file for this machine. Raises KeyError on other processors."""
    machine, code = _MACHINES[platform.machine()]
    code += _IGNORE
    entry = _ADDRESS + _HEADERS_SIZE
    size = _HEADERS_SIZE + len(code)
    identity = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    header = struct.pack(
        "<HHIQQQIHHHHHH", _EXECUTABLE, machine, 1, entry, 64, 0, 0, 64, 56, 1, 64, 0, 0
    )
    segment = struct.pack(
        "<IIQQQQQQ", _LOADED, _READ_AND_RUN, 0, _ADDRESS, _ADDRESS, size, size, 0x1000
    )
    return identity + header + segment + code
