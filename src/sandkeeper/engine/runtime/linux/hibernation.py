"""Move the memory of frozen sandboxes to swap.

The kernel does the work: a control group is told to give back what it holds. Programs notice
nothing; after a resume, each page is read back when it is used. What was moved is as durable as the
memory itself: it does not survive a reboot.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from sandkeeper.engine.runtime.linux import cgroups

_SWAPS = Path("/proc/swaps")


def find_fault() -> str | None:
    """Return why this machine cannot do it, and what to do; None if it can."""
    try:
        has_swap = len(_SWAPS.read_text().splitlines()) > 1
    except OSError:
        has_swap = False
    if not has_swap:
        return "this machine has no swap: make a swap file (fallocate, mkswap, swapon)"
    parents = cgroups.find_parents()
    if parents is None:
        return "no control group limits memory here: run as root, or delegate one to this user"
    if not _get_switch(parents).exists():
        return "this kernel cannot give back a group's memory: it needs Linux 5.19 or later"
    return None


def move_to_swap(group: cgroups.Group) -> int:
    """Give back as much memory of the group as the kernel can, and return how many bytes it was.

    It takes as long as the disk needs. A group that goes or thaws during that is no error.
    """
    before = cgroups.read_memory(group)
    if before is None:
        return 0
    if group["version"] == 2:
        # Running sandboxes do not swap, so that one which needs too much is ended, not slow.
        limit = Path(group["paths"]["all"], "memory.swap.max")
        with contextlib.suppress(OSError):
            limit.write_text("max")
        try:
            _write(group, str(before[0]))
        finally:
            with contextlib.suppress(OSError):
                limit.write_text("0")
    else:
        _write(group, "0")
    after = cgroups.read_memory(group)
    return max(0, before[0] - after[0]) if after is not None else 0


def _write(group: cgroups.Group, text: str) -> None:
    # The kernel reports an error as well if it could give back only a part.
    with contextlib.suppress(OSError):
        _get_switch(group).write_text(text)


def _get_switch(group: cgroups.Group | cgroups.Parents) -> Path:
    if group["version"] == 2:
        return Path(group["paths"]["all"], "memory.reclaim")
    return Path(group["paths"]["memory"], "memory.force_empty")
