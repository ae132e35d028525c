"""Measure what the official SDK waits for, beside a bare subprocess and a static route."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import httpx
from e2b import Sandbox

from bench.processes import RunningEngine, engine_running
from bench.report import Report, Row

PART = "engine"
CROWD = 300
MULTITUDE = 2000
MEGABYTE = b"x" * (1 << 20)


def run(report: Report) -> None:
    with engine_running() as engine, contextlib.ExitStack() as stack:
        make = partial(Sandbox.create, timeout=3600, **engine.options)
        warm = make()
        stack.callback(warm.kill)
        floors(report, engine)
        containers(report)
        crowd(report, make)
        creations(report, make)
        commands(report, warm)
        sleep_and_wake(report, warm, engine)
        files(report, warm)
        ports(report, warm, engine)
        for count, goal_s in ((50, 2), (200, 3)):
            burst(report, make, count, goal_s)
        multitude(report, make, warm, engine)


def floors(report: Report, engine: RunningEngine) -> None:
    report.add_times(
        PART, "floor: a bare subprocess", timed(lambda: subprocess.run(["true"], check=True))
    )
    with httpx.Client(base_url=engine.url) as client:
        report.add_times(PART, "floor: a static route", timed(lambda: client.get("/health")))


def containers(report: Report) -> None:
    """Measure one `true` in a container over the host's own files, for each runtime found here."""
    podman = ["podman", "run", "--rm", "--network", "none", "--rootfs", "/", "true"]
    if shutil.which("podman") and works(podman):
        report.add_times(PART, "beside it: podman run", timed(partial(works, podman), 10))
    if shutil.which("runc"):
        with bundle() as runc:
            if works(runc):
                report.add_times(PART, "beside it: runc run", timed(partial(works, runc), 10))


def works(line: list[str]) -> bool:
    return subprocess.run(line, capture_output=True, check=False).returncode == 0


@contextlib.contextmanager
def bundle() -> Iterator[list[str]]:
    """Yield the command that runs `true` with runc over the host's files, with few requirements.

    The host's files are mounted in a separate namespace of the command, so that removing the
    bundle's folder can never reach them.
    """
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["runc", "spec", "--bundle", folder], check=True)
        written = Path(folder, "config.json")
        spec = json.loads(written.read_text())
        spec["process"] |= {"terminal": False, "args": ["true"], "rlimits": []}
        spec["mounts"] = [one for one in spec["mounts"] if one["type"] != "cgroup"]
        written.write_text(json.dumps(spec))
        Path(folder, "rootfs").mkdir()
        steps = f"cd {folder} && mount --bind / rootfs && exec runc run bench-{os.getpid()}"
        yield ["unshare", "--mount", "sh", "-c", steps]


def crowd(report: Report, make: Callable[[], Sandbox]) -> None:
    """Measure memory per idle sandbox, with many alive; they stay for all later measurements."""
    before = free_memory()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: make(), range(CROWD)))
    time.sleep(2)  # Let the page cache and the allocator settle before reading the difference.
    each = max(before - free_memory(), 0) / CROWD / 1e6
    report.add(Row(PART, f"memory per idle sandbox ({CROWD} alive)", each, "MB", at_most=4))


def creations(report: Report, make: Callable[[], Sandbox]) -> None:
    creates, firsts = [], []
    for _ in range(30):
        started = time.perf_counter()
        sandbox = make()
        created = time.perf_counter()
        sandbox.commands.run("true")
        firsts.append(time.perf_counter() - created)
        creates.append(created - started)
        sandbox.kill()
    report.add_times(PART, "create", creates, at_most=40)
    report.add_times(PART, "first command after create", firsts, at_most=15)


def commands(report: Report, sandbox: Sandbox) -> None:
    report.add_times(
        PART, "exec of `true`", timed(lambda: sandbox.commands.run("true"), 100), at_most=8
    )


def sleep_and_wake(report: Report, sandbox: Sandbox, engine: RunningEngine) -> None:
    pauses, resumes = [], []
    for _ in range(30):
        started = time.perf_counter()
        sandbox.pause()
        paused = time.perf_counter()
        Sandbox.connect(sandbox.sandbox_id, timeout=3600, **engine.options)
        resumes.append(time.perf_counter() - paused)
        pauses.append(paused - started)
    report.add_times(PART, "pause", pauses, at_most=15)
    report.add_times(PART, "resume", resumes, at_most=15)


def files(report: Report, sandbox: Sandbox) -> None:
    report.add_times(
        PART, "write 1 MiB", timed(lambda: sandbox.files.write("one", MEGABYTE)), at_most=15
    )
    report.add_times(
        PART, "read 1 MiB", timed(lambda: sandbox.files.read("one", format="bytes")), at_most=15
    )


def ports(report: Report, sandbox: Sandbox, engine: RunningEngine) -> None:
    """Measure a request to a server inside, with and without the proxy between."""
    server = sandbox.commands.run("python3 -m http.server 8000 --bind 127.0.0.1", background=True)
    headers = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": "8000"}
    script = Path(__file__).with_name("loopback.py").read_text()
    sandbox.files.write("loopback.py", script)
    with httpx.Client(base_url=engine.url, headers=headers) as client:
        while client.get("/").status_code != 200:
            time.sleep(0.05)
        through = report.add_times(
            PART, "request through the port proxy", timed(lambda: client.get("/"), 200)
        )
    inside = float(sandbox.commands.run("python3 loopback.py 8000").stdout)
    server.kill()
    report.add(Row(PART, "floor: the same request inside", inside, "ms"))
    report.add(Row(PART, "the proxy adds", through - inside, "ms", at_most=1.5))


def burst(report: Report, make: Callable[[], Sandbox], count: int, goal_s: int) -> None:
    with ThreadPoolExecutor(count) as pool:
        started = time.perf_counter()
        sandboxes = list(pool.map(lambda _: make(), range(count)))
        took = time.perf_counter() - started
        list(pool.map(lambda sandbox: sandbox.kill(), sandboxes))
    report.add(Row(PART, f"{count} creations at once", took, "s", at_most=goal_s))


def multitude(
    report: Report, make: Callable[[], Sandbox], warm: Sandbox, engine: RunningEngine
) -> None:
    """Measure with as many sandboxes alive as one engine takes."""
    before = free_memory()
    missing = MULTITUDE - CROWD - 1
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: make(), range(missing)))
    time.sleep(2)  # As in `crowd`.
    each = max(before - free_memory(), 0) / missing / 1e6
    alive = f"{MULTITUDE} alive"
    report.add(Row(PART, f"memory per idle sandbox ({alive})", each, "MB", at_most=4))
    headers = {"X-API-KEY": engine.options["api_key"]}
    with httpx.Client(base_url=engine.url, headers=headers) as client:
        pages = {"/v2/sandboxes": "list of 100", "/sandboxes": "list of all"}
        for path, what in pages.items():
            report.add_times(
                PART, f"{what} ({alive})", timed(partial(client.get, path)), at_most=20
            )
    report.add_times(
        PART, f"exec of `true` ({alive})", timed(lambda: warm.commands.run("true")), at_most=8
    )
    report.add(Row(PART, f"start of an engine ({alive})", engine.restart(), "s"))
    report.add_times(
        PART, "exec of `true` after that start", timed(lambda: warm.commands.run("true"))
    )


def timed(act: Callable[[], object], times: int = 50) -> list[float]:
    """Return how long the act took each time, after three unmeasured runs."""
    for _ in range(3):
        act()
    seconds = []
    for _ in range(times):
        started = time.perf_counter()
        act()
        seconds.append(time.perf_counter() - started)
    return seconds


def free_memory() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("this kernel does not tell how much memory is available")
