"""Measure wakes and kept files on real sandboxes: our own share, beside the provider's.

The provider's part is measured, not estimated: the keeper counts how long it waits for each call to
the provider, and for each command and transfer inside the sandbox (the walk that compares files
runs there), less the time it needs itself to produce the bytes that it sends. Our own share is the
whole request less that. Everything the keeper does without waiting for the provider is ours: the
record's writes, reading and verifying the kept contents, the wait for a free slot.
"""

from __future__ import annotations

import contextlib
import io
import os
import statistics
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import httpx
from e2b import Sandbox

from bench.databases import Postgres, Sqlite, postgres, sqlite
from bench.processes import RunningEngine, engine_running, keeper_running
from bench.report import Report, Row

PART = "wake"
PROVIDER_SUM = "sandkeeper_provider_request_duration_seconds_sum{"
RESUMES = 15
RECREATIONS = 5
CAPTURES = 5
HYDRATIONS = 3
SURVIVALS = 3
NO_CAPTURE_S = 3600
"""Between two captures that nothing asked for, so that the measured one finds all files new."""
APP_PORT = 8000
MANY_FILES = """
import os, sys
for n in range(int(sys.argv[1])):
    os.makedirs(f"tree/{n % 100}", exist_ok=True)
    with open(f"tree/{n % 100}/{n}", "w") as file:
        file.write(str(n) * 20)
"""
LARGE_FILE = "head -c 50000000 /dev/urandom > large && truncate -s 1G large"
DENSE_FILE = "head -c 1073741824 /dev/urandom > large"
DIGEST = "find tree large -type f 2>/dev/null | sort | xargs sha256sum | sha256sum"


@dataclass(frozen=True, slots=True)
class Tree:
    """Files that are made inside by a command, and the goals for their way out and back."""

    name: str
    line: str
    files: int
    capture_ms: float
    wake_ms: float


TREES = (
    Tree("50,000 files", "python3 many.py 50000", 50_000, 3000, 4000),
    Tree("a file of 1 GiB, 50 MB of it data", LARGE_FILE, 1, 2000, 2000),
    Tree("a file of 1 GiB without holes", DENSE_FILE, 1, 2000, 2000),
)


@dataclass(frozen=True, slots=True)
class Woken:
    """The duration of one wake, and the part that the keeper waited for the provider."""

    whole_s: float
    provider_s: float

    @property
    def own_s(self) -> float:
        return self.whole_s - self.provider_s


def run(report: Report) -> None:
    with engine_running() as engine, sqlite() as embedded, postgres() as shared:
        for database in (embedded, shared):
            if database is None:
                continue
            with keeper_of(engine, database) as client:
                resume(report, client, engine, database.name)
                resume_app(report, client, engine, database.name)
                recreate(report, client, engine, database.name)
        with keeper_of(engine, embedded) as client:
            capture(report, client, engine)
            hydrate(report, client, engine)
            for tree in TREES:
                survive(report, client, engine, tree)


@contextlib.contextmanager
def keeper_of(engine: RunningEngine, database: Postgres | Sqlite) -> Iterator[httpx.Client]:
    """Run a keeper over a new database, and yield a client of it."""
    with (
        keeper_running(
            provider_url=engine.url,
            database=database.make(),
            creations_per_s=50,
            idle_timeout_s=3600,
            capture_min_interval_s=NO_CAPTURE_S,
            files_checkpoint_s=NO_CAPTURE_S,
        ) as keeper,
        keeper.client() as client,
    ):
        client.timeout = 300
        yield client


def resume(report: Report, client: httpx.Client, engine: RunningEngine, database: str) -> None:
    """Measure a sandbox with a few files and without an app: pause by hand, and wake."""
    create(client, "resumed", pack(count=10, size=1024))
    bare = Sandbox.create(timeout=3600, **engine.options)
    wakes: list[Woken] = []
    pauses, bare_pauses, connects = [], [], []
    for _ in range(RESUMES):
        pauses.append(time_pause(client, "resumed"))
        wakes.append(time_wake(client, "resumed"))
        bare_pauses.append(time_call(bare.pause))
        connects.append(time_call(lambda: connect(bare.sandbox_id, engine)))
    bare.kill()
    report.add_times(PART, f"floor: the engine's own pause, {database}", bare_pauses)
    report.add_times(PART, f"pause by hand, nothing changed, {database}", pauses, at_most=20)
    report.add_times(PART, f"floor: the engine's own resume, {database}", connects)
    name = f"wake of a sleeping sandbox, {database}"
    report.add_times(PART, name, [one.whole_s for one in wakes], at_most=25)
    report.add_times(PART, "the provider's part of it", [one.provider_s for one in wakes])
    report.add_times(PART, "our own share of it", [one.own_s for one in wakes], at_most=30)


def resume_app(report: Report, client: httpx.Client, engine: RunningEngine, database: str) -> None:
    """Measure a sandbox whose app answers as soon as it is resumed."""
    launch = {"startCommand": f"python3 -m http.server {APP_PORT}", "port": APP_PORT}
    create(client, "served", pack(count=10, size=1024), launch)
    floors, wakes = [], []
    probe = httpx.Client(base_url=engine.url)
    for _ in range(RESUMES):
        instance_id = instance_of(client, "served")
        client.post("/api/sandboxes/served/pause").raise_for_status()
        floors.append(time_call(lambda: connect_and_probe(instance_id, engine, probe)))  # noqa: B023  Called at once.
        client.post("/api/sandboxes/served/verify").raise_for_status()
        client.post("/api/sandboxes/served/pause").raise_for_status()
        wakes.append(time_wake(client, "served").whole_s)
    probe.close()
    report.add_times(PART, f"floor: the engine's resume and one probe, {database}", floors)
    name = f"wake of a sleeping sandbox with an app, {database}"
    report.add_times(PART, name, wakes, at_most=40)


def recreate(report: Report, client: httpx.Client, engine: RunningEngine, database: str) -> None:
    create(client, "recreated", pack(count=500, size=10_000))
    wakes: list[Woken] = []
    creations = []
    for _ in range(RECREATIONS):
        lose(client, "recreated", engine)
        wakes.append(time_wake(client, "recreated"))
        started = time.perf_counter()
        bare = Sandbox.create(timeout=3600, **engine.options)
        creations.append(time.perf_counter() - started)
        bare.kill()
    name = f"wake of a lost sandbox, 500 files of 10 KB, {database}"
    report.add_times(PART, f"floor: the engine's own creation, {database}", creations)
    report.add_times(PART, name, [one.whole_s for one in wakes], at_most=200)
    report.add_times(PART, "the provider's part, with the files", [one.provider_s for one in wakes])
    name = "our own share of it, with the files"
    report.add_times(PART, name, [one.own_s for one in wakes], at_most=150)


def capture(report: Report, client: httpx.Client, engine: RunningEngine) -> None:
    create(client, "captured")
    inside = Sandbox.connect(instance_of(client, "captured"), timeout=3600, **engine.options)
    inside.files.write("many.py", MANY_FILES)
    inside.commands.run("python3 many.py 10000", timeout=120)
    times = []
    for _ in range(CAPTURES + 1):
        started = time.perf_counter()
        client.post("/api/sandboxes/captured/capture").raise_for_status()
        times.append(time.perf_counter() - started)
    report.add_times(PART, "capture of 10,000 files with nothing changed", times[1:], at_most=500)


def hydrate(report: Report, client: httpx.Client, engine: RunningEngine) -> None:
    """Measure 100 MB of files into a new sandbox, beside one plain tar of them through the SDK."""
    packed = pack(count=100, size=1_000_000)
    create(client, "hydrated", packed)
    ratios, floors = [], []
    for _ in range(HYDRATIONS):
        lose(client, "hydrated", engine)
        time_wake(client, "hydrated")
        last = client.get("/api/sandboxes/hydrated/wake").json()
        took = next(one["tookMs"] for one in last["steps"] if one["name"] == "restoring_files")
        floors.append(time_tar(engine, packed))
        ratios.append(floors[-1] * 1000 / took)
    report.add_times(PART, "floor: 100 MB as one plain tar", floors)
    report.add(
        Row(
            PART,
            "hydration of 100 MB / the plain tar's speed",
            statistics.median(ratios),
            "x",
            low=min(ratios),
            high=max(ratios),
            at_least=0.5,
        )
    )


def survive(report: Report, client: httpx.Client, engine: RunningEngine, tree: Tree) -> None:
    """Capture, lose and restore files, beside one plain tar of them through the SDK.

    The restored files have the digest of the originals.
    """
    outs, ins, captures, wakes = [], [], [], []
    for number in range(SURVIVALS):
        project = f"survived-{len(tree.name)}-{number}"
        create(client, project)
        inside = Sandbox.connect(instance_of(client, project), timeout=3600, **engine.options)
        inside.files.write("many.py", MANY_FILES)
        # This one takes the place of the background's first capture, which would come in between.
        client.post(f"/api/sandboxes/{project}/capture").raise_for_status()
        inside.commands.run(tree.line, timeout=180)
        before = inside.commands.run(DIGEST, timeout=180).stdout
        started = time.perf_counter()
        captured = client.post(f"/api/sandboxes/{project}/capture").raise_for_status()
        captures.append(time.perf_counter() - started)
        if captured.json()["changed"] < tree.files:
            raise RuntimeError(f"another capture came first: {captured.text}")
        out_s, packed = time_tar_out(inside)
        outs.append(out_s)
        ins.append(time_tar(engine, packed))
        lose(client, project, engine)
        wakes.append(time_wake(client, project).whole_s)
        back = Sandbox.connect(instance_of(client, project), timeout=3600, **engine.options)
        if back.commands.run(DIGEST, timeout=180).stdout != before:
            raise RuntimeError(f"{tree.name} did not come back as they were")
        client.delete(f"/api/sandboxes/{project}").raise_for_status()
    report.add_times(PART, f"floor: {tree.name}, one plain tar out", outs)
    report.add_times(PART, f"capture of {tree.name}, all new", captures, at_most=tree.capture_ms)
    report.add_times(PART, f"floor: {tree.name}, one plain tar in", ins)
    name = f"wake of a lost sandbox, {tree.name}"
    report.add_times(PART, name, wakes, at_most=tree.wake_ms)


def time_tar_out(inside: Sandbox) -> tuple[float, bytes]:
    started = time.perf_counter()
    inside.commands.run("tar -cSf /tmp/all.tar $(ls -d tree large 2>/dev/null)", timeout=180)
    pieces = list(inside.files.read("/tmp/all.tar", format="stream", request_timeout=120))
    took = time.perf_counter() - started
    inside.commands.run("rm /tmp/all.tar")
    return took, b"".join(pieces)


def time_tar(engine: RunningEngine, packed: bytes) -> float:
    bare = Sandbox.create(timeout=3600, **engine.options)
    try:
        started = time.perf_counter()
        bare.files.write("all.tar", packed, request_timeout=120)
        bare.commands.run("mkdir all && tar -xf all.tar -C all", timeout=120)
        return time.perf_counter() - started
    finally:
        bare.kill()


def create(
    client: httpx.Client,
    project: str,
    packed: bytes = b"",
    launch: Mapping[str, object] | None = None,
) -> None:
    """Create a running sandbox with these files kept."""
    client.put(f"/api/sandboxes/{project}", json=launch or {}).raise_for_status()
    deadline = time.monotonic() + 60
    while not client.get(f"/api/sandboxes/{project}/status").json()["ready"]:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the sandbox of {project} does not run")
        time.sleep(0.02)
    if packed:
        headers = {"content-type": "application/x-tar"}
        client.put(
            f"/api/sandboxes/{project}/archive", content=packed, headers=headers
        ).raise_for_status()


def lose(client: httpx.Client, project: str, engine: RunningEngine) -> None:
    """End the instance without the keeper's knowledge."""
    Sandbox.kill(instance_of(client, project), **engine.options)


def instance_of(client: httpx.Client, project: str) -> str:
    return str(client.get(f"/api/sandboxes/{project}/status").json()["instanceId"])


def time_wake(client: httpx.Client, project: str) -> Woken:
    before_s = read_provider_s(client)
    started = time.perf_counter()
    woken = client.post(f"/api/sandboxes/{project}/wake", params={"wait": 120})
    took = time.perf_counter() - started
    if woken.status_code != 200 or woken.json()["status"] != "succeeded":
        raise RuntimeError(f"{project} was not woken: {woken.text}")
    return Woken(took, read_provider_s(client) - before_s)


def time_pause(client: httpx.Client, project: str) -> float:
    """Pause a sandbox whose files were compared and captured since it was woken."""
    client.post(f"/api/sandboxes/{project}/capture").raise_for_status()
    return time_call(lambda: client.post(f"/api/sandboxes/{project}/pause").raise_for_status())


def time_call(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def connect(instance_id: str, engine: RunningEngine) -> None:
    Sandbox.connect(instance_id, timeout=3600, **engine.options)


def connect_and_probe(instance_id: str, engine: RunningEngine, probe: httpx.Client) -> None:
    connect(instance_id, engine)
    headers = {"E2b-Sandbox-Id": instance_id, "E2b-Sandbox-Port": str(APP_PORT)}
    probe.get("/", headers=headers).raise_for_status()


def read_provider_s(client: httpx.Client) -> float:
    """Return how long the keeper has waited for the provider, calls and work inside together."""
    page = client.get("/metrics").raise_for_status().text
    lines = (line for line in page.splitlines() if line.startswith(PROVIDER_SUM))
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def pack(*, count: int, size: int) -> bytes:
    """Return a tar of different files that cannot be compressed."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for number in range(count):
            entry = tarfile.TarInfo(f"files/{number}")
            entry.size, entry.mtime = size, int(time.time())
            archive.addfile(entry, io.BytesIO(os.urandom(size)))
    return packed.getvalue()
