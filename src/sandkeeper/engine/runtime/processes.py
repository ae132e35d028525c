"""Telling processes apart over restarts, and the record that is kept of each living sandbox.

A process id alone may be somebody else's tomorrow; with the moment it was started it is certain.
The records are files beside the sandboxes' folders: they must outlive every process of ours.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from pathlib import Path
from typing import Any, TypedDict


class Known(TypedDict):
    """A process that can be found again for certain."""

    pid: int
    started: int


def read_start(pid: int) -> int:
    """The moment a process was started, in clock ticks since the machine was; 0 if it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    fields = text.rpartition(")")[2].split()
    return 0 if fields[0] in "ZX" else int(fields[19])


def is_same(pid: int, started: int) -> bool:
    return started != 0 and read_start(pid) == started


def kill_known(known: Known) -> None:
    """End a process if it is still the one that was meant."""
    if is_same(known["pid"], known["started"]):
        with contextlib.suppress(ProcessLookupError):
            os.kill(known["pid"], signal.SIGKILL)


def read_machine() -> str:
    """What is different after every start of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def write_record(run: Path, record: dict[str, Any]) -> None:
    """Write a sandbox's record, all of it or nothing."""
    draft = run / f".{record['id']}.{os.getpid()}"
    draft.write_text(json.dumps(record))
    draft.rename(run / f"{record['id']}.json")


def read_records(run: Path) -> list[dict[str, Any]]:
    """Every record there is, whether its sandbox lives or not."""
    records = []
    for path in sorted(run.glob("*.json")):
        with contextlib.suppress(OSError, ValueError):
            records.append(json.loads(path.read_text()))
    return records


def is_living(record: dict[str, Any], machine: str) -> bool:
    """Whether the record's first process is still there."""
    return record["machine"] == machine and is_same(record["pid"], record["started"])
