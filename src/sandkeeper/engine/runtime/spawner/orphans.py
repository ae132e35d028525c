"""Ends sandboxes whose data folder was deleted.

When a data folder is deleted, its spawner ends the sandboxes in it. If the spawner was killed
before, their records are gone with the folder and nothing would end them. So every first process
carries a mark with its folder's and its own id, and a symbolic link, which does not survive a
reboot, leads from the folder's mark to the folder. The next engine in any folder ends the sandboxes
whose link is dangling, and those of its own folder that have no record.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from sandkeeper.engine.runtime.linux import cgroups, process_records

MARK = "SANDKEEPER_SANDBOX"
"""The variable of a first process that holds its mark; commands inside do not inherit it."""
_END_WAIT_S = 10.0


def find_links() -> Path | None:
    """Return this user's folder of links; None if the machine has no place for it."""
    parent = Path("/run") if os.geteuid() == 0 else Path(f"/run/user/{os.geteuid()}")
    return parent / "sandkeeper" if os.access(parent, os.W_OK) else None


def note_folder(data: Path) -> None:
    """Create the link from a data folder's mark to the folder."""
    links = find_links()
    if links is not None:
        links.mkdir(mode=0o700, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            (links / cgroups.name_prefix(data)).symlink_to(data)


def forget_folder(data: Path) -> None:
    """Remove the link of a folder in which no sandbox lives."""
    links = find_links()
    if links is not None:
        (links / cgroups.name_prefix(data)).unlink(missing_ok=True)


def end_orphans(data: Path, known: set[str]) -> None:
    """End the sandboxes of deleted folders, and unknown ones of this folder."""
    marked = _list_marked()
    _end(cgroups.name_prefix(data), lambda sandbox_id: sandbox_id not in known, marked)
    links = find_links()
    for link in links.iterdir() if links is not None and links.exists() else ():
        # A folder that was only renamed still has its spawner.
        if not link.exists() and _end(link.name, lambda _any: True, marked, unless_held=True):
            link.unlink(missing_ok=True)


def end_unwritten(data: Path, sandbox_id: str) -> None:
    """End the processes of a sandbox whose boot was killed before its record was written."""
    _end(cgroups.name_prefix(data), lambda one: one == sandbox_id, _list_marked())


def _end(
    prefix: str,
    is_stray: Callable[[str], bool],
    marked: dict[int, str],
    *,
    unless_held: bool = False,
) -> bool:
    """End every process with the prefix whose sandbox is a stray; False if one is held."""
    parents = cgroups.find_parents()
    groups = cgroups.list_groups(parents, prefix) if parents else {}
    strays = [group for sandbox_id, group in groups.items() if is_stray(sandbox_id)]
    pids = {pid for group in strays for pid in cgroups.list_processes(group)}
    for pid, mark in marked.items():
        if mark.startswith(prefix) and is_stray(mark.removeprefix(prefix)):
            pids.add(pid)
    if unless_held and any(_is_held(pid) for pid in pids):
        return False
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for group in strays:
        # With cgroups version 1, a frozen process ends only after it thaws.
        with contextlib.suppress(OSError):
            cgroups.set_frozen(group, frozen=False)
    _wait_for_ends(pids)
    for group in strays:
        with contextlib.suppress(OSError):
            cgroups.remove(group)
    return True


def _wait_for_ends(pids: set[int]) -> None:
    deadline = time.monotonic() + _END_WAIT_S
    while any(process_records.read_start(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.005)


def _list_marked() -> dict[int, str]:
    """Return the first processes of all sandboxes that this user may inspect, with their marks."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                for entry in (folder / "environ").read_bytes().split(b"\0"):
                    name, _equals, mark = entry.decode(errors="replace").partition("=")
                    if name == MARK:
                        found[int(folder.name)] = mark
    return found


def _is_held(pid: int) -> bool:
    """Return whether a living spawner is the parent of a process."""
    with contextlib.suppress(OSError):
        parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
        return b"engine.runtime.spawner" in Path(f"/proc/{parent}/cmdline").read_bytes()
    return False
