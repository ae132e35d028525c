"""However many replicas run, one at a time compares a region's records with the provider."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sandkeeper.domain.errors import ProviderUnavailableError, RegionBusyError
from sandkeeper.providers.base import InstancePage
from sandkeeper.services.lifecycle import heartbeat, recovery
from sandkeeper.services.observe import region_leases
from sandkeeper.services.observe.region_leases import name_region
from sandkeeper.testing.providers import SimulatedProvider
from support.deps import MovableClock
from support.eventually import eventually
from support.sweep_replica import Replica

PERIOD_S = 60.0
Make = Callable[[str], Awaitable[Replica]]


class GatedProvider(SimulatedProvider):
    """Answers a list only while its gate is open, and counts those who ask."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked = 0

    async def list_instances(self, **given: Any) -> InstancePage:
        self.asked += 1
        await self.gate.wait()
        return await super().list_instances(**given)


@pytest.fixture
def provider() -> GatedProvider:
    return GatedProvider()


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


@pytest.fixture
def make(
    keeping_on: Callable[..., Awaitable[Replica]],
    database_url: str,
    provider: GatedProvider,
    clock: MovableClock,
) -> Make:
    """Replicas that live, each with one heartbeat."""

    async def make(name: str) -> Replica:
        replica = await keeping_on(database_url, provider, clock=clock, replica=name)
        await replica.heartbeat.beat()
        return replica

    return make


async def run_due(replica: Replica) -> int:
    """Return how many regions this replica compared."""
    return len((await replica.reconciliation.run_due(period_s=PERIOD_S)).reports)


async def find_holder(replica: Replica, provider: SimulatedProvider) -> str | None:
    found = await replica.store.region_leases.find(name_region(provider))
    return None if found is None else found.holder


async def stop_all(*replicas: Replica) -> None:
    for replica in replicas:
        await replica.heartbeat.stop()


async def test_one_replica_compares_a_region_in_each_period(
    make: Make, provider: GatedProvider, clock: MovableClock
) -> None:
    one, two = await make("one"), await make("two")
    provider.gate.clear()
    passes = asyncio.gather(run_due(one), run_due(two))
    await eventually(lambda: provider.asked)
    provider.gate.set()
    assert sorted(await passes) == [0, 1]
    assert await run_due(two) + await run_due(one) == 1  # The one that did it may do it again.
    clock.advance(seconds=PERIOD_S)
    later = await make("later")
    assert await run_due(later) == 1
    passes_of_others = (await one.reconciliation.run_due(period_s=PERIOD_S)).others
    assert [other.holder for other in passes_of_others.values()] == ["later"]
    shown = later.metrics.render().decode(), one.metrics.render().decode()
    label = f'sandkeeper_reconciler{{provider="{provider.name}",region="{provider.region}"}}'
    assert f"{label} 1.0" in shown[0]
    assert f"{label} 0.0" in shown[1]
    await stop_all(one, two, later)


async def test_a_dead_replica_s_pass_is_begun_again_and_it_finishes_nothing(
    make: Make, provider: GatedProvider, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "WATCH_S", 0.1)
    monkeypatch.setattr(region_leases, "CHECKED_S", 0.0)
    dead, alive = await make("dead"), await make("alive")
    sandbox = await dead.create("p")
    provider.gate.clear()
    standing_still = asyncio.create_task(run_due(dead))
    await eventually(lambda: provider.asked)
    clock.advance(seconds=heartbeat.EXPIRES_S)
    assert await run_due(alive) == 0  # Until a second look, the database may have stood still.

    async def is_over() -> bool:
        await alive.heartbeat.beat()
        await alive.recovery.run()
        return "dead" not in await alive.store.replicas.list()

    await eventually(is_over)
    clock.advance(seconds=300)  # Long enough for the record to be confirmed again.
    await alive.heartbeat.beat()
    taking_over = asyncio.create_task(run_due(alive))
    await eventually(lambda: provider.asked == 2)
    provider.gate.set()
    with pytest.raises(RegionBusyError):
        await standing_still  # It goes on with its list, and writes nothing.
    assert await taking_over == 1
    assert await find_holder(alive, provider) == "alive"
    confirmed = await alive.get(sandbox)
    assert (confirmed.sightings.last_verified_at or sandbox.created_at) > sandbox.as_of
    await stop_all(dead, alive)


async def test_a_replica_that_cannot_reach_the_provider_hands_over(
    make: Make, provider: GatedProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = await make("one"), await make("two")

    async def cannot(**_: object) -> InstancePage:
        raise ProviderUnavailableError("no route")

    with monkeypatch.context() as broken:
        broken.setattr(provider, "list_instances", cannot)
        with pytest.raises(ProviderUnavailableError):
            await run_due(one)
    assert await run_due(two) == 1
    assert await run_due(one) == 0
    await stop_all(one, two)


async def test_who_asks_for_a_pass_waits_for_the_one_under_way(
    make: Make, provider: GatedProvider, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(region_leases, "POLL_S", 0.05)
    one, two = await make("one"), await make("two")
    provider.gate.clear()
    under_way = asyncio.create_task(run_due(one))
    await eventually(lambda: provider.asked)
    asked_since = clock()
    with monkeypatch.context() as impatient:
        impatient.setattr(region_leases, "WAIT_S", 0.1)
        with pytest.raises(RegionBusyError):
            await two.reconciliation.run(actor="ann")
    assert (await asyncio.wait_for(dry_run(two, provider), timeout=60)) == 1
    asked = asyncio.create_task(two.reconciliation.run(actor="ann"))
    provider.gate.set()
    assert await under_way == 1
    assert len(await asked) == 1
    asked_before = provider.asked
    await one.reconciliation.compare_since(provider, asked_since)
    assert provider.asked == asked_before  # The pass that Ann asked for began after that.
    await stop_all(one, two)


async def dry_run(replica: Replica, provider: GatedProvider) -> int:
    """Only report; that needs no lease."""
    provider.gate.set()
    reports = await replica.reconciliation.run(dry_run=True)
    provider.gate.clear()
    return len(reports)
