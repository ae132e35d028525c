"""Run the suite on all cores, run once more alone what failed, and remember what needed that.

The machines that run this are shared, so a test may fail for a neighbour's load. It may also have
a race that only shows beside others. So every retry that helped is written to a ledger, and the run
fails when it needed too many of them, or when the same test needs one again and again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

LEDGER = Path(".flaky.jsonl")
"""One line for each run: its time, its commit, and the tests that passed only when run alone."""
LAST_FAILED = Path(".pytest_cache/v/cache/lastfailed")
PYTEST = (sys.executable, "-m", "pytest")
FAILED = 1
"""Pytest's exit code when tests failed; others, such as an interruption, are not retried."""

RUNS_JUDGED = 10
RETRIES_MAX = 5
"""How many tests of one run may need the retry: one in a thousand."""
REPEATS_MAX = 1
"""In how many of the judged runs the same test may need it."""
RUNS_KEPT = 100


def main() -> int:
    workers = os.environ.get("TEST_WORKERS", "2")
    status = _run("-n", workers, "--dist", "worksteal", "--cache-clear")
    flaky: list[str] = []
    if status == FAILED:
        print("== failed beside others: once more, alone", flush=True)
        failed = _read_failed()
        status = _run("--last-failed", "--last-failed-no-failures", "none")
        flaky = sorted(failed - _read_failed())
    runs = _record(flaky)
    complaints = judge(runs)
    _print_table(runs)
    for complaint in complaints:
        print(f"== {complaint}")
    return status or (FAILED if complaints else 0)


def judge(runs: list[dict[str, Any]]) -> list[str]:
    """Return why the last of these runs fails, although each of its tests passed in the end."""
    flaky = runs[-1]["flaky"]
    complaints = []
    if len(flaky) > RETRIES_MAX:
        complaints.append(f"{len(flaky)} tests needed the retry; at most {RETRIES_MAX} may")
    for test in flaky:
        count = count_retries(test, runs)
        if count > REPEATS_MAX:
            complaints.append(f"{test} needed the retry in {count} of the last {RUNS_JUDGED} runs")
    return complaints


def count_retries(test: str, runs: list[dict[str, Any]]) -> int:
    return sum(test in run["flaky"] for run in runs[-RUNS_JUDGED:])


def _run(*arguments: str) -> int:
    return subprocess.run([*PYTEST, *arguments], check=False).returncode


def _read_failed() -> set[str]:
    return set(json.loads(LAST_FAILED.read_text())) if LAST_FAILED.exists() else set()


def _record(flaky: list[str]) -> list[dict[str, Any]]:
    """Add this run to the ledger, and return every run in it."""
    lines = LEDGER.read_text().splitlines() if LEDGER.exists() else []
    time = datetime.now(UTC).isoformat(timespec="seconds")
    lines.append(json.dumps({"time": time, "commit": _read_commit(), "flaky": flaky}))
    kept = lines[-RUNS_KEPT:]
    LEDGER.write_text("".join(f"{line}\n" for line in kept))
    return [json.loads(line) for line in kept]


def _read_commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def _print_table(runs: list[dict[str, Any]]) -> None:
    flaky = runs[-1]["flaky"]
    if flaky:
        print(f"== passed only alone (and in how many of the last {RUNS_JUDGED} runs):")
    for test in flaky:
        print(f"   {count_retries(test, runs):2}  {test}")


if __name__ == "__main__":
    sys.exit(main())
