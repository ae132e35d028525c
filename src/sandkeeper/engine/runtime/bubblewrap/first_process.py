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
# pause(), and back.
_X86_64 = bytes.fromhex("b822000000 0f05 ebf7")
# ppoll(0, 0, 0, 0, 0), and back.
_AARCH64 = struct.pack(
    "<8I",
    *(0xD2800000 | register for register in range(5)),
    0xD2800000 | 73 << 5 | 8,
    0xD4000001,
    0x14000000 | -7 & 0x3FFFFFF,
)
_MACHINES = {"x86_64": (62, _X86_64), "aarch64": (183, _AARCH64)}


def build_program() -> bytes:
    """Return the program's file for this machine. Raises KeyError on other processors."""
    machine, code = _MACHINES[platform.machine()]
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
