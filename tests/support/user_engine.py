"""An engine that is run by a user of the machine who owns nothing but its data folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.engine_process import Engine

ORDINARY_UID = 65532


class UserEngine(Engine):
    """An engine run by a user who owns nothing but its data folder."""

    def command(self) -> list[str]:
        interpreter = Path("/usr/bin") / Path(sys.executable).resolve().name
        path = ":".join(part for part in sys.path if part)
        return [
            *("setpriv", f"--reuid={ORDINARY_UID}", f"--regid={ORDINARY_UID}", "--clear-groups"),
            *("env", f"HOME={self.data.parent}", "PYTHONDONTWRITEBYTECODE=1"),
            *(f"PYTHONPATH={path}", str(interpreter), "-m", "sandkeeper.cli.main", "engine"),
        ]


@contextlib.contextmanager
def make_user_engine() -> Iterator[UserEngine]:
    """Give an engine that is not started yet; its user's home is the folder of its data."""
    if os.geteuid() != 0:
        pytest.skip("the whole suite is run by an ordinary user already")
    interpreter = Path("/usr/bin") / Path(sys.executable).resolve().name
    if not interpreter.exists() or shutil.which("setpriv") is None:
        pytest.skip(f"needs setpriv, and a {interpreter} that every user may run")
    folder = Path("/tmp") / f"user-engine-{os.getpid()}"
    folder.mkdir(mode=0o700)
    os.chown(folder, ORDINARY_UID, ORDINARY_UID)
    engine = UserEngine(folder / "data")
    try:
        yield engine
    finally:
        engine.stop()
        shutil.rmtree(folder, ignore_errors=True)
