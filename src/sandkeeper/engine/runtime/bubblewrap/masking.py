"""Hiding the kernel's own files from a sandbox, and holding its device nodes as they are.

Most of these files belong to the host's root, which has no id inside, so a sandbox could not write
them anyway. But they affect the whole machine, so they must stay closed even to a process with an
identity that it should not have. All of it is done in the sandbox's mount namespace before its
first command, for any engine: an ordinary user owns that namespace, too.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from sandkeeper.engine.runtime.linux import syscalls

READ_ONLY = ("/proc/sys", "/proc/pressure")
MASKED = (
    "/proc/acpi",
    "/proc/allocinfo",
    "/proc/asound",
    "/proc/bus",
    "/proc/driver",
    "/proc/dynamic_debug",
    "/proc/interrupts",
    "/proc/iomem",
    "/proc/ioports",
    "/proc/irq",
    "/proc/kallsyms",
    "/proc/kcore",
    "/proc/key-users",
    "/proc/keys",
    "/proc/kmsg",
    "/proc/kpagecgroup",
    "/proc/kpagecount",
    "/proc/kpageflags",
    "/proc/latency_stats",
    "/proc/mtrr",
    "/proc/pagetypeinfo",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/slabinfo",
    "/proc/sysrq-trigger",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/vmallocinfo",
    "/proc/fs",
)
_STAGE = "/proc/fs"
"""Where the empty file system is mounted that covers the others: this folder is in every kernel and
no sandbox can put anything else in its place. It is covered itself, as the last."""
DEVICES = tuple(f"/dev/{name}" for name in ("full", "null", "random", "tty", "urandom", "zero"))
_INERT = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC


def apply() -> None:
    """Cover and lock all of it. The caller is the root of the sandbox's mount namespace."""
    syscalls.mount("tmpfs", _STAGE, "tmpfs", _INERT, "mode=555,size=4k,nr_inodes=3")
    folder, file = f"{_STAGE}/folder", f"{_STAGE}/file"
    Path(folder).mkdir(0o555)
    os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444))
    # Of the file system itself, so that everything it covers becomes read-only.
    syscalls.mount("tmpfs", _STAGE, "", syscalls.MS_REMOUNT | syscalls.MS_RDONLY | _INERT)
    for path in MASKED:
        try:
            is_folder = stat.S_ISDIR(os.lstat(path).st_mode)
        except FileNotFoundError:
            continue
        syscalls.bind(folder if is_folder else file, path)
    for path in READ_ONLY:
        if os.access(path, os.F_OK):
            # With the file of ours that is mounted below it.
            syscalls.mount(path, path, "", syscalls.MS_BIND | syscalls.MS_REC)
            syscalls.make_read_only(path, _INERT)
    for path in DEVICES:
        # A device takes what is written to it also then; its mode, owner and times stay.
        syscalls.make_read_only(path, syscalls.MS_NOSUID | syscalls.MS_NOEXEC)
