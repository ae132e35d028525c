"""Let hundreds of real sandboxes wake, work and sleep for a while: `make soak`.

Sandboxes are used in turn at a fixed rate: each is leased, which wakes it, runs a command through
the official SDK, is released, and falls asleep when it was idle for long enough. Each slice of the
time prints what keeper and engine hold in memory and how long the steps took. The first slices warm
up and are not judged. At the end, memory must not have grown and no step may have become slower.
"""

from __future__ import annotations

import argparse
import itertools
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from e2b import Sandbox
from rich.console import Console

from bench.load import percentile
from bench.processes import (
    RunningEngine,
    RunningKeeper,
    engine_running,
    keeper_running,
    read_resident_bytes,
)
from bench.report import Report, Row

PART = "soak"
SLICES = 10
WARM_UP = 2
"""Slices that are printed and not judged: caches fill, and every sandbox is used for the first
time."""
IDLE_S = 15
USED_EVERY_S = 75.0
"""Between two uses of one sandbox: it sleeps for most of that time."""
WORKERS = 8
COMMAND = "date >> soak.log; tail -n 100 soak.log > last; seq 5000 | md5sum"
STEPS = ("wake", "command", "status")
GROWTH_MAX = 10.0
"""Percent. Lower fails on what an allocator keeps; higher hides a leak of a short run."""
SLOWER_MAX = 1.5


@dataclass(slots=True)
class Slice:
    """What one part of the time showed; memory is in MB, at its end."""

    took_s: dict[str, list[float]] = field(default_factory=lambda: {step: [] for step in STEPS})
    failures: list[str] = field(default_factory=list)
    memory: dict[str, float] = field(default_factory=dict)


def main() -> None:
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--sandboxes", type=int, default=300)
    given = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    report = Report()
    with report.measuring(PART):
        judge(report, soak(minutes=given.minutes, sandboxes=given.sandboxes))
    report.render()
    Console(stderr=True).print(f"written to {report.save()}")
    if report.failed or any(row.is_met is False for row in report.rows):
        sys.exit("soak: not passed")


def soak(*, minutes: float, sandboxes: int) -> list[Slice]:
    """Run the whole load, and return what each slice showed."""
    with (
        engine_running() as engine,
        keeper_running(
            provider_url=engine.url,
            creations_per_s=50,
            idle_timeout_s=IDLE_S,
            newborn_grace_s=5,
            woken_grace_s=5,
        ) as keeper,
        keeper.client() as client,
        ThreadPoolExecutor(WORKERS) as pool,
    ):
        names = [f"soak-{number}" for number in range(sandboxes)]
        list(pool.map(lambda name: create(client, name), names))
        print(f"{sandboxes} sandboxes; a use of each every {USED_EVERY_S:.0f} s", flush=True)
        return run_slices(
            keeper,
            engine,
            lambda name, seen: use(client, engine, name, seen),
            names,
            minutes * 60 / SLICES,
        )


def run_slices(
    keeper: RunningKeeper,
    engine: RunningEngine,
    use_one: Callable[[str, Slice], None],
    names: Sequence[str],
    slice_s: float,
) -> list[Slice]:
    """Use the sandboxes in turn until every slice is over, and print each."""
    slices = [Slice() for _ in range(SLICES)]
    turns = itertools.count()
    started = time.monotonic()
    is_over = threading.Event()

    def work() -> None:
        while True:
            turn = next(turns)
            due = started + turn * USED_EVERY_S / len(names)
            if is_over.wait(max(0.0, due - time.monotonic())):
                return
            number = int((time.monotonic() - started) / slice_s)
            if number >= SLICES:
                return
            use_one(names[turn % len(names)], slices[number])

    workers = [threading.Thread(target=work, daemon=True) for _ in range(WORKERS)]
    for worker in workers:
        worker.start()
    try:
        for number, one in enumerate(slices):
            time.sleep(max(0.0, started + (number + 1) * slice_s - time.monotonic()))
            one.memory = {
                "keeper": keeper.resident_bytes() / 1e6,
                "engine": read_family_bytes(engine.pid) / 1e6,
            }
            print_slice(number, one, slice_s)
    finally:
        is_over.set()
        for worker in workers:
            worker.join(120)
    return slices


def create(client: httpx.Client, name: str) -> None:
    client.put(f"/api/sandboxes/{name}", json={}).raise_for_status()


def use(client: httpx.Client, engine: RunningEngine, name: str, seen: Slice) -> None:
    """Wake one sandbox, work in it and let it go; note what fails and go on."""

    def timed(step: str, act: Callable[[], object]) -> None:
        began = time.perf_counter()
        act()
        seen.took_s[step].append(time.perf_counter() - began)

    try:
        leased: list[httpx.Response] = []
        timed("wake", lambda: leased.append(client.post(f"/api/sandboxes/{name}/leases", json={})))
        answer = leased[0].raise_for_status().json()
        inside = Sandbox.connect(answer["connection"]["instanceId"], timeout=600, **engine.options)
        timed("command", lambda: inside.commands.run(COMMAND))
        timed("status", lambda: client.get(f"/api/sandboxes/{name}/status").raise_for_status())
        client.delete(f"/api/leases/{answer['lease']['id']}").raise_for_status()
    except Exception as error:  # noqa: BLE001 - It is counted, and the load goes on.
        seen.failures.append(f"{name}: {type(error).__name__}: {error}")


def read_family_bytes(pid: int) -> int:
    """Return the memory of the engine and of its spawner, not that of what they run."""
    own = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    total = read_resident_bytes(pid)
    for child in own:
        with suppress(OSError):
            total += read_resident_bytes(int(child))
    return total


def print_slice(number: int, one: Slice, slice_s: float) -> None:
    steps = "  ".join(
        f"{step} {_percentile_ms(times, 0.5):.0f}/{_percentile_ms(times, 0.99):.0f} ms"
        for step, times in one.took_s.items()
    )
    memory = "  ".join(f"{name} {size:.1f} MB" for name, size in one.memory.items())
    print(
        f"{(number + 1) * slice_s / 60:6.1f} min  {len(one.took_s['command']):5} uses  "
        f"{steps}  {memory}  {len(one.failures)} failed",
        flush=True,
    )
    for failure in one.failures[:3]:
        print(f"    {failure}", flush=True)


def judge(report: Report, slices: Sequence[Slice]) -> None:
    """Compare the end with the beginning, without the slices that warm up."""
    judged = slices[WARM_UP:]
    for name in ("keeper", "engine"):
        sizes = [one.memory[name] for one in judged]
        slope = statistics.linear_regression(range(len(sizes)), sizes).slope
        growth = 100 * slope * (len(sizes) - 1) / statistics.mean(sizes)
        note = f"{sizes[0]:.1f} … {sizes[-1]:.1f} MB"
        row = Row(
            PART, f"memory of the {name} grows by", growth, "%", at_most=GROWTH_MAX, note=note
        )
        report.add(row)
    for step in STEPS:
        first, last = (_percentile_ms(one.took_s[step], 0.5) for one in (judged[0], judged[-1]))
        note = f"{first:.1f} … {last:.1f} ms"
        ratio = last / first if first else float("inf")
        report.add(Row(PART, f"{step}: last / first", ratio, "x", at_most=SLOWER_MAX, note=note))
    failures = sum(len(one.failures) for one in slices)
    report.add(Row(PART, "failed uses", failures, "", at_most=0))


def _percentile_ms(times: Sequence[float], share: float) -> float:
    return percentile(times, share) * 1000


if __name__ == "__main__":
    main()
