"""The escape tests once more, with an engine that has no privilege."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from support.ordinary_user import run_unprivileged

HERE = Path(__file__).resolve().parent
AT_LEAST = 60


@pytest.mark.timeout(600)
@pytest.mark.skipif(os.geteuid() != 0, reason="already an ordinary user")
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is not installed")
def test_nothing_gets_out_of_an_ordinary_users_engine() -> None:
    names = ("test_identities", "test_kernel_files", "test_escape_probes")
    files = [f"{HERE}/{name}.py" for name in names]
    assert run_unprivileged(*files) >= AT_LEAST
