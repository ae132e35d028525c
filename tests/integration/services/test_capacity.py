"""Never more sandboxes than may run, on any replica; who waits is served or told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sandkeeper.domain.decisions.priority import Overflow, Priority
from sandkeeper.domain.decisions.quotas import QuotaLimits
from sandkeeper.domain.decisions.wake import WakeStatus
from sandkeeper.domain.errors import (
    CapacityFullError,
    ProviderFullError,
    ProviderUnavailableError,
    QuotaExceededError,
    SandkeeperError,
    StoreUnavailableError,
)
from sandkeeper.domain.owner import Owner
from sandkeeper.domain.policy import Launch, Policy
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import State
from sandkeeper.providers.base import CreateSpec, EventKind, Instance, InstanceState
from sandkeeper.testing.providers import SimulatedProvider
from support.deps import MovableClock
from support.eventually import eventually
from support.sweep_replica import QUICK, Replica

Make = Callable[..., Awaitable[Replica]]


class CountingProvider(SimulatedProvider):
    """Notes how many run at most, at the moment of each change."""

    most = 0
    loses_replies = False
    plan: int | None = None

    def count(self) -> int:
        return sum(one.state is InstanceState.RUNNING for one in self.instances.values())

    def _emit(self, instance: Instance, kind: EventKind, **given: Any) -> None:
        super()._emit(instance, kind, **given)
        self.most = max(self.most, self.count())

    async def create(self, spec: CreateSpec) -> Instance:
        if self.plan is not None and self.count() >= self.plan:
            raise ProviderFullError(limit=self.plan)
        made = await super().create(spec)
        if self.loses_replies:
            raise ProviderUnavailableError("The reply was lost.")
        return made

    async def connect(self, instance_id: str, **given: Any) -> Instance:
        resumed = await super().connect(instance_id, **given)
        if self.loses_replies:
            raise ProviderUnavailableError("The reply was lost.")
        return resumed


def limited(limit: int, **settings: Any) -> dict[str, Any]:
    return {"max_running": {"*": limit}, "capacity_wait_s": 60.0, **settings}


async def insist(act: Callable[[], Awaitable[Sandbox]]) -> Sandbox:
    """Do as a client: ask again when the database was too slow, or the line too long."""
    while True:
        try:
            return await act()
        except (StoreUnavailableError, CapacityFullError):
            await asyncio.sleep(0.1)


async def make_idle(keeper: Replica) -> None:
    """Let enough time pass that nothing was used a moment ago."""
    assert isinstance(keeper.clock, MovableClock)
    keeper.clock.advance(seconds=45)


@pytest.mark.timeout(180)
async def test_many_creators_on_three_replicas_never_exceed_the_limit(
    keeping_on: Make, database_url: str
) -> None:
    provider = CountingProvider(latency_s=0.01)
    replicas = [
        await keeping_on(database_url, provider, replica=name, settings=limited(5))
        for name in "abc"
    ]
    served: list[str] = []

    async def use(number: int) -> None:
        keeper = replicas[number % 3]
        tenant = f"t{number % 4}"
        made = await insist(lambda: keeper.create(f"p{number}", tenant=tenant))
        served.append(tenant)
        await insist(lambda: keeper.lifecycle.kill(made.id, actor="test"))

    await asyncio.gather(*(use(number) for number in range(40)))
    assert 1 < provider.most <= 5
    assert len(served) == 40


async def test_the_longest_unused_makes_room_and_comes_back_with_its_files(
    keeping_on: Make, database_url: str
) -> None:
    captured: list[str] = []

    async def capture(sandbox: Sandbox) -> None:
        captured.append(sandbox.owner.id)

    provider = CountingProvider()
    keeper = await keeping_on(database_url, provider, settings=limited(2), before_pause=capture)
    old = await keeper.create("old")
    await keeper.create("newer")
    await make_idle(keeper)
    third = await keeper.create("third")
    assert third.state is State.RUNNING
    evicted = await keeper.get(old)
    assert (evicted.state, captured) == (State.PAUSED, ["old"])
    assert evicted.reason.startswith("its slot was needed; it was idle for ")
    wake = await keeper.wakes.wait(await keeper.wakes.start(old.id, actor="ada"), within_s=60)
    assert wake.status is WakeStatus.SUCCEEDED
    assert (await keeper.get(old)).instance_id == old.instance_id
    assert captured == ["old", "newer"], "the third is in use"
    assert provider.most == 2


async def test_who_finds_no_room_waits_in_line_sees_its_place_and_is_told(
    keeping_on: Make, database_url: str
) -> None:
    provider = CountingProvider()
    settings = limited(1, capacity_wait_s=1.0)
    keeper = await keeping_on(database_url, provider, settings=settings)
    used = await keeper.create("used")
    with pytest.raises(CapacityFullError, match="number 1 in line") as refused:
        await keeper.create("next")
    assert refused.value.fields["position"] == 1
    assert refused.value.retry_after_s
    with pytest.raises(CapacityFullError):
        await keeper.create("impatient", Policy(overflow=Overflow.REJECT))
    await keeper.lifecycle.pause(used.id, actor="test")
    other = await keeper.create("other")
    wake = await keeper.wakes.start(used.id, actor="ada", priority=Priority.PERSON)

    async def shows_its_place() -> bool:
        mark = (await keeper.get(used)).wake
        return mark is not None and mark.position == 1

    await eventually(shows_its_place)
    failed = await keeper.wakes.wait(wake, within_s=60)
    assert (failed.status, failed.error_code) == (WakeStatus.FAILED, "capacity_full")
    assert (await keeper.get(used)).state is State.PAUSED
    again = await keeper.wakes.start(used.id, actor="ada")
    await keeper.lifecycle.pause(other.id, actor="test")
    woken = await keeper.wakes.wait(again, within_s=60)
    assert woken.status is WakeStatus.SUCCEEDED
    assert provider.most == 1


async def test_an_unanswered_start_keeps_its_slot_until_the_provider_was_asked(
    keeping_on: Make, database_url: str
) -> None:
    provider = CountingProvider()
    settings = limited(1, capacity_wait_s=0.0, wake_retry_s=0.0)
    keeper = await keeping_on(database_url, provider, settings=settings)
    made = await keeper.create("a")
    await keeper.lifecycle.pause(made.id, actor="test")
    provider.loses_replies = True
    with pytest.raises(SandkeeperError):
        async with keeper.slots.hold(await keeper.get(made)):
            await provider.connect(str(made.instance_id), timeout_s=60)
    provider.loses_replies = False
    with pytest.raises(CapacityFullError):
        await keeper.create("b")
    assert isinstance(keeper.clock, MovableClock)
    for _ in range(2):
        keeper.clock.advance(seconds=61)
        await keeper.slot_settlement.run()
    assert (await keeper.get(made)).state is State.RUNNING, "the provider said so"
    await keeper.lifecycle.pause(made.id, actor="test")
    assert (await keeper.create("b")).state is State.RUNNING
    assert provider.most == 1


async def test_the_limit_of_the_plan_is_learned_from_its_refusal(
    keeping_on: Make, database_url: str
) -> None:
    provider = CountingProvider()
    provider.plan = 2
    settings = {"capacity_wait_s": 0.0}
    keeper = await keeping_on(database_url, provider, settings=settings)
    for name in ("a", "b"):
        await keeper.create(name)
    with pytest.raises(CapacityFullError, match="All 2 sandboxes"):
        await keeper.create("c")
    other = await keeping_on(database_url, provider, replica="two", settings=settings)
    await other.slot_settlement.run()
    acts = len(provider.acts)
    with pytest.raises(CapacityFullError):
        await other.create("d")
    assert len(provider.acts) == acts, "the provider was not asked again"


async def test_a_pool_does_not_take_the_room_of_a_person(
    keeping_on: Make, database_url: str
) -> None:
    provider = CountingProvider()
    keeper = await keeping_on(
        database_url, provider, settings=limited(2, session_check_timeout_s=0.1)
    )
    pooled = await keeper.creation.create(
        Owner.parse("pool:base#1"), launch=Launch(), policy=QUICK, actor="pool"
    )
    await keeper.create("a")
    assert (await keeper.create("b")).state is State.RUNNING
    assert (await keeper.get(pooled.sandbox)).state is State.TERMINATED
    with pytest.raises(CapacityFullError):
        await keeper.creation.create(
            Owner.parse("pool:base#2"), launch=Launch(), policy=QUICK, actor="pool"
        )
    assert provider.most == 2


async def test_a_used_up_quota_refuses_its_tenant_and_no_other(
    keeping_on: Make, database_url: str
) -> None:
    provider = CountingProvider()
    keeper = await keeping_on(database_url, provider)
    await keeper.quotas.set("*", QuotaLimits(running=2, creations_day=3))
    await keeper.quotas.set("big", QuotaLimits(kept=9))
    [first, second] = [await keeper.create(name, tenant="small") for name in ("a", "b")]
    with pytest.raises(QuotaExceededError, match="2 of 2 sandboxes running"):
        await keeper.create("c", tenant="small")
    for name in ("d", "e", "f"):
        await keeper.create(name, tenant="big")
    await keeper.lifecycle.pause(first.id, actor="test")
    await keeper.create("g", tenant="small")
    wake = await keeper.wakes.wait(await keeper.wakes.start(first.id, actor="ada"), within_s=60)
    assert wake.error_code == "quota_exceeded"
    await keeper.lifecycle.pause(second.id, actor="test")
    with pytest.raises(QuotaExceededError, match="3 of 3 creations today"):
        await keeper.create("h", tenant="small")
    found = {one.tenant: one for one in await keeper.quotas.list()}
    assert found["*"].usage is None
    assert found["big"].usage is not None
    assert found["big"].usage.kept == 3


async def test_at_once_a_tenant_never_gets_more_than_its_quota(
    keeping_on: Make, database_url: str
) -> None:
    provider = CountingProvider(latency_s=0.01)
    settings = {"capacity_wait_s": 0.0}
    replicas = [
        await keeping_on(database_url, provider, replica=name, settings=settings) for name in "ab"
    ]
    for keeper in replicas:
        await keeper.quotas.set("acme", QuotaLimits(running=3))
    results = await asyncio.gather(
        *(replicas[n % 2].create(f"p{n}", tenant="acme") for n in range(12)),
        return_exceptions=True,
    )
    assert provider.most <= 3
    assert all(isinstance(one, Sandbox | SandkeeperError) for one in results)
