"""Measure what continuous capture costs 100 sandboxes in use: processor share and added latency.

Every sandbox is edited through the official SDK and is the subject of an act every few seconds. The
same load runs without captures first (`keep_files = false`), which is the floor; what the captures
add is the difference. The processor share is that of the keeper, and of all that runs for it: the
engine, its spawner and the commands inside.
"""

from __future__ import annotations

import contextlib
import os
import random
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from e2b import Sandbox

from bench.processes import RunningEngine, RunningKeeper, engine_running, keeper_running
from bench.report import Report, Row

PART = "capture"
SANDBOXES = 100
EDIT_EVERY_S = 5.0
"""Between two edits of one sandbox; each comes with an act."""
MEASURED_S = 40.0
SETTLE_S = 15.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Measured:
    """What one round of the load showed."""

    commands_s: list[float] = field(default_factory=list)
    status_s: list[float] = field(default_factory=list)
    keeper_share: float = 0.0
    whole_share: float = 0.0
    captured: int = 0


def run(report: Report) -> None:
    floor = measure(keep_files=False)
    kept = measure(keep_files=True)
    report.add_times(PART, "floor: a command, no captures", floor.commands_s)
    report.add_times(PART, "a command during captures", kept.commands_s)
    report.add_times(PART, "floor: status, no captures", floor.status_s)
    report.add_times(PART, "status during captures", kept.status_s)
    for name, before, after, most in (
        ("a command takes longer by", floor.commands_s, kept.commands_s, 20.0),
        ("a status takes longer by", floor.status_s, kept.status_s, 2.0),
    ):
        added = (statistics.median(after) - statistics.median(before)) * 1000
        report.add(Row(PART, name, added, "ms", at_most=most))
    for name, before_share, after_share in (
        ("the keeper's processor share", floor.keeper_share, kept.keeper_share),
        ("share of keeper, engine and sandboxes", floor.whole_share, kept.whole_share),
    ):
        report.add(Row(PART, f"floor: {name}", before_share, "% of a core"))
        report.add(Row(PART, name, after_share, "% of a core"))
    rate = kept.captured / MEASURED_S
    report.add(Row(PART, "versions saved", rate, "/s", note=f"{SANDBOXES} sandboxes"))


def measure(*, keep_files: bool) -> Measured:
    """Run the load once and return what it showed."""
    with (
        engine_running() as engine,
        keeper_running(
            provider_url=engine.url,
            creations_per_s=50,
            idle_timeout_s=3600,
            keep_files="true" if keep_files else "false",
        ) as keeper,
        keeper.client() as client,
    ):
        sandboxes = create_all(client, engine)
        stop = threading.Event()
        editing = threading.Thread(target=edit_until, args=(keeper, sandboxes, stop))
        editing.start()
        try:
            time.sleep(SETTLE_S)
            return observe(keeper, client, sandboxes)
        finally:
            stop.set()
            editing.join()


def create_all(client: httpx.Client, engine: RunningEngine) -> dict[str, Sandbox]:
    def create(number: int) -> tuple[str, Sandbox]:
        name = f"used-{number}"
        made = client.put(f"/api/sandboxes/{name}", json={"template": "base"})
        made.raise_for_status()
        sandbox = Sandbox.connect(made.json()["instanceId"], timeout=3600, **engine.options)
        return name, sandbox

    with ThreadPoolExecutor(8) as pool:
        return dict(pool.map(create, range(SANDBOXES)))


def edit_until(keeper: RunningKeeper, sandboxes: dict[str, Sandbox], stop: threading.Event) -> None:
    """Edit one sandbox after the other, so that each has its turn every few seconds."""
    with keeper.client() as client:
        turn = 0
        while not stop.is_set():
            for name, sandbox in sandboxes.items():
                began = time.monotonic()
                sandbox.files.write(f"/home/user/file-{turn % 20}.txt", f"{turn} {name}")
                client.post(
                    f"/api/sandboxes/{name}/activity", json={"kind": "work", "source": "bench"}
                )
                left = EDIT_EVERY_S / len(sandboxes) - (time.monotonic() - began)
                if stop.wait(max(0.0, left)):
                    return
            turn += 1


def observe(keeper: RunningKeeper, client: httpx.Client, sandboxes: dict[str, Sandbox]) -> Measured:
    """Run commands and read statuses in turn, and count the processor time of the round."""
    measured = Measured()
    chosen = random.Random(1)
    keeper_before, whole_before, began = cpu_s(keeper.pid), family_s(), time.monotonic()
    versions_before = count_captured(client)
    while time.monotonic() - began < MEASURED_S:
        name, sandbox = chosen.choice(list(sandboxes.items()))
        started = time.perf_counter()
        sandbox.commands.run("true")
        measured.commands_s.append(time.perf_counter() - started)
        started = time.perf_counter()
        client.get(f"/api/sandboxes/{name}/status").raise_for_status()
        measured.status_s.append(time.perf_counter() - started)
        time.sleep(0.1)
    took = time.monotonic() - began
    measured.keeper_share = 100 * (cpu_s(keeper.pid) - keeper_before) / took
    measured.whole_share = 100 * (family_s() - whole_before) / took
    measured.captured = count_captured(client) - versions_before
    return measured


def count_captured(client: httpx.Client) -> int:
    lines = client.get("/metrics").text.splitlines()
    start = 'sandkeeper_captures_total{outcome="captured"}'
    return int(sum(float(line.split()[-1]) for line in lines if line.startswith(start)))


def cpu_s(pid: int) -> float:
    """Return the processor time of one process so far."""
    return _read_times(pid)[0] / TICKS_PER_S


def family_s() -> float:
    """Return the processor time of all that this program started, and of what ended in it."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                children.setdefault(_read_parent(int(entry.name)), []).append(int(entry.name))
    ticks, waiting = 0, [os.getpid()]
    while waiting:
        for pid in children.get(waiting.pop(), []):
            waiting.append(pid)
            with contextlib.suppress(OSError):
                ticks += sum(_read_times(pid))
    return ticks / TICKS_PER_S


def _read_fields(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _read_parent(pid: int) -> int:
    return int(_read_fields(pid)[1])


def _read_times(pid: int) -> tuple[int, int]:
    """Return the ticks of a process, and those of its children that have ended."""
    times = [int(word) for word in _read_fields(pid)[11:15]]
    return times[0] + times[1], times[2] + times[3]
