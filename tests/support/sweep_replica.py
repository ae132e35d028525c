"""A replica without its API: services over a real database and any provider, in this process or in
one of its own (`python -m support.sweep_replica URL NAME FOLDER`), so that a test can kill it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sandkeeper.background.idle_sweep import IdleSweep
from sandkeeper.background.scheduler import Scheduler
from sandkeeper.domain.owner import Owner
from sandkeeper.domain.policy import Launch, Policy
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.providers.base import Instance, InstanceState, Provider
from sandkeeper.providers.registry import ProviderRegistry
from sandkeeper.services.activity.buffer import ActivityBuffer
from sandkeeper.services.activity.feed import Feed
from sandkeeper.services.lifecycle.claims import Claims
from sandkeeper.services.lifecycle.creation import Creation
from sandkeeper.services.lifecycle.lifecycle import Lifecycle
from sandkeeper.services.lifecycle.verification import Verification
from sandkeeper.services.monitoring.explanation import Explanations
from sandkeeper.services.monitoring.health import HealthMonitor
from sandkeeper.services.monitoring.metrics_history import MetricsHistory
from sandkeeper.services.observe.observations import Observations
from sandkeeper.store import Store, open_store
from sandkeeper.telemetry import Metrics
from sandkeeper.testing.providers import SimulatedProvider

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
class Replica:
    """The services of one replica."""

    store: Store
    clock: Clock
    activities: ActivityBuffer
    claims: Claims
    creation: Creation
    lifecycle: Lifecycle
    verification: Verification
    health: HealthMonitor
    trends: MetricsHistory
    explanations: Explanations
    feed: Feed
    sweep: IdleSweep
    driver: Scheduler
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
) -> Replica:
    metrics = Metrics()
    observations = Observations(store, metrics=metrics, clock=clock)
    regions = ProviderRegistry([provider])
    activities = ActivityBuffer(sandboxes=store.sandboxes, clock=clock)
    claims = Claims(store=store, clock=clock, replica=replica, lease_s=lease_s)
    trends = MetricsHistory(store=store, metrics=metrics, clock=clock)
    health = HealthMonitor(clock=clock, count_stale=trends.count_stale)
    common: dict[str, Any] = {
        "store": store,
        "regions": regions,
        "observations": observations,
        "clock": clock,
    }
    creation = Creation(**common, claims=claims, metrics=metrics, keeper=provider.keeper)
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
    driver = Scheduler()
    driver.register(sweep, period_s=30)
    return Replica(
        store=store,
        clock=clock,
        activities=activities,
        claims=claims,
        creation=creation,
        lifecycle=lifecycle,
        verification=verification,
        health=health,
        trends=trends,
        explanations=Explanations(store=store, activities=activities, clock=clock),
        feed=Feed(events=store.events, poll_s=0.2),
        sweep=sweep,
        driver=driver,
        metrics=metrics,
    )


class NotingProvider(SimulatedProvider):
    """Pauses anything after a moment, and notes each call in a file that processes share."""

    def __init__(self, notes: Path) -> None:
        super().__init__(latency_s=0.05)
        self._notes = notes

    async def pause(self, instance_id: str) -> Instance:
        with self._notes.open("a") as notes:
            notes.write(f"{instance_id}\n")
        await self._take_time()
        return Instance(instance_id, InstanceState.PAUSED, datetime.now(UTC))


async def run_replica(url: str, name: str, folder: Path) -> None:
    """Sweep until killed."""
    async with open_store(url, migrate=False) as store:
        replica = build(
            store,
            NotingProvider(folder / "pauses"),
            replica=name,
            lease_s=8,
            clock=Clock(),
        )
        (folder / f"{name}.ready").write_text(str(os.getpid()))
        async with replica.driver:
            await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(run_replica(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
