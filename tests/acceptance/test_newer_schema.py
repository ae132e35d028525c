"""An old program on a database of a newer version says so and ends, whatever it was asked to do."""

from __future__ import annotations

import sqlite3
import subprocess
from pathlib import Path

import pytest

from support.keeper_process import COMMAND, Keeper


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["serve", "--port", "0"], 1),
        (["db", "upgrade"], 1),
        (["db", "downgrade", "-1"], 1),
        (["db", "current"], 8),
    ],
)
def test_an_old_program_ends_with_what_to_do(tmp_path: Path, words: list[str], code: int) -> None:
    environment = Keeper(tmp_path).environment | {
        "E2B_API_URL": "http://127.0.0.1:9",
        "E2B_API_KEY": "e2b_0",
    }

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        options = {"env": environment, "capture_output": True, "text": True, "timeout": 60}
        return subprocess.run([*COMMAND, *arguments], check=False, **options)

    assert run("db", "upgrade").returncode == 0
    with sqlite3.connect(tmp_path / "sandkeeper.db") as database:
        database.execute("UPDATE alembic_version SET version_num = '9999'")
    done = run(*words)
    assert done.returncode == code
    told, hint = done.stderr.splitlines()
    assert told.startswith("A newer version of Sandkeeper has upgraded this database.")
    assert "Run the newer version" in hint
