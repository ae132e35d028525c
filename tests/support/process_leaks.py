"""Ends every process of an engine's data folder, and finds what a test left behind.

A test may fail, be cut off or kill its engine on purpose; its sandboxes live on by design. These
functions need no engine: they find the spawner by its command line, the sandboxes below it and by
their records, and the control groups by the folder's own prefix. So they never touch
processes of other folders.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import time
from pathlib import Path

from sandkeeper.engine.runtime.egress import veth
from sandkeeper.engine.runtime.linux import cgroups, process_records
from sandkeeper.engine.runtime.spawner import orphans
from sandkeeper.engine.runtime.spawner.spawner import SOCKET_NAME
from support.eventually import eventually

_GONE_WITHIN_S = 30


def end_all(data: Path) -> None:
    """End every engine, spawner and sandbox of a data folder; returns when they are gone."""
    data = data.absolute()
    known = _find_known(data)
    groups = _list_groups(data)
    for group in groups:
        # A frozen process of version 1 takes note of its end only when it thaws.
        if cgroups.can_freeze(group) and cgroups.is_frozen(group):
            with contextlib.suppress(OSError):
                cgroups.set_frozen(group, frozen=False)
        known |= {pid: process_records.read_start(pid) for pid in cgroups.list_processes(group)}
    for pid, started in known.items():
        if process_records.is_same(pid, started):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + _GONE_WITHIN_S
    while any(process_records.is_same(pid, started) for pid, started in known.items()):
        assert time.monotonic() < deadline, f"processes of {data} do not end: {known}"
        time.sleep(0.01)
    for group in groups:
        cgroups.remove(group)
    for record in process_records.read_records(data / "run"):
        if record.get("device"):
            # The kernel is about to do the same.
            veth.disconnect(record["device"])
    veth.release()
    orphans.forget_folder(data)


def list_living(below: Path) -> list[str]:
    """Return the engines, and the processes in sandboxes, whose data lies below a folder.

    A spawner without a sandbox is no leftover: it ends by itself after a while, and with it the
    worker that waits for its next order, which looks as the spawner does.
    """
    found = []
    for pid in _list_pids():
        words = _read_words(pid)
        if not any(Path(word).is_relative_to(below) for word in words if word.startswith("/")):
            continue
        if _is_spawner(words):
            children = {child: _read_words(child) for child in _list_below(pid)}
            found += [f"{child} {line}" for child, line in children.items() if line != words]
        elif _is_engine(words):
            found.append(f"{pid} {words}")
    return found


def list_spawned_for(below: Path) -> list[Path]:
    """Return the data folders below a folder that still have a spawner."""
    spawners = (_read_words(pid) for pid in _list_pids())
    folders = (Path(words[-1]) for words in spawners if _is_spawner(words))
    return [folder for folder in folders if folder.is_relative_to(below)]


def find_spawner(data: Path) -> int | None:
    """Return the process that listens on a data folder's spawner socket; None if there is none."""
    try:
        folder = os.open(data, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return None
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            # By descriptor, because a test's folder name may exceed an address's 108 bytes.
            sock.connect(f"/proc/self/fd/{folder}/{SOCKET_NAME}")
            peer = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    except OSError:
        return None
    finally:
        os.close(folder)
    pid: int = struct.unpack("3i", peer)[0]
    return pid if process_records.read_start(pid) else None


def get_spawner(data: Path) -> int:
    """Return the process id of a data folder's spawner, which must be there."""
    pid = find_spawner(data)
    assert pid is not None, f"{data} has no spawner"
    return pid


async def kill_spawner(data: Path) -> None:
    """Kill a data folder's spawner; return when it is gone."""
    pid = get_spawner(data)
    os.kill(pid, signal.SIGKILL)
    await eventually(lambda: not process_records.read_start(pid))


def get_first_process(data: Path, sandbox_id: str) -> int:
    """Return the host's process id of a living sandbox's first process."""
    record = process_records.find_record(data / "run", sandbox_id)
    assert record is not None, f"{sandbox_id} has no record"
    assert process_records.is_living(record, process_records.read_machine()), f"{record} is dead"
    return int(record["pid"])


def _find_known(data: Path) -> dict[int, int]:
    """Engines and spawners first, so that nothing more is begun; then all sandboxes."""
    words = {pid: _read_words(pid) for pid in _list_pids()}
    pids = [pid for pid, line in words.items() if _is_engine(line) and str(data) in line]
    spawners = [pid for pid, line in words.items() if _is_spawner(line) and line[-1] == str(data)]
    pids += [*spawners, *(child for pid in spawners for child in _list_below(pid))]
    known = {pid: process_records.read_start(pid) for pid in pids}
    machine = process_records.read_machine()
    for record in process_records.read_records(data / "run"):
        if record["machine"] == machine:
            known[record["pid"]] = record["started"]
            if record["helper"]:
                known[record["helper"]["pid"]] = record["helper"]["started"]
    return known


def _list_groups(data: Path) -> list[cgroups.Group]:
    parents = cgroups.find_parents()
    if parents is None:
        return []
    return list(cgroups.list_groups(parents, cgroups.name_prefix(data)).values())


def _list_pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _list_below(pid: int) -> list[int]:
    return [
        child for child in process_records.list_children(pid) if process_records.read_start(child)
    ]


def _read_words(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").rstrip("\0").split("\0")
    except OSError:
        return []


def _is_spawner(words: list[str]) -> bool:
    return len(words) > 4 and "engine.runtime.spawner.spawner import main" in words[-3]


def _is_engine(words: list[str]) -> bool:
    return "sandkeeper.cli.main" in words and "engine" in words
