"""Whatever goes wrong, in any order: nothing lost, nothing doubled, nothing healthy destroyed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from faultlab.machine import run_seed

EXAMPLES = int(os.environ.get("FAULTLAB_EXAMPLES", "25"))
SEED = int(os.environ.get("FAULTLAB_SEED", "0"))


@pytest.mark.timeout(0)
def test_no_order_of_faults_breaks_a_promise() -> None:
    run_seed(SEED, EXAMPLES)


def test_a_seed_tells_the_same_stories_in_every_process() -> None:
    command = [sys.executable, "-m", "faultlab.machine", "--seed", "263", "--examples", "3"]
    tests = str(Path(__file__).parents[1])
    running = [
        subprocess.Popen(
            command,
            env={**os.environ, "PYTHONPATH": tests, "PYTHONHASHSEED": hash_seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for hash_seed in ("1", "2")
    ]
    first, second = (process.communicate()[0] for process in running)
    assert len(first) == 65
    assert first == second
