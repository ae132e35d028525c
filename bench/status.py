"""Measure status and activity beside a static route, with a provider that never answers."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from bench import load
from bench.databases import Postgres, Sqlite
from bench.load import Plan, generate, render_request
from bench.processes import RunningKeeper, hung_provider, keeper_running
from bench.report import Report, Row
from bench.seed_data import make_record, prepare, project

PART = "keeper"
FLEET = 1000
ROUNDS = 5
RATE = 1000
STATIC_FILE = "dashboard/icon.svg"


def run(report: Report, database: Postgres | Sqlite) -> None:
    url = database.make()
    prepare(url, count=FLEET)
    with (
        hung_provider() as provider,
        # Both are off: the provider's list would be compared with records that it never had.
        keeper_running(
            provider_url=provider, database=url, reconciler=False, catch_up=False
        ) as keeper,
    ):
        throughput(report, keeper, database.name)
        latency(report, keeper, f"status p99 at {RATE}/s, {database.name}")
    url = database.make()
    record = make_record()
    # Every record is long out of date, so that each read wants to ask the provider as well.
    prepare(url, count=FLEET, record=record.evolve(last_verified_at=record.created_at))
    with (
        hung_provider() as provider,
        keeper_running(provider_url=provider, database=url, request_timeout_s=5) as keeper,
    ):
        latency(report, keeper, f"the same, provider hung, {database.name}")


def throughput(report: Report, keeper: RunningKeeper, name: str) -> None:
    """Measure all three in turn in each round, so that noise affects them equally."""
    routes = {
        "static": static(keeper),
        "status": statuses(keeper),
        "activity": [
            render_request(
                "POST",
                f"/api/sandboxes/{project(number)}/activity",
                key=keeper.key,
                body=b'{"kind":"intent","source":"bench"}',
            )
            for number in range(FLEET)
        ],
    }
    for requests in routes.values():
        generate(Plan(keeper.port, requests, seconds=1))
    rates: dict[str, list[float]] = {route: [] for route in routes}
    for _ in range(ROUNDS):
        for route, requests in routes.items():
            rates[route].append(generate(Plan(keeper.port, requests, seconds=1)).per_second)
    report.add(spread(f"floor: static route, {name}", rates["static"], "/s", note=load.NAME))
    report.add(spread(f"status, {name}", rates["status"], "/s"))
    for route, goal in (("status", 0.7), ("activity", 0.8)):
        ratios = [one / floor for one, floor in zip(rates[route], rates["static"], strict=True)]
        report.add(spread(f"{route} / static route, {name}", ratios, "x", at_least=goal))


def latency(report: Report, keeper: RunningKeeper, name: str) -> None:
    """Measure both routes in turn at one rate: the static one's wait is the machine's share."""
    routes = {"static": static(keeper), "status": statuses(keeper)}
    generate(Plan(keeper.port, routes["status"], once=True))
    p99: dict[str, list[float]] = {route: [] for route in routes}
    for _ in range(ROUNDS):
        for route, requests in routes.items():
            seen = generate(Plan(keeper.port, requests, rate=RATE, seconds=2))
            p99[route].append(seen.p99_ms)
    report.add(spread(f"floor: static route for {name}", p99["static"], "ms"))
    report.add(spread(name, p99["status"], "ms", at_most=5))
    ratios = [one / floor for one, floor in zip(p99["status"], p99["static"], strict=True)]
    report.add(spread(f"{name} / its floor", ratios, "x", at_most=2))


def static(keeper: RunningKeeper) -> list[str]:
    with keeper.client() as client:
        found = client.get(f"/embed/{STATIC_FILE}", follow_redirects=True)
    return [render_request("GET", found.raise_for_status().url.path)]


def statuses(keeper: RunningKeeper) -> list[str]:
    return [
        render_request("GET", f"/api/sandboxes/{project(number)}/status", key=keeper.key)
        for number in range(FLEET)
    ]


def spread(
    name: str,
    values: Sequence[float],
    unit: str,
    *,
    at_most: float | None = None,
    at_least: float | None = None,
    note: str = "",
) -> Row:
    """Return the median of a few rounds, with the lowest and the highest."""
    return Row(
        PART,
        name,
        statistics.median(values),
        unit,
        low=min(values),
        high=max(values),
        at_most=at_most,
        at_least=at_least,
        note=note,
    )
