"""Measure sessions over HTTP on real sandboxes, and code in a warm context."""

from __future__ import annotations

import itertools
import json
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import httpx
from e2b import Sandbox
from e2b_code_interpreter import (  # type: ignore[import-untyped]  # It ships no types.
    Sandbox as Interpreter,
)

from bench.databases import postgres, sqlite
from bench.engine import timed
from bench.load import Plan, generate, render_request
from bench.processes import RunningEngine, RunningKeeper, engine_running, keeper_running
from bench.report import Report, Row

PART = "sessions"
TEMPLATE = "base"
LIVE_ROUNDS = 6
POOL = 12
COLD = 10
ROUNDS = 5
AT_ONCE = 40
"""New sessions of one round, from as many connections as the crowd has."""
CONNECTIONS = 16
CROWD = 1000
CROWD_WITHIN_S = 240
NUMBERS = itertools.count()


def run(report: Report) -> None:
    with (
        engine_running() as engine,
        keeper_running(provider_url=engine.url, creations_per_s=200) as keeper,
        keeper.client() as client,
    ):
        live(report, client, engine)
        cold(report, client)
        warm(report, client)
        code(report, engine)
        crowd(report, client)
    with engine_running() as engine, sqlite() as embedded, postgres() as shared:
        for database in (embedded, shared):
            if database is not None:
                url = database.make()
                with keeper_running(
                    provider_url=engine.url, database=url, creations_per_s=1000
                ) as keeper:
                    at_once(report, keeper, engine, database.name)


def live(report: Report, client: httpx.Client, engine: RunningEngine) -> None:
    """Repeat the same conversation; the health check is the same command through the SDK."""
    found = acquire(client, "live")
    inside = Sandbox.connect(str(found["sandbox"]["instanceId"]), timeout=3600, **engine.options)
    checks, acquires = [], []
    for _ in range(LIVE_ROUNDS):
        checks += timed(lambda: inside.commands.run("echo sandkeeper"), 10)
        acquires += timed(lambda: acquire(client, "live"), 10)
    floor = report.add_times(PART, "floor: the health check alone", checks)
    whole = report.add_times(PART, "acquire of a live session", acquires)
    report.add(Row(PART, "on top of the health check", whole - floor, "ms", at_most=10))


def cold(report: Report, client: httpx.Client) -> None:
    times = [time_acquire(client) for _ in range(COLD + 1)]
    report.add_times(PART, "acquire of a new session", times[1:], at_most=150)


def warm(report: Report, client: httpx.Client) -> None:
    set_pool(client, POOL)
    deadline = time.monotonic() + 120
    while ready(client) < POOL:
        if time.monotonic() > deadline:
            raise RuntimeError("the pool is not filled")
        time.sleep(0.1)
    # Half of the pool, so that every acquire finds a member while the pool fills again.
    times = [time_acquire(client) for _ in range(POOL // 2)]
    report.add_times(PART, "acquire from a warm pool", times, at_most=60)
    set_pool(client, 0)


def code(report: Report, engine: RunningEngine) -> None:
    with Interpreter.create(timeout=3600, **engine.options) as interpreter:
        report.add_times(
            PART, "run_code of `1+1`", timed(lambda: interpreter.run_code("1+1")), at_most=15
        )


def at_once(report: Report, keeper: RunningKeeper, engine: RunningEngine, name: str) -> None:
    """Open new sessions as fast as they are answered; beside it, creations at the engine alone."""

    def make(number: int) -> str:
        body = {"userId": "bench", "taskId": f"once-{next(NUMBERS)}-{number}", "template": TEMPLATE}
        return render_request(
            "POST", "/api/sessions/acquire", key=keeper.key, body=json.dumps(body).encode()
        )

    def create(_number: int) -> None:
        Sandbox.create(TEMPLATE, timeout=3600, **engine.options)

    rates, floors, processor_ms = [], [], []
    for number in range(ROUNDS + 1):
        started = time.perf_counter()
        with ThreadPoolExecutor(CONNECTIONS) as pool:
            list(pool.map(create, range(AT_ONCE)))
        floor = AT_ONCE / (time.perf_counter() - started)
        plan = Plan(keeper.port, [make(one) for one in range(AT_ONCE)], CONNECTIONS, once=True)
        cpu_s = keeper.cpu_s()
        rate = generate(plan).per_second
        if number:  # The first round imports and connects.
            floors.append(floor)
            rates.append(rate)
            processor_ms.append((keeper.cpu_s() - cpu_s) / AT_ONCE * 1000)
    report.add(summarize(f"floor: creations at once, engine alone, {name}", floors, "/s"))
    report.add(summarize(f"new sessions at once, {name}", rates, "/s", at_least=100))
    each = f"the keeper's processor time for each, {name}"
    report.add(summarize(each, processor_ms, "ms", at_most=8))


def summarize(
    name: str,
    values: Sequence[float],
    unit: str,
    *,
    at_most: float | None = None,
    at_least: float | None = None,
) -> Row:
    """Return the median of a few rounds, with the lowest and the highest."""
    middle, low, high = statistics.median(values), min(values), max(values)
    return Row(PART, name, middle, unit, low, high, at_most=at_most, at_least=at_least)


def crowd(report: Report, client: httpx.Client) -> None:
    """Run many conversations at once, each with its own sandbox; then acquire each once more."""
    started = time.monotonic()
    names = [f"crowd-{number}" for number in range(CROWD)]

    def take(name: str) -> bool:
        if time.monotonic() - started > CROWD_WITHIN_S:
            return False
        acquire(client, name)
        return True

    with ThreadPoolExecutor(16) as pool:
        opened = sum(pool.map(take, names))
    took = time.monotonic() - started
    again = [time_acquire(client, name) for name in names[:: max(1, CROWD // 50)][: opened or 1]]
    report.add(
        Row(
            PART,
            "sessions open at once",
            opened,
            "",
            at_least=CROWD,
            note=f"opened in {took:.0f} s; one of them again: "
            f"{statistics.median(again) * 1000:.0f} ms",
        )
    )


def time_acquire(client: httpx.Client, task: str | None = None) -> float:
    task = task or f"new-{next(NUMBERS)}"
    started = time.perf_counter()
    acquire(client, task)
    return time.perf_counter() - started


def acquire(client: httpx.Client, task: str) -> dict[str, dict[str, object]]:
    asked = {"userId": "bench", "taskId": task, "template": TEMPLATE}
    answer = client.post("/api/sessions/acquire", json=asked)
    if answer.status_code != 200:
        raise RuntimeError(f"no sandbox was acquired: {answer.text}")
    found: dict[str, dict[str, object]] = answer.json()
    return found


def set_pool(client: httpx.Client, target: int) -> None:
    asked = {"template": TEMPLATE, "target": target}
    client.put("/api/pools", json=asked).raise_for_status()


def ready(client: httpx.Client) -> int:
    pools = client.get("/api/pools").raise_for_status().json()["items"]
    return next((int(one["ready"]) for one in pools if one["template"] == TEMPLATE), 0)
