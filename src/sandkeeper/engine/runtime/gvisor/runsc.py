"""The program `runsc`: where it is, what it can do, and whether it works on this machine."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from typing import Any

from sandkeeper.engine.runtime.bubblewrap import binaries
from sandkeeper.engine.runtime.contract import Isolation, RuntimeFaultError
from sandkeeper.engine.runtime.linux import cgroups

_FLAGS = (
    # The sandbox's own network namespace: its addresses, routes and filters hold as they are.
    "--network=host",
    # What the files API writes is seen inside at once, and the other way round.
    "--file-access=shared",
    # The sandbox's control group is entered before.
    "--ignore-cgroups",
    # Changes go to the sandbox's disk.
    "--overlay2=none",
)
_NO_DIRECT_FILES = "--directfs=false"
"""Only the gofer opens files; without this, newer versions let the sentry do so."""
_PLACES = "/usr/local/bin:/usr/bin:/usr/local/sbin:/usr/sbin"
_COMPLETE_SINCE = 2023_00_00
_TRIAL_S = 30.0


def find_program() -> str:
    """Return the path of the program. Raises RuntimeFaultError where it cannot be used."""
    if binaries.find_uid_base() is None:
        raise RuntimeFaultError(
            "gVisor needs an engine that runs as root, because the ids of its programs need a "
            "range of ids on the host: start the engine as root, or use the runtime bubblewrap"
        )
    path = shutil.which("runsc", path=f"{os.environ.get('PATH', '')}:{_PLACES}")
    if path is None:
        raise RuntimeFaultError("gVisor's program runsc is missing: sudo apt-get install runsc")
    parents = cgroups.find_parents()
    if parents is None or not cgroups.can_freeze(parents):
        raise RuntimeFaultError(
            "gVisor needs control groups that can freeze: mount the freezer, or cgroup version 2"
        )
    return path


@functools.cache
def list_flags(program: str) -> tuple[str, ...]:
    """Return the flags for every call of this program."""
    known = _ask(program, "flags")
    return (
        (*_FLAGS, _NO_DIRECT_FILES) if re.search(r"^\s+-directfs", known, re.MULTILINE) else _FLAGS
    )


def describe() -> str:
    """Return which program runs, on which platform, and what it lacks.

    Tries it with a real program. Raises RuntimeFaultError where it does not work.
    """
    program = find_program()
    trial = [program, *list_flags(program)[2:], "--network=none", "do", "/bin/true"]
    try:
        done = subprocess.run(
            trial, capture_output=True, text=True, timeout=_TRIAL_S, check=False, cwd="/"
        )
    except subprocess.TimeoutExpired:
        raise RuntimeFaultError(f"{program} did not end within {_TRIAL_S:.0f} s") from None
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise RuntimeFaultError(f"{program} starts no program: {lines[-1] if lines else 'no word'}")
    version = _read_version(program)
    platform = re.search(r"platform to use: (\w+) \(default\)", _ask(program, "flags"))
    found = f"{program} ({version}, platform {platform[1] if platform else 'not told'})"
    if _is_incomplete(version):
        found += (
            "; before 2023 it refuses a flag of statx, so `ls FOLDER` and `stat` of newer systems "
            "fail inside: install a newer one into /usr/local/bin"
        )
    return found


def _is_incomplete(version: str) -> bool:
    date = re.search(r"20\d{6}", version)
    return date is not None and int(date[0]) < _COMPLETE_SINCE


def _read_version(program: str) -> str:
    return _ask(program, "--version").partition("\n")[0].removeprefix("runsc version ")


def _ask(program: str, *words: str) -> str:
    answer = subprocess.run([program, *words], capture_output=True, text=True, check=False)
    return answer.stdout + answer.stderr


def describe_program(isolation: Isolation) -> dict[str, Any]:
    """Return the part of a boot order that gVisor needs. Raises RuntimeFaultError without it."""
    if isolation is not Isolation.GVISOR:
        return {}
    program = find_program()
    return {"runsc": program, "flags": list(list_flags(program))}
