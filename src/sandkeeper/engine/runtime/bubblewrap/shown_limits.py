"""What `free`, `df`, `nproc` and the like show inside: the sandbox's limits instead of the machine.

Processors are those that a program may run on, so a sandbox with fewer of them than the machine is
bound to some. `/proc/meminfo`, and what the base's `df` reads, are files in a small memory file
system, which every command writes before it starts. Root of the sandbox may write them, too, and
would only fool itself.

Used by the spawner, so this module imports next to nothing.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from sandkeeper.engine.runtime.linux import cgroups, syscalls

Record = dict[str, Any]
Files = dict[str, bytes]

_STAGE = "/proc/fs"
_MEMORY = "/proc/meminfo"
_PROCESSORS = "/proc/cpuinfo"
_DISK = "/usr/libexec/sandkeeper/disk"
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
"""A sandbox has a boot of its own: a new one with each start from its disk."""
ONLINE = "/sys/devices/system/cpu/online"
"""Asked by the C library; the base has it as an empty file."""
_INERT = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
_SIZE = "mode=755,size=256k,nr_inodes=7"
_KIB = 1024
# In the kernel's order. What is not named in `_count_memory` is nothing.
_MEMORY_LINES = (
    *("MemTotal", "MemFree", "MemAvailable", "Buffers", "Cached", "SwapCached", "Active"),
    *("Inactive", "Active(anon)", "Inactive(anon)", "Active(file)", "Inactive(file)"),
    *("Unevictable", "Mlocked", "SwapTotal", "SwapFree", "Dirty", "Writeback", "AnonPages"),
    *("Mapped", "Shmem", "KReclaimable", "Slab", "SReclaimable", "SUnreclaim", "CommitLimit"),
)


def bind_to_processors(sandbox_id: str, cpu_count: int) -> None:
    """Run this process, and all that it starts, on as many processors as the sandbox has."""
    there = sorted(os.sched_getaffinity(0))
    if cpu_count >= len(there):
        return
    # The same ones for every process of a sandbox, and others for the next sandbox.
    first = int.from_bytes(sandbox_id.encode()) % len(there)
    chosen = (there * 2)[first : first + cpu_count]
    os.sched_setaffinity(0, chosen)


def _describe_memory(record: Record) -> bytes:
    total = record["limits"]["memory_mb"] * _KIB * _KIB
    group = record["group"]
    used, cache = (cgroups.read_memory(group) if group else None) or (0, 0)
    free = max(0, total - used)
    cache = min(cache, total)
    amounts = {
        "MemTotal": total,
        "MemFree": free,
        "MemAvailable": min(total, free + cache),
        "Cached": cache,
        "Inactive": cache,
        "Inactive(file)": cache,
        "Active": max(0, used - cache),
        "Active(anon)": max(0, used - cache),
        "AnonPages": max(0, used - cache),
        "CommitLimit": total,
    }
    lines = (f"{f'{name}:':<15} {amounts.get(name, 0) // _KIB:>8} kB\n" for name in _MEMORY_LINES)
    return "".join(lines).encode()


def describe(record: Record) -> Files:
    """Return what the files that change shall say now. The caller is still outside."""
    disk_mb = record["limits"].get("disk_mb")
    shown = {_MEMORY: _describe_memory(record)}
    # Sandboxes that an earlier version booted have no limit for their disk.
    if disk_mb is not None:
        shown[_DISK] = f"{disk_mb << 20} {record.get('disk_used', 0)}\n".encode()
    return shown


def mount(changing: Files) -> None:
    """Put the files into place. The caller is the root of the sandbox's mount namespace.

    It runs on the sandbox's processors already.
    """
    count = len(os.sched_getaffinity(0))
    shown = {
        **changing,
        _BOOT_ID: _make_boot_id(),
        ONLINE: b"0\n" if count == 1 else f"0-{count - 1}\n".encode(),
    }
    *processors, rest = Path(_PROCESSORS).read_bytes().split(b"\n\n")
    if count < len(processors):
        shown[_PROCESSORS] = b"\n\n".join([*processors[:count], rest])
    syscalls.mount("tmpfs", _STAGE, "tmpfs", _INERT, _SIZE)
    for path, content in shown.items():
        name = f"{_STAGE}/{path.rpartition('/')[2]}"
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        os.write(fd, content)
        os.close(fd)
        # A sandbox's root may have deleted the one that is not the kernel's.
        with contextlib.suppress(FileNotFoundError):
            syscalls.bind(name, path)
            if path == _BOOT_ID:
                syscalls.make_read_only(path, _INERT)


def _make_boot_id() -> bytes:
    """Return a random UUID, without the module for it: the spawner stays small."""
    text = (int.from_bytes(os.urandom(16)) & ~(0xF << 76) | 4 << 76) & ~(3 << 62) | 2 << 62
    digits = f"{text:032x}"
    parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    return f"{'-'.join(parts)}\n".encode()


def refresh(changing: Files) -> None:
    """Write what the sandbox uses now. The caller is its root, in its mount namespace."""
    for path, content in changing.items():
        # Not there, or the kernel's own, in an image or a sandbox that an earlier version booted.
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                os.ftruncate(fd, os.pwrite(fd, content, 0))
            finally:
                os.close(fd)
