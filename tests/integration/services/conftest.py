"""A keeper without its API: services over a real database and a simulated provider.

keeping     makes a Keeping (the services of one replica) over any provider; closed at the end
keeping_on  the same for a database that several replicas share
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from databases import database_url, postgres_template, postgres_url, sqlite_template
from sandkeeper.background.driver import Driver
from sandkeeper.background.idle_sweep import IdleSweep
from sandkeeper.domain.sandbox import Launch, Owner, Policy, Sandbox
from sandkeeper.services.activities import Activities
from sandkeeper.services.claims import Claims
from sandkeeper.services.creation import Creation
from sandkeeper.services.feed import Feed
from sandkeeper.services.health import Health
from sandkeeper.services.lifecycle import Lifecycle
from sandkeeper.services.observations import Observations
from sandkeeper.services.regions import Regions
from sandkeeper.services.trends import Trends
from sandkeeper.services.verification import Verification
from sandkeeper.store import Store, open_store
from sandkeeper.telemetry import Metrics

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from sandkeeper.providers.base import Provider

__all__ = ["database_url", "postgres_template", "postgres_url", "sqlite_template"]

QUICK = Policy(idle_timeout_s=60, newborn_grace_s=0, woken_grace_s=0)


class Clock:
    """The real time, and what a test adds to it."""

    def __init__(self) -> None:
        self.ahead = timedelta()

    def __call__(self) -> datetime:
        return datetime.now(UTC) + self.ahead

    def advance(self, **by: float) -> None:
        self.ahead += timedelta(**by)


@dataclass
class Keeping:
    """The services of one replica."""

    store: Store
    clock: Clock
    activities: Activities
    claims: Claims
    creation: Creation
    lifecycle: Lifecycle
    verification: Verification
    health: Health
    trends: Trends
    feed: Feed
    sweep: IdleSweep
    driver: Driver
    metrics: Metrics

    async def create(self, project: str, policy: Policy = QUICK, **launch: Any) -> Sandbox:
        made = await self.creation.create(
            Owner.project(project), launch=Launch(**launch), policy=policy, actor="test"
        )
        return made.sandbox

    async def get(self, sandbox: Sandbox) -> Sandbox:
        return await self.store.sandboxes.get(sandbox.id)

    async def list_types(self, sandbox: Sandbox) -> list[str]:
        """The kinds of its events, oldest first."""
        return [event.type for event in reversed(await self.store.events.of(sandbox.id))]


def build(
    store: Store, provider: Provider, *, replica: str, lease_s: float, clock: Clock
) -> Keeping:
    metrics = Metrics()
    observations = Observations(store, metrics=metrics, clock=clock)
    regions = Regions([provider])
    activities = Activities(sandboxes=store.sandboxes, clock=clock)
    claims = Claims(store=store, clock=clock, replica=replica, lease_s=lease_s)
    trends = Trends(store=store, metrics=metrics, clock=clock)
    health = Health(clock=clock, count_stale=trends.count_stale)
    common: dict[str, Any] = {
        "store": store,
        "regions": regions,
        "observations": observations,
        "clock": clock,
    }
    creation = Creation(**common, claims=claims, metrics=metrics, keeper="test")
    lifecycle = Lifecycle(
        **common, claims=claims, activities=activities, health=health, metrics=metrics
    )
    verification = Verification(**common, retries_s=(0.01, 0.02, 0.04))
    sweep = IdleSweep(
        claims=claims,
        lifecycle=lifecycle,
        creation=creation,
        verification=verification,
        activities=activities,
        clock=clock,
    )
    driver = Driver()
    driver.register(sweep, period_s=30)
    return Keeping(
        store=store,
        clock=clock,
        activities=activities,
        claims=claims,
        creation=creation,
        lifecycle=lifecycle,
        verification=verification,
        health=health,
        trends=trends,
        feed=Feed(events=store.events, poll_s=0.2),
        sweep=sweep,
        driver=driver,
        metrics=metrics,
    )


Make = "Callable[..., Awaitable[Keeping]]"


@pytest.fixture
async def keeping_on() -> AsyncIterator[Callable[..., Awaitable[Keeping]]]:
    async with AsyncExitStack() as stack:

        async def make(
            url: str,
            provider: Provider,
            *,
            replica: str = "one",
            lease_s: float = 60,
            clock: Clock | None = None,
        ) -> Keeping:
            store = await stack.enter_async_context(open_store(url, migrate=False))
            made = build(store, provider, replica=replica, lease_s=lease_s, clock=clock or Clock())
            stack.push_async_callback(made.verification.close)
            stack.push_async_callback(made.creation.wait)
            return made

        yield make


@pytest.fixture
async def keeping(
    sqlite_template: Path, tmp_path: Path, keeping_on: Callable[..., Awaitable[Keeping]]
) -> Callable[..., Awaitable[Keeping]]:
    """One replica on an SQLite file of its own."""
    path = tmp_path / "keeping.db"
    path.write_bytes(sqlite_template.read_bytes())

    async def make(provider: Provider, **options: Any) -> Keeping:
        return await keeping_on(f"sqlite:///{path}", provider, **options)

    return make
