"""Identifies processes across restarts, and stores the record of each living sandbox.

A process id may be reused; together with its start time it is unique. The records are files beside
the sandboxes' folders, because they must outlive every process of the engine.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypedDict

from sandkeeper.common.private_files import open_private
from sandkeeper.engine.runtime.linux.removal import remove_tree

_SMALL_BYTES = 8192
STATE_SUFFIX = ".runsc"
"""Ends the name of the folder that `runsc` has for a sandbox."""


class Known(TypedDict):
    """A process that can be found again for certain."""

    pid: int
    started: int


def read_start(pid: int) -> int:
    """Return a process's start time, in clock ticks since the machine's boot; 0 if it has ended."""
    fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return int(fields[19]) if fields and fields[0] not in b"ZX" else 0


def read_inner(pid: int) -> int:
    """Return the process's id in the innermost namespace that it is in; 0 if it has ended."""
    return (read_ids(pid) or [0])[-1]


def read_ids(pid: int) -> list[int]:
    """Return the process's id in each namespace that it is in, the outermost first."""
    for line in _read(f"/proc/{pid}/status").splitlines():
        if line.startswith(b"NSpid:"):
            return [int(one) for one in line.split()[1:]]
    return []


def is_same(pid: int, started: int) -> bool:
    return started != 0 and read_start(pid) == started


def kill_known(known: Known) -> None:
    """End a process if it is still the one that was meant."""
    if is_same(known["pid"], known["started"]):
        with contextlib.suppress(ProcessLookupError):
            os.kill(known["pid"], signal.SIGKILL)


def list_children(pid: int) -> list[int]:
    """Return the children of a process; none if it has ended."""
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def read_machine() -> str:
    """Return the id of this boot of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def write_record(run: Path, record: dict[str, Any]) -> None:
    """Write a sandbox's record, all of it or nothing."""
    draft, kept = run / f".{record['id']}.{os.getpid()}", run / f"{record['id']}.json"
    content = json.dumps(record).encode()
    try:
        with open_private(draft, "wb") as file:
            file.write(content)
        draft.rename(kept)
    except OSError as error:
        draft.unlink(missing_ok=True)
        if error.errno not in {errno.ENOSPC, errno.EDQUOT} or not kept.exists():
            raise
        _overwrite(kept, content)


def _overwrite(path: Path, content: bytes) -> None:
    """Overwrite a file in the space it already has; JSON ignores blanks at its end."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.pwrite(fd, content.ljust(os.fstat(fd).st_size), 0)
    finally:
        os.close(fd)


@contextlib.contextmanager
def lock_boot(run: Path, sandbox_id: str) -> Iterator[None]:
    """Hold the lock for booting a sandbox or checking whether it was booted.

    A boot continues when the engine that ordered it is dead, so the next one has to wait for it.
    """
    fd = os.open(run / f"{sandbox_id}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def is_booting(run: Path, sandbox_id: str) -> bool:
    """Return whether a sandbox is being booted or was, without reading all the others."""
    return (run / f"{sandbox_id}.lock").exists()


def list_booting(run: Path) -> list[str]:
    """Return the sandboxes that are being booted or were."""
    return [path.stem for path in run.glob("*.lock")]


def find_record(run: Path, sandbox_id: str) -> dict[str, Any] | None:
    try:
        record: dict[str, Any] = json.loads((run / f"{sandbox_id}.json").read_text())
    except (OSError, ValueError):
        return None
    return record


def forget(run: Path, sandbox_id: str) -> None:
    """Remove all that is written of a sandbox here."""
    for name in (f"{sandbox_id}.json", f"{sandbox_id}.lock"):
        (run / name).unlink(missing_ok=True)
    folder = os.open(run, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(FileNotFoundError):
            remove_tree(f"{sandbox_id}{STATE_SUFFIX}", dir_fd=folder)
    finally:
        os.close(folder)


def read_records(run: Path) -> list[dict[str, Any]]:
    """Return every record there is, whether its sandbox lives or not."""
    records = []
    for path in sorted(run.glob("*.json")):
        with contextlib.suppress(OSError, ValueError):
            records.append(json.loads(path.read_text()))
    return records


def is_living(record: dict[str, Any], machine: str) -> bool:
    """Return whether the first process lives and, if the sandbox has it, gVisor's kernel."""
    kernel = record.get("sentry") or record
    return record["machine"] == machine and all(
        is_same(one["pid"], one["started"]) for one in (record, kernel)
    )


def _read(path: str) -> bytes:
    """Return the content of one of the kernel's small files; empty if it does not exist.

    Every command goes through here, so it is as direct as it gets.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, _SMALL_BYTES)
    except OSError:
        # The process ended between the two.
        return b""
    finally:
        os.close(fd)
