"""Measure how long programs wait for their imports: the Python client, and the command line."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from bench.processes import hung_provider, keeper_running
from bench.report import Report

PART = "start"
ROUNDS = 15


def run(report: Report) -> None:
    with hung_provider() as provider, keeper_running(provider_url=provider) as keeper:
        key = {"SANDKEEPER_OPERATOR_KEY": keeper.key, "SANDKEEPER_URL": keeper.url}
        program = str(Path(sys.executable).with_name("sandkeeper"))
        lines: dict[str, tuple[list[str], float | None]] = {
            "floor: Python's start": ([sys.executable, "-c", "pass"], None),
            "floor: import httpx": ([sys.executable, "-c", "import httpx"], None),
            "import sandkeeper.client": ([sys.executable, "-c", "import sandkeeper.client"], 150),
            "floor: import typer and httpx": ([sys.executable, "-c", "import typer, httpx"], None),
            "sandkeeper ls": ([program, "ls"], 200),
        }
        times: dict[str, list[float]] = {name: [] for name in lines}
        for number in range(ROUNDS + 1):
            for name, (line, _goal) in lines.items():
                took = time_program(line, key)
                if number:  # The first round fills the machine's caches.
                    times[name].append(took)
    for name, (_line, goal) in lines.items():
        report.add_times(PART, name, times[name], at_most=goal)


def time_program(line: list[str], environment: Mapping[str, str]) -> float:
    started = time.perf_counter()
    subprocess.run(line, env={**os.environ, **environment}, capture_output=True, check=True)
    return time.perf_counter() - started
