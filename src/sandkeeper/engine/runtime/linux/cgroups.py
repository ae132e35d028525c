"""Limits and freezing by control groups, where the machine lets us make them.

Version 2 with delegated controllers is preferred, then version 1 as root. A group is made below the
spawner's own, so whatever bounds the spawner bounds its sandboxes as well. Where neither is to be
had there is no group, and the runtime falls back to resource limits and stop signals.
"""

from __future__ import annotations

import errno
import hashlib
import os
import time
from pathlib import Path
from typing import TypedDict

_V1_CONTROLLERS = ("memory", "pids", "cpu", "cpuacct", "freezer")
_V2_CONTROLLERS = ("memory", "pids", "cpu")
_PERIOD_US = 100_000
_REMOVAL_ATTEMPTS = 200
_FREEZE_WAIT_S = 5.0


class Group(TypedDict):
    """One sandbox's control group, by controller. Version 2 has the one key ``all``."""

    version: int
    paths: dict[str, str]


class Parents(TypedDict):
    """Where groups can be made on this machine."""

    version: int
    paths: dict[str, str]


def name_prefix(data: Path) -> str:
    """Return the name prefix of all groups of one data folder's sandboxes."""
    return f"sandkeeper.{hashlib.sha256(str(data).encode()).hexdigest()[:8]}."


def find_parents() -> Parents | None:
    """Find where this process may make limiting groups. Tries it and cleans up."""
    return _find_v2() or _find_v1()


def make_group(parents: Parents, name: str, *, cpus: int, memory_mb: int, pids: int) -> Group:
    """Make a group and set its limits; one of that name that is there already is taken over."""
    group: Group = {
        "version": parents["version"],
        "paths": {key: f"{path}/{name}" for key, path in parents["paths"].items()},
    }
    for path in group["paths"].values():
        Path(path).mkdir(exist_ok=True)
    memory = str(memory_mb * 1024 * 1024)
    if group["version"] == 2:
        folder = group["paths"]["all"]
        _write(folder, "memory.max", memory)
        _try_write(folder, "memory.swap.max", "0")
        _write(folder, "pids.max", str(pids))
        _try_write(folder, "cpu.max", f"{cpus * _PERIOD_US} {_PERIOD_US}")
        _try_write(folder, "memory.oom.group", "0")
        return group
    paths = group["paths"]
    _write(paths["memory"], "memory.limit_in_bytes", memory)
    _try_write(paths["memory"], "memory.memsw.limit_in_bytes", memory)
    _write(paths["pids"], "pids.max", str(pids))
    if "cpu" in paths:
        _try_write(paths["cpu"], "cpu.cfs_period_us", str(_PERIOD_US))
        _try_write(paths["cpu"], "cpu.cfs_quota_us", str(cpus * _PERIOD_US))
    return group


def enter(group: Group | None) -> None:
    """Move the calling process into the group; its children are born there."""
    if group is None:
        return
    # A single-threaded process that moves itself by `tasks` spares the kernel a machine-wide lock
    # that costs milliseconds; version 2 has that file for threads only.
    name = "tasks" if group["version"] == 1 else "cgroup.procs"
    for path in group["paths"].values():
        _write(path, name, "0")


def set_frozen(group: Group, *, frozen: bool) -> bool:
    """Freeze or thaw; waits until it is so. False if the group cannot freeze."""
    if group["version"] == 2:
        folder = group["paths"]["all"]
        _write(folder, "cgroup.freeze", "1" if frozen else "0")
        return _wait_for(folder, "cgroup.events", f"frozen {int(frozen)}")
    if "freezer" not in group["paths"]:
        return False
    folder = group["paths"]["freezer"]
    word = "FROZEN" if frozen else "THAWED"
    _write(folder, "freezer.state", word)
    return _wait_for(folder, "freezer.state", word)


def is_frozen(group: Group) -> bool:
    """Return whether the group is frozen, as the kernel tells it."""
    if group["version"] == 2:
        return "frozen 1" in _read(group["paths"]["all"], "cgroup.events")
    return "FROZEN" in _read(group["paths"].get("freezer", ""), "freezer.state")


def can_freeze(group: Group | Parents) -> bool:
    return group["version"] == 2 or "freezer" in group["paths"]


def remove(group: Group) -> None:
    """Remove an emptied group; the kernel may need a moment to see that it is empty."""
    for path in group["paths"].values():
        for _attempt in range(_REMOVAL_ATTEMPTS):
            try:
                Path(path).rmdir()
            except FileNotFoundError:
                break
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
                time.sleep(0.01)
            else:
                break


def list_groups(parents: Parents, prefix: str) -> dict[str, Group]:
    """Return every group there is whose name starts with the prefix, by the rest of its name."""
    found: dict[str, Group] = {}
    for key, parent in parents["paths"].items():
        for folder in Path(parent).glob(f"{prefix}*"):
            name = folder.name[len(prefix) :]
            group = found.setdefault(name, {"version": parents["version"], "paths": {}})
            group["paths"][key] = str(folder)
    return found


def list_processes(group: Group) -> list[int]:
    for path in group["paths"].values():
        return [int(line) for line in _read(path, "cgroup.procs").split()]
    return []


def read_cpu_s(group: Group) -> float | None:
    """Return the CPU seconds used since the group was made."""
    if group["version"] == 2:
        for line in _read(group["paths"]["all"], "cpu.stat").splitlines():
            if line.startswith("usage_usec "):
                return int(line.split()[1]) / 1e6
        return None
    text = _read(group["paths"].get("cpuacct", ""), "cpuacct.usage")
    return int(text) / 1e9 if text else None


def read_memory(group: Group) -> tuple[int, int] | None:
    """Return the bytes in use, and the bytes of cache among them."""
    version_2 = group["version"] == 2
    folder = group["paths"]["all" if version_2 else "memory"]
    used = _read(folder, "memory.current" if version_2 else "memory.usage_in_bytes")
    if not used:
        return None
    key = "file " if version_2 else "total_cache "
    lines = _read(folder, "memory.stat").splitlines()
    cache = sum(int(line.split()[1]) for line in lines if line.startswith(key))
    return int(used), cache


def _find_v1() -> Parents | None:
    own = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _number, names, path = line.split(":", 2)
        own.update(dict.fromkeys(names.split(","), path))
    paths = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _dash, tail = line.partition(" - ")
        kind, _source, options = tail.split(" ", 2)
        if kind != "cgroup":
            continue
        _id, _parent, _device, root, point = fields.split(" ")[:5]
        for name in set(_V1_CONTROLLERS) & set(options.split(",")) & set(own):
            below = own[name].removeprefix(root.rstrip("/"))
            folder = f"{point}/{below.strip('/')}".rstrip("/")
            if os.access(folder, os.W_OK):
                paths[name] = folder
    if not {"memory", "pids"} <= set(paths):
        return None
    return {"version": 1, "paths": paths}


def _find_v2() -> Parents | None:
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    points = [line.split(" ")[4] for line in mounts if " - cgroup2 " in line]
    own = [
        line[3:]
        for line in Path("/proc/self/cgroup").read_text().splitlines()
        if line.startswith("0::")
    ]
    if not points or not own:
        return None
    candidates = [f"{points[0]}/{own[0].strip('/')}".rstrip("/")]
    if os.geteuid() == 0:
        candidates.append(points[0])
    for folder in candidates:
        if _delegates(folder):
            return {"version": 2, "paths": {"all": folder}}
    return None


def _delegates(folder: str) -> bool:
    if not os.access(folder, os.W_OK) or not os.access(f"{folder}/cgroup.procs", os.W_OK):
        return False
    offered = _read(folder, "cgroup.controllers").split()
    if not {"memory", "pids"} <= set(offered):
        return False
    wanted = " ".join(f"+{name}" for name in _V2_CONTROLLERS if name in offered)
    try:
        # Refused while processes sit in this very group, unless it is the root or already so.
        _write(folder, "cgroup.subtree_control", wanted)
    except OSError:
        return {"memory", "pids"} <= set(_read(folder, "cgroup.subtree_control").split())
    return True


def _wait_for(folder: str, name: str, word: str) -> bool:
    deadline = time.monotonic() + _FREEZE_WAIT_S
    while word not in _read(folder, name):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.0005)
    return True


def _read(folder: str, name: str) -> str:
    try:
        return Path(folder, name).read_text()
    except OSError:
        return ""


def _write(folder: str, name: str, text: str) -> None:
    # Every command goes through here a few times, so this is as direct as it gets.
    fd = os.open(f"{folder}/{name}", os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _try_write(folder: str, name: str, text: str) -> None:
    try:
        _write(folder, name, text)
    except OSError:
        # The controller is absent or bounded above; the limits that matter are written for sure.
        return
