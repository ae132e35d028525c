"""Verification: gone is not unreachable, many askers share a look, and looking changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sandkeeper.domain.errors import ProviderUnauthorizedError, ProviderUnavailableError
from sandkeeper.domain.policy import Policy
from sandkeeper.domain.states import KilledReason, State
from sandkeeper.services.lifecycle.verification import Verification
from sandkeeper.testing.providers import (
    BlindProvider,
    DownProvider,
    MisbehavingProvider,
    SimulatedProvider,
)
from support.eventually import eventually
from support.sweep_replica import Replica

Make = Callable[..., Awaitable[Replica]]


class StumblingProvider(MisbehavingProvider):
    """Fails the next `failures` calls and counts all of them."""

    failures = 0
    calls = 0
    error: Exception = ProviderUnavailableError()

    async def inject_fault(self, call: Callable[[], Awaitable[Any]]) -> Any:
        self.calls += 1
        if self.failures > 0:
            self.failures -= 1
            raise self.error
        return await call()


async def test_what_the_provider_does_not_have_is_killed(keeping: Make) -> None:
    provider = SimulatedProvider()
    keeper = await keeping(provider)
    sandbox = await keeper.create("shop")
    provider.vanish(str(sandbox.instance_id))
    after = await keeper.verification.verify(sandbox.id)
    assert (after.state, after.last_end.killed_reason) == (State.KILLED, KilledReason.NOT_FOUND)
    assert (await keeper.verification.verify(sandbox.id)).version == after.version


async def test_what_the_provider_lists_and_does_not_find_is_unknown(keeping: Make) -> None:
    provider = BlindProvider(SimulatedProvider())
    keeper = await keeping(provider)
    sandbox = await keeper.create("shop")
    provider.denials = 1
    assert (await keeper.verification.verify(sandbox.id)).state is State.UNKNOWN
    assert (await keeper.verification.verify(sandbox.id)).state is State.RUNNING


class HangingProvider(MisbehavingProvider):
    """Answer nothing before `resumed` is set."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.resumed = asyncio.Event()

    async def inject_fault(self, call: Callable[[], Awaitable[Any]]) -> Any:
        await self.resumed.wait()
        return await call()


async def test_a_provider_that_hangs_delays_no_caller_and_the_check_goes_on(
    keeping: Make,
) -> None:
    provider = HangingProvider(SimulatedProvider(), "get")
    keeper = await keeping(provider)
    sandbox = await keeper.create("shop")
    verification = Verification(keeper.deps, keeper.observations, answer_within_s=0.05)
    first, second = await asyncio.gather(*(verification.verify(sandbox.id) for _ in range(2)))
    assert {first.state, second.state} == {State.UNKNOWN}
    assert "has not answered" in first.reason
    provider.resumed.set()

    async def is_running() -> bool:
        return (await keeper.get(sandbox)).state is State.RUNNING

    await eventually(is_running)


async def test_a_difference_is_synchronised_both_ways(keeping: Make) -> None:
    provider = SimulatedProvider()
    keeper = await keeping(provider)
    sandbox = await keeper.create("shop")
    await provider.pause(str(sandbox.instance_id))
    assert (await keeper.verification.verify(sandbox.id)).state is State.PAUSED
    await provider.connect(str(sandbox.instance_id), timeout_s=60)
    assert (await keeper.verification.verify(sandbox.id)).state is State.RUNNING


async def test_a_transient_failure_is_tried_again_three_times(keeping: Make) -> None:
    provider = StumblingProvider(SimulatedProvider(), "get")
    keeper = await keeping(provider)
    sandbox = await keeper.create("shop")
    provider.failures = 3
    assert (await keeper.verification.verify(sandbox.id)).state is State.RUNNING
    assert provider.calls == 4


async def test_an_unreachable_sandbox_is_unknown_and_comes_back(keeping: Make) -> None:
    simulated = SimulatedProvider()
    provider = DownProvider(simulated, "get")
    keeper = await keeping(provider)
    sandbox = await keeper.create("shop", Policy(idle_timeout_s=600))
    lost = await keeper.verification.verify(sandbox.id)
    assert (lost.state, lost.sightings.verification_failures) == (State.UNKNOWN, 1)
    assert lost.instance_id in simulated.instances
    keeper.clock.advance(seconds=31)
    await keeper.sweep.run()
    still = await keeper.get(sandbox)
    assert (still.state, still.sightings.verification_failures) == (State.UNKNOWN, 2)
    assert (await keeper.sweep.run()).detail["checked"] == 0
    provider.is_down = False
    keeper.clock.advance(seconds=31)
    assert (await keeper.sweep.run()).detail["verified"] == 1
    back = await keeper.get(sandbox)
    assert (back.state, back.sightings.verification_failures, back.claim) == (
        State.RUNNING,
        0,
        None,
    )


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(ProviderUnauthorizedError(), id="a wrong key"),
        pytest.param(ProviderUnavailableError(retry_after_s=30), id="an open breaker"),
    ],
)
async def test_an_error_that_a_retry_cannot_fix_makes_it_unknown_at_once(
    keeping: Make, error: Exception
) -> None:
    provider = StumblingProvider(SimulatedProvider(), "get")
    provider.error = error
    keeper = await keeping(provider)
    sandbox = await keeper.create("shop")
    provider.failures = 1
    assert (await keeper.verification.verify(sandbox.id)).state is State.UNKNOWN
    assert provider.calls == 1


async def test_many_askers_share_one_look(keeping: Make) -> None:
    provider = StumblingProvider(SimulatedProvider(latency_s=0.05), "get")
    keeper = await keeping(provider)
    sandbox = await keeper.create("shop")
    await asyncio.gather(*(keeper.verification.verify(sandbox.id) for _ in range(50)))
    assert provider.calls == 1


async def test_a_read_of_a_stale_record_refreshes_it_behind_the_answer(keeping: Make) -> None:
    provider = SimulatedProvider()
    keeper = await keeping(provider)
    sandbox = await keeper.create("shop")
    assert not keeper.verification.refresh(sandbox)
    provider.vanish(str(sandbox.instance_id))
    keeper.clock.advance(seconds=301)
    assert keeper.verification.refresh(sandbox)

    async def is_killed() -> bool:
        return (await keeper.get(sandbox)).state is State.KILLED

    await eventually(is_killed)


async def test_reads_of_a_stale_record_ask_a_silent_provider_once(keeping: Make) -> None:
    provider = StumblingProvider(SimulatedProvider(), "get")
    provider.error = ProviderUnauthorizedError()
    keeper = await keeping(provider)
    sandbox = await keeper.create("shop")
    provider.failures = 1000
    keeper.clock.advance(seconds=301)
    assert keeper.verification.refresh(sandbox)

    async def is_unknown() -> bool:
        return (await keeper.get(sandbox)).state is State.UNKNOWN

    await eventually(is_unknown)
    unknown = await keeper.get(sandbox)
    assert not any(keeper.verification.refresh(unknown) for _ in range(100))
    keeper.clock.advance(seconds=31)
    assert keeper.verification.refresh(unknown)


async def test_stale_records_are_refreshed_one_after_the_other(keeping: Make) -> None:
    keeper = await keeping(SimulatedProvider())
    sandboxes = [await keeper.create(f"shop-{number}") for number in range(10)]
    keeper.clock.advance(seconds=301)
    assert [keeper.verification.refresh(one) for one in sandboxes].count(True) == 1
    keeper.clock.advance(seconds=1)
    assert [keeper.verification.refresh(one) for one in sandboxes].count(True) == 1


async def test_reading_a_status_is_not_activity(keeping: Make) -> None:
    keeper = await keeping(SimulatedProvider())
    sandbox = await keeper.create("shop")
    before = await keeper.get(sandbox)
    await keeper.verification.verify(sandbox.id)
    await keeper.explanations.explain(sandbox.id)
    after = await keeper.get(sandbox)
    assert (after.active_at, after.next_check_at) == (before.active_at, before.next_check_at)
