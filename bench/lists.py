"""Measure the list of a hundred sandboxes beside a static route, in each encoding."""

from __future__ import annotations

from bench.databases import Postgres, Sqlite
from bench.load import Plan, generate, render_request
from bench.processes import hung_provider, keeper_running
from bench.report import Report
from bench.seed_data import prepare
from bench.status import ROUNDS, spread, static

FLEET = 1000
LISTED = 100
ENCODINGS = ("identity", "gzip", "zstd")


def run(report: Report, database: Postgres | Sqlite) -> None:
    url = database.make()
    prepare(url, count=FLEET)
    with (
        hung_provider() as provider,
        keeper_running(
            provider_url=provider, database=url, reconciler=False, catch_up=False
        ) as keeper,
    ):
        path = f"/api/sandboxes?limit={LISTED}"
        routes = {"static": static(keeper)} | {
            name: [
                render_request("GET", path, key=keeper.key, headers=[f"accept-encoding: {name}"])
            ]
            for name in ENCODINGS
        }
        # One connection: how long a caller waits, not how many the server serves.
        plans = {
            name: Plan(keeper.port, requests, connections=1, seconds=1)
            for name, requests in routes.items()
        }
        for plan in plans.values():
            generate(plan)
        waits: dict[str, list[float]] = {name: [] for name in plans}
        for _ in range(ROUNDS):
            for name, plan in plans.items():
                waits[name].append(generate(plan).p50_ms)
    report.add(spread(f"floor: static route for lists, {database.name}", waits["static"], "ms"))
    for name in ENCODINGS:
        row = f"list of {LISTED} sandboxes, {name}, {database.name}"
        report.add(spread(row, waits[name], "ms", at_most=4))
