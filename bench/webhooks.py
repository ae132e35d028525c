"""Measure deliveries end to end: from the first byte sent until the record shows each of them."""

from __future__ import annotations

import time

from bench.databases import Postgres, Sqlite
from bench.load import Plan, generate
from bench.processes import RunningKeeper, hung_provider, keeper_running
from bench.report import Report
from bench.seed_data import prepare, render_webhook
from bench.status import spread

FLEET = 1000
ROUNDS = 4
SHOWN_WITHIN_S = 30


def run(report: Report, database: Postgres | Sqlite) -> None:
    url = database.make()
    prepare(url, count=FLEET)
    with (
        hung_provider() as provider,
        keeper_running(
            provider_url=provider, database=url, reconciler=False, catch_up=False
        ) as keeper,
    ):
        deliver(keeper, "paused")
        rates = [
            deliver(keeper, "resumed" if number % 2 == 0 else "paused") for number in range(ROUNDS)
        ]
    report.add(spread(f"webhooks end to end, {database.name}", rates, "/s", at_least=500))


def deliver(keeper: RunningKeeper, kind: str) -> float:
    """Deliver one new event for each sandbox; return the deliveries per second."""
    requests = [render_webhook(number, kind) for number in range(FLEET)]
    seconds = generate(Plan(keeper.port, requests, connections=64, once=True)).seconds
    started = time.perf_counter()
    with keeper.client() as client:
        while client.get("/api/fleet/summary").json()["states"].get("PAUSED", 0) != (
            FLEET if kind == "paused" else 0
        ):
            if time.perf_counter() - started > SHOWN_WITHIN_S:
                raise RuntimeError(f"the record does not show all {kind} sandboxes")
    return FLEET / (seconds + time.perf_counter() - started)
