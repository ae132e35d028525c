"""Measure what five thousand readers of live streams cost, and how soon all get a change."""

from __future__ import annotations

import resource
import socket
import statistics
import time
from http.client import HTTPResponse

from bench.databases import Postgres, Sqlite
from bench.load import percentile, render_request
from bench.processes import RunningKeeper, hung_provider, keeper_running
from bench.report import Report, Row
from bench.seed_data import prepare, project, render_webhook
from bench.sse_clients import Listeners, listening
from bench.status import PART, spread

READERS = 5000
EVENTS = 6
MOMENTS = 210
WARM_UP = 10
# Files that each side has open besides its connections.
FILES_BESIDE = 200


def run(report: Report, database: Postgres | Sqlite) -> None:
    allow_files(READERS + FILES_BESIDE)
    url = database.make()
    prepare(url, count=MOMENTS + EVENTS)
    with (
        hung_provider() as provider,
        keeper_running(
            provider_url=provider, database=url, reconciler=False, catch_up=False
        ) as keeper,
    ):
        moments(report, keeper, database.name)
        crowd(report, keeper, database.name)


def allow_files(wanted: int) -> None:
    """Raise the limit on open files; processes started from here on inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))


def tell(connection: socket.socket, listeners: Listeners, number: int) -> float:
    """Deliver an event of sandbox `number`; return the seconds until the last reader has it."""
    listeners.expect(f'"{project(number)}"')
    webhook = render_webhook(number, "paused").encode("latin-1")
    started = time.monotonic()
    connection.sendall(webhook)
    answer = HTTPResponse(connection)
    answer.begin()
    said = answer.read()
    heard = listeners.collect()
    if answer.status != 200 or heard["got"] != listeners.opened["open"]:
        raise RuntimeError(f"an event did not reach every reader: {heard}, {said!r}")
    return heard["last_at"] - started


def moments(report: Report, keeper: RunningKeeper, name: str) -> None:
    """Measure from sending a webhook until one reader of the fleet has its change, one by one."""
    request = render_request("GET", "/api/fleet/events", key=keeper.key)
    with (
        listening(port=keeper.port, count=1, request=request) as listeners,
        socket.create_connection(("127.0.0.1", keeper.port)) as connection,
    ):
        taken = [tell(connection, listeners, number) for number in range(MOMENTS)]
    taken = taken[WARM_UP:]
    report.add(
        Row(
            PART,
            f"webhook to live stream p99, {name}",
            percentile(taken, 0.99) * 1000,
            "ms",
            low=statistics.median(taken) * 1000,
            high=max(taken) * 1000,
            at_most=100,
            note="beside it: the median … the slowest",
        )
    )


def crowd(report: Report, keeper: RunningKeeper, name: str) -> None:
    """Measure many readers of the whole fleet, and events that go to every one of them."""
    request = render_request("GET", "/api/fleet/events", key=keeper.key)
    before = keeper.resident_bytes()
    with (
        listening(port=keeper.port, count=READERS, request=request) as listeners,
        socket.create_connection(("127.0.0.1", keeper.port)) as connection,
    ):
        if listeners.opened["open"] != READERS:
            raise RuntimeError(f"not every stream was opened: {listeners.opened}")
        each = (keeper.resident_bytes() - before) / READERS / 1024
        taken = [tell(connection, listeners, number) for number in range(MOMENTS, MOMENTS + EVENTS)]
        report.add(
            Row(
                PART,
                f"memory per open stream ({READERS} open), {name}",
                each,
                "KiB",
                at_most=30,
                note="of the keeper's process; the kernel's socket buffers are beside it",
            )
        )
        report.add(spread(f"one event to {READERS} readers, {name}", taken[1:], "s", at_most=1))
