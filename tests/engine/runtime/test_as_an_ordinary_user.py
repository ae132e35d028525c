"""The runtime's tests once more, as a user without any privilege."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from support.ordinary_user import run_unprivileged

HERE = Path(__file__).resolve().parent
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


@pytest.mark.timeout(600)
@pytest.mark.skipif(os.geteuid() != 0, reason="already an ordinary user")
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is not installed")
def test_all_of_it_works_without_privileges() -> None:
    names = ("test_sandboxes", "test_recovery", "test_escapes", "test_workers")
    files = [f"{HERE}/{name}.py" for name in names]
    chosen = " and ".join(f"not {word}" for word in SAME_FOR_ALL)
    assert run_unprivileged(*files, "-k", chosen) >= AT_LEAST
