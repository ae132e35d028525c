"""The base once more, of an engine that has no privilege."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from support.ordinary_user import run_unprivileged

HERE = Path(__file__).resolve().parent
AT_LEAST = 12


@pytest.mark.timeout(600)
@pytest.mark.skipif(os.geteuid() != 0, reason="already an ordinary user")
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is not installed")
def test_it_is_as_usable_for_an_ordinary_user() -> None:
    files = [f"{HERE}/{name}.py" for name in ("test_programs", "test_limits", "test_packages")]
    assert run_unprivileged(*files) >= AT_LEAST
