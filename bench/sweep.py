"""Measure the idle sweep in this process: what deciding costs, and how late a pause is.

The provider is simulated, because only our own time matters: the one that answers at once shows our
own share, the one that takes 200 ms shows how well we use the waiting time.
"""

from __future__ import annotations

import asyncio
import logging
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import structlog
from sqlalchemy import update

from bench.databases import Postgres, Sqlite
from bench.load import percentile
from bench.report import Report, Row
from bench.seed_data import fill, instance, make_record
from bench.status import PART, spread
from sandkeeper.background.idle_sweep import IdleSweep
from sandkeeper.background.scheduler import Scheduler
from sandkeeper.background.tasks import make_sweep
from sandkeeper.domain.policy import Policy
from sandkeeper.domain.states import State
from sandkeeper.domain.tasks import TaskName
from sandkeeper.providers.base import Instance, InstanceState
from sandkeeper.providers.rate_limit import RateLimiter
from sandkeeper.providers.registry import ProviderRegistry
from sandkeeper.services.clock import ProcessClock
from sandkeeper.services.composition import Services
from sandkeeper.services.deps import Deps
from sandkeeper.settings import Settings
from sandkeeper.store import Store, open_store
from sandkeeper.store.tables.sandboxes import SANDBOXES
from sandkeeper.telemetry import Metrics
from sandkeeper.testing.providers import SimulatedProvider

FLEET = 100_000
DUE = 1000
ROUNDS = 5
EMPTY_ROUNDS = 50
LATENCY_S = 0.2
IDLE_FOR = timedelta(minutes=10)
IDLE = Policy(idle_timeout_s=IDLE_FOR.total_seconds(), lifetime_s=None)
# The time between the creation of the fleet and its deadline.
LEAD = timedelta(seconds=3)


@dataclass(frozen=True, slots=True)
class Replica:
    """One replica's sweep over a store and a simulated provider."""

    store: Store
    provider: SimulatedProvider
    sweep: IdleSweep


def run(report: Report, database: Postgres | Sqlite) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    asyncio.run(_measure(report, database))


async def _measure(report: Report, database: Postgres | Sqlite) -> None:
    async with (
        replica(await asyncio.to_thread(database.make), latency_s=0) as small,
        replica(await asyncio.to_thread(database.make), latency_s=0) as large,
    ):
        await rest(report, database.name, small, large)
        await decide(report, database.name, large)
    async with replica(await asyncio.to_thread(database.make), latency_s=LATENCY_S) as keeper:
        await pause(report, database.name, keeper)


async def rest(report: Report, name: str, small: Replica, large: Replica) -> None:
    """Measure sweeps that find nothing due, in turn over few records and over many."""
    now = datetime.now(UTC)
    # Due in the far future, like an inactive fleet.
    record = make_record(policy=IDLE, provider=small.provider.name).evolve(
        last_active_at=now, next_check_at=now + timedelta(days=1)
    )
    await fill(small.store, record, count=DUE)
    await fill(large.store, record, count=FLEET)
    few, many = [], []
    for _ in range(EMPTY_ROUNDS):
        few.append(await time_sweep(small))
        many.append(await time_sweep(large))
    few, many = sorted(few), sorted(many)
    cut = EMPTY_ROUNDS // 10
    report.add(spread(f"sweep with nothing due, {FLEET:,} records, {name}", many[cut:-cut], "ms"))
    report.add(
        Row(
            PART,
            f"the same, {FLEET:,} / {DUE:,} records, {name}",
            statistics.median(many) / statistics.median(few),
            "x",
            at_most=1.5,
        )
    )


async def decide(report: Report, name: str, keeper: Replica) -> None:
    """Measure a thousand rows that are due although each has been active since."""
    taken = []
    for _ in range(ROUNDS):
        await make_due(keeper.store)
        started = time.perf_counter()
        outcome = await keeper.sweep.run()
        taken.append(time.perf_counter() - started)
        if outcome.detail["kept"] != DUE:
            raise RuntimeError(f"the sweep did something else: {outcome.detail}")
    report.add(
        spread(
            f"{DUE:,} due among {FLEET:,} claimed and decided, {name}",
            taken,
            "s",
            at_most=1,
            note="each is kept and gets its new deadline",
        )
    )


async def time_sweep(keeper: Replica) -> float:
    started = time.perf_counter()
    await keeper.sweep.run()
    return (time.perf_counter() - started) * 1000


async def make_due(store: Store) -> None:
    """Make the first thousand due."""
    ids = [f"sandbox-{number}" for number in range(DUE)]
    async with store.database.writing() as connection:
        await connection.execute(
            update(SANDBOXES)
            .where(SANDBOXES.c.id.in_(ids))
            .values(next_check_at=datetime.now(UTC) - timedelta(seconds=1))
        )


async def pause(report: Report, name: str, keeper: Replica) -> None:
    """Pause a thousand sandboxes whose idle time ends at the same moment, under the driver."""
    due_at = datetime.now(UTC) + LEAD
    record = make_record(policy=IDLE, provider=keeper.provider.name).evolve(
        last_active_at=due_at - IDLE_FOR, next_check_at=due_at
    )
    for number in range(DUE):
        running = Instance(instance(number), InstanceState.RUNNING, seen_at=record.created_at)
        keeper.provider.instances[running.instance_id] = running
    await fill(keeper.store, record, count=DUE)
    driver = Scheduler()
    driver.register(TaskName.IDLE_SWEEP, keeper.sweep.run, period_s=30)
    cpu = time.process_time()
    async with driver, asyncio.timeout(60):
        while (await keeper.store.counts.by_state())[State.PAUSED] < DUE:
            await asyncio.sleep(0.25)
    cpu = time.process_time() - cpu
    lags = [(event.at - due_at).total_seconds() for event in keeper.provider.events]
    report.add(
        Row(
            PART,
            f"idle pause error p99, {DUE:,} due at once, {name}",
            percentile(lags, 0.99),
            "s",
            low=statistics.median(lags),
            high=max(lags),
            at_most=2,
            note=f"provider of {LATENCY_S * 1000:.0f} ms; beside it: the median … the latest",
        )
    )
    report.add(Row(PART, f"our own time per pause, {name}", cpu / DUE * 1000, "ms CPU"))


class PacedProvider(SimulatedProvider):
    """A provider that accepts as many calls at a time as the keeper sends to the real one."""

    def __init__(self, *, latency_s: float, concurrency: int) -> None:
        super().__init__(latency_s=latency_s)
        self._pace = RateLimiter(concurrency_max=concurrency)

    async def pause(self, instance_id: str) -> Instance:
        async with self._pace.slot():
            return await super().pause(instance_id)


@asynccontextmanager
async def replica(url: str, *, latency_s: float) -> AsyncIterator[Replica]:
    """Yield one replica with its default settings."""
    settings = Settings(files_url="memory:///", keep_files=False)
    provider = PacedProvider(latency_s=latency_s, concurrency=settings.provider_concurrency)
    async with open_store(url) as store:
        store.database.keyring.hold({"00000000": bytes(32)}, current="00000000")
        deps = Deps(
            settings=settings,
            store=store,
            providers=ProviderRegistry([provider]),
            metrics=Metrics(),
            clock=ProcessClock(),
            keeper_id=provider.keeper,
            replica="bench",
        )
        yield Replica(store, provider, make_sweep(Services(deps)))
