"""The run of the suite: a retry that helps is recorded, and too many of them fail the run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "run_tests.py"

#: Loading every installed plugin would take most of the time.
QUICK = {
    "TEST_WORKERS": "1",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    "PYTEST_ADDOPTS": "-p xdist",
}

FLAKY = """
from pathlib import Path

def test_passes_the_second_time(request):
    ran = Path(f"{request.node.name}-{__name__}.ran")
    if not ran.exists():
        ran.touch()
        raise AssertionError("the first time")
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """A project with one test that passes."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_good.py").write_text("def test_good(): pass\n")
    return tmp_path


def run(suite: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    return subprocess.run(
        [sys.executable, str(SCRIPT)],
        cwd=suite,
        env=environment | QUICK,
        capture_output=True,
        text=True,
        check=False,
    )


def read_ledger(suite: Path) -> list[dict[str, Any]]:
    lines = (suite / ".flaky.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def forget_first_tries(suite: Path) -> None:
    for ran in suite.glob("*.ran"):
        ran.unlink()


def test_a_retry_that_helps_is_recorded_and_the_same_test_may_not_need_it_twice(
    suite: Path,
) -> None:
    (suite / "test_flaky.py").write_text(FLAKY)
    test = "test_flaky.py::test_passes_the_second_time"
    done = run(suite)
    assert done.returncode == 0, done.stdout + done.stderr
    assert test in done.stdout.partition("== passed only alone")[2]
    assert [one["flaky"] for one in read_ledger(suite)] == [[test]]
    assert set(read_ledger(suite)[0]) == {"time", "commit", "flaky"}

    done = run(suite)
    assert done.returncode == 0, "this time it passed at once"
    assert read_ledger(suite)[-1]["flaky"] == []

    forget_first_tries(suite)
    done = run(suite)
    assert done.returncode == 1
    assert f"{test} needed the retry in 2 of the last 10 runs" in done.stdout

    quiet = [json.dumps({**one, "flaky": []}) for one in read_ledger(suite)[:1] * 9]
    with (suite / ".flaky.jsonl").open("a") as ledger:
        ledger.write("".join(f"{line}\n" for line in quiet))
    forget_first_tries(suite)
    assert run(suite).returncode == 0, "the earlier retries are more than ten runs ago"


def test_a_run_fails_when_more_than_five_tests_needed_the_retry(suite: Path) -> None:
    for number in range(6):
        (suite / f"test_flaky_{number}.py").write_text(FLAKY)
    done = run(suite)
    assert done.returncode == 1
    assert "6 tests needed the retry; at most 5 may" in done.stdout


def test_a_test_that_fails_alone_fails_the_run_and_is_not_flaky(suite: Path) -> None:
    (suite / "test_bad.py").write_text("def test_bad(): raise AssertionError\n")
    assert run(suite).returncode == 1
    assert read_ledger(suite)[-1]["flaky"] == []
