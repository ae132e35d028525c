"""Measure a keeper with very many records and a long log, on both databases.

The rows are made inside the database. It takes long, so it runs only when it is named:
`make bench ARGS="scale"`, or with other numbers `make bench ARGS="scale --records 100000 --events
2000000"`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from sqlalchemy import text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncConnection

from bench.databases import Postgres, Sqlite, installed_postgres, sqlite
from bench.listing import END, listing_provider
from bench.processes import RunningKeeper, keeper_running
from bench.report import Report, Row
from bench.seed_data import fill, make_record
from sandkeeper.store import Store, open_store
from sandkeeper.store.sandboxes.query import Sort
from sandkeeper.store.tables.sandboxes import EVENTS
from sandkeeper.store.types import to_epoch_ms

PART = "scale"
INSTANCES = 100_000
ROUNDS = 7
PAGES_DEEP = 20
SEARCH_INDEX = "ix_sandbox_search_text"
DAY = timedelta(days=1)
EVENTS_OF_A_DAY = 24
"""Entries of the log that one sandbox in daily use makes: six runs, each with a wake, a start, a
pause and a capture."""


def run(report: Report, *, records: int = 1_000_000, events: int = 20_000_000) -> None:
    with sqlite() as embedded, installed_postgres() as shared:
        for database in (embedded, shared):
            if database is not None:
                measure_fleet(report, database, records, events)
                measure_reconcile(report, database)


def measure_fleet(report: Report, database: Postgres | Sqlite, records: int, events: int) -> None:
    url = database.make()
    name = database.name
    started = time.perf_counter()
    asyncio.run(build(report, url, name, records, events))
    Console(stderr=True).print(f"  built in {time.perf_counter() - started:.0f} s")
    with listing_provider(0) as provider, keeper_of(provider, database.make()) as (_, empty_s):
        add(report, f"floor: start with an empty database, {name}", empty_s, "s")
    with (
        listing_provider(0) as provider,
        keeper_of(provider, url) as (keeper, seconds),
        keeper.client() as client,
    ):
        add(report, f"start to ready, {name}", seconds, "s", at_most=5)
        measure_prune(report, client, name)
        report.add_times(PART, f"floor: /healthz, {name}", ask(client, "/healthz"))
        for path in ("/api/fleet/summary", "/metrics"):
            report.add_times(PART, f"{path}, {name}", ask(client, path), at_most=50)
        measure_lists(report, client, name)
        measure_search(report, client, name, records)
        add(report, f"memory of the keeper, {name}", keeper.resident_bytes() / 1e6, "MB")


@contextmanager
def keeper_of(provider: str, url: str) -> Iterator[tuple[RunningKeeper, float]]:
    """Yield a keeper that changes nothing by itself, and how long it took to be ready."""
    started = time.perf_counter()
    with keeper_running(
        provider_url=provider, database=url, reconciler=False, catch_up=False, enforcer=False
    ) as keeper:
        with keeper.client() as client:
            client.get("/readyz").raise_for_status()
        yield keeper, time.perf_counter() - started


def measure_lists(report: Report, client: httpx.Client, name: str) -> None:
    """Measure the first page of every order and one far behind it; the slowest of each counts."""
    worst: dict[str, list[float]] = {}
    for sort in Sort:
        for order in (sort.value, f"-{sort.value}"):
            path = f"/api/sandboxes?limit=100&sort={order}"
            worst[f"{order}, first page"] = ask(client, path)
            page = client.get(path).json()
            for _ in range(PAGES_DEEP):
                page = client.get(f"{path}&cursor={page['nextCursor']}").json()
            cursor = page["nextCursor"]
            worst[f"{order}, page {PAGES_DEEP + 2}"] = ask(client, f"{path}&cursor={cursor}")
    for state in ("RUNNING", "PAUSED", "KILLED", "STARTING"):
        worst[f"only {state}"] = ask(client, f"/api/sandboxes?limit=100&state={state}")
    add_worst(report, f"the slowest list, {name}", worst)


def measure_search(report: Report, client: httpx.Client, name: str, records: int) -> None:
    words = {
        "one owner": f"project-{records // 2}",
        "part of one id": f"stance-{records // 3}",
        "part of many": "ject-77",
        "part of all": "project-",
        "nothing": "no such thing",
        "metadata": "team-7",
        "two characters": "te",
    }
    found = {
        f"search for {what}": ask(client, f"/api/sandboxes?limit=100&search={word}")
        for what, word in words.items()
    }
    add_worst(report, f"the slowest search, {name}", found)


def measure_prune(report: Report, client: httpx.Client, name: str) -> None:
    """Remove what was built as old; the keeper begins with it when it starts."""
    while not (task := read_task(client, "prune"))["runs"]:
        time.sleep(0.2)
    detail, seconds = task["lastDetail"], task["lastDurationS"]
    removed = detail["events"] + detail["sandboxes"]
    while not detail["isComplete"]:
        answer = client.post("/api/tasks/prune/run", json={}, timeout=600)
        run = answer.raise_for_status().json()
        assert run["ok"], run
        detail = run["detail"]
        removed += detail["events"] + detail["sandboxes"]
        seconds += run["durationS"]
    report.add(Row(PART, f"prune, {name}", removed / seconds, "rows/s", note=f"{removed:,} rows"))


def read_task(client: httpx.Client, name: str) -> dict[str, Any]:
    tasks: list[dict[str, Any]] = client.get("/readyz").json()["tasks"]
    return next(one for one in tasks if one["name"] == name)


def measure_reconcile(report: Report, database: Postgres | Sqlite) -> None:
    url = database.make()
    old = datetime.now(UTC) - timedelta(hours=1)

    async def prepare() -> None:
        async with open_store(url) as store:
            record = make_record().evolve(last_verified_at=old, observed_at=old, end_at=END)
            with limits_off(store):
                await fill(store, record, count=INSTANCES)

    asyncio.run(prepare())
    with (
        listing_provider(INSTANCES) as provider,
        keeper_running(
            provider_url=provider,
            database=url,
            reconcile_period_s=86_400,
            catch_up=False,
            enforcer=False,
        ) as keeper,
        keeper.client() as client,
    ):
        before_s, started = keeper.cpu_s(), time.perf_counter()
        answer = client.post("/api/tasks/reconcile/run", json={}, timeout=600)
        detail = answer.raise_for_status().json()["detail"]
        seconds = time.perf_counter() - started
        used_s = keeper.cpu_s() - before_s
        peak = peak_bytes(keeper)
        assert detail["listed"] == detail["confirmed"] == INSTANCES, detail
    what = f"reconcile of {INSTANCES:,} instances, {database.name}"
    add(report, what, seconds, "s", at_most=60)
    add(report, f"processor time of the keeper for it, {database.name}", used_s, "s")
    add(report, f"memory of the keeper then, {database.name}", peak / 1e6, "MB", at_most=300)


async def build(report: Report, url: str, name: str, records: int, events: int) -> None:
    """Make the records and the log, and report what they take on the disk."""
    async with open_store(url) as store:
        empty = await size(store, url)
        with limits_off(store):
            record = make_record().evolve(region="default")
            async with without_index(store, SEARCH_INDEX):
                await fill(store, record, count=records, columns=spread_records(records))
            await store.counts.fold()
            await execute(store, "ANALYZE")
            filled = await size(store, url)
            await fill_log(store, records, events)
            whole = await size(store, url)
    of_a_sandbox, of_an_event = (filled - empty) / records, (whole - filled) / max(events, 1)
    add(report, f"disk for each sandbox, {name}", of_a_sandbox / 1e3, "kB")
    growth = of_an_event * EVENTS_OF_A_DAY / 1e3
    note = f"{of_an_event:.0f} B for each event, {EVENTS_OF_A_DAY} events a day"
    report.add(Row(PART, f"log for each sandbox and day in use, {name}", growth, "kB", note=note))


@contextmanager
def limits_off(store: Store) -> Iterator[None]:
    """Write without the limits of a keeper: a statement here makes millions of rows."""
    limited = store.database.writing

    @asynccontextmanager
    async def writing(**_: object) -> AsyncIterator[AsyncConnection]:
        async with limited(is_limited=False) as connection:
            if not store.database.is_sqlite:
                for name in ("statement_timeout", "idle_in_transaction_session_timeout"):
                    await connection.execute(text(f"SET LOCAL {name} = 0"))
            yield connection

    store.database.writing = writing  # type: ignore[method-assign]
    try:
        yield
    finally:
        store.database.writing = limited  # type: ignore[method-assign]


async def execute(store: Store, statement: str) -> None:
    async with store.database.writing() as connection:
        await connection.execute(text(statement))


def spread_records(records: int) -> dict[str, str]:
    """Return different times, states and metadata: of a thousand copies, 50 run and 200 ended."""
    now = to_epoch_ms(datetime.now(UTC))
    scattered = f"(CAST(n AS BIGINT) * 7919) % {records}"
    return {
        "state": "CASE WHEN n % 20 = 0 THEN 'RUNNING' WHEN n % 5 = 1 THEN 'KILLED'"
        " ELSE 'PAUSED' END",
        "launch": "replace(launch, '\"metadata\":{}',"
        ' \'"metadata":{"team":"team-\' || (n % 100) || \'"}\')',
        "created_at": f"{now} - {scattered} * 1000",
        "updated_at": f"{now} - {scattered} * 500",
        "state_since": f"{now} - {scattered} * 4000",
        "last_active_at": f"CASE WHEN n % 3 = 0 THEN NULL ELSE {now} - {scattered} * 700 END",
        "next_check_at": f"CASE WHEN n % 20 = 0 THEN {now} + 3600000 + n END",
    }


@asynccontextmanager
async def without_index(store: Store, name: str) -> AsyncIterator[None]:
    """Drop an index of PostgreSQL for the block: made at once, it costs a fraction."""
    if store.database.is_sqlite:
        yield
        return
    find = text("SELECT indexdef FROM pg_indexes WHERE indexname = :name").bindparams(name=name)
    async with store.database.reading() as connection:
        statement = await connection.scalar(find)
    await execute(store, f"DROP INDEX {name}")
    yield
    await execute(store, str(statement))


async def fill_log(store: Store, records: int, events: int) -> None:
    """Write the log of the last forty days; what is older than the retention time is pruned."""
    now = to_epoch_ms(datetime.now(UTC))
    first = now - 40 * int(DAY.total_seconds()) * 1000
    is_sqlite = store.database.is_sqlite
    source = (
        "(WITH RECURSIVE numbers(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers"
        f" WHERE n + 1 < {events}) SELECT n FROM numbers)"
        if is_sqlite
        else f"(SELECT n::bigint FROM generate_series(0, {events - 1}) AS n)"
    )
    when = f"{first} + n * {now - first} / {events}"
    columns = {
        "sandbox_id": f"'sandbox-' || ((n * 7919) % {records})",
        "owner_kind": "'project'",
        "owner_id": f"'project-' || ((n * 7919) % {records})",
        "type": "'sandbox.state_changed'",
        "at": when,
        "recorded_at": when,
        "version": "1 + n % 50",
        "actor": "'sandbox-idle-enforcer'",
        "reason": "'idle for 600 s'",
        "data": '\'{"before":"RUNNING","after":"PAUSED","source":"webhook"}\'',
    }
    assert {*columns} == {column.name for column in EVENTS.c} - {"seq"}
    await execute(store, "DROP INDEX ix_events_sandbox_id")
    await execute(
        store,
        f"INSERT INTO events ({', '.join(columns)})"  # Our own names.
        f" SELECT {', '.join(columns.values())} FROM {source} AS numbered",
    )
    await execute(store, "CREATE INDEX ix_events_sandbox_id ON events (sandbox_id, seq)")
    await execute(store, "ANALYZE")


async def size(store: Store, url: str) -> int:
    async with store.database.reading() as connection:
        if store.database.is_sqlite:
            await connection.execute(text("PRAGMA wal_checkpoint(TRUNCATE)"))
            return Path(make_url(url).database or "").stat().st_size
        found = await connection.scalar(text("SELECT pg_database_size(current_database())"))
        return int(found or 0)


def ask(client: httpx.Client, path: str) -> list[float]:
    """Return how long each of a few requests took."""
    seconds = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        client.get(path).raise_for_status()
        seconds.append(time.perf_counter() - started)
    return seconds


def add(
    report: Report, name: str, value: float, unit: str, *, at_most: float | None = None
) -> None:
    report.add(Row(PART, name, value, unit, at_most=at_most))


def add_worst(report: Report, name: str, measured: dict[str, list[float]]) -> None:
    """Report the slowest by its median, and print them all."""
    medians = {what: sorted(times)[len(times) // 2] * 1000 for what, times in measured.items()}
    for what, median in medians.items():
        Console(stderr=True).print(f"    {what}: {median:.1f} ms")
    slowest = max(medians, key=lambda what: medians[what])
    report.add(Row(PART, name, medians[slowest], "ms", at_most=100, note=slowest))


def peak_bytes(keeper: RunningKeeper) -> int:
    """Return the most memory that the process has held."""
    status = Path(f"/proc/{keeper.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024
