"""A provider that falls silent is noticed without a page view, and nothing stays green over it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta

import orjson
import pytest

from sandkeeper.api.deps import make_context
from sandkeeper.domain.breaker import Breaker
from sandkeeper.domain.owner import SCHEDULER_ACTOR
from sandkeeper.domain.policy import Policy
from sandkeeper.domain.states import State
from sandkeeper.providers.registry import ProviderRegistry
from sandkeeper.services.monitoring.provider_health import (
    CHECK_PERIOD_S,
    CHECK_TIMEOUT_S,
    FAILURES_MAX,
    OTHERS_COUNT_S,
    REFRESH_PERIOD_S,
    ProviderHealth,
)
from sandkeeper.testing.providers import DownProvider, NeverProvider, SimulatedProvider
from support.deps import MovableClock
from support.sweep_replica import Replica

Make = Callable[..., Awaitable[Replica]]


def test_a_dead_provider_is_noticed_within_a_minute() -> None:
    alone = FAILURES_MAX * (CHECK_PERIOD_S + CHECK_TIMEOUT_S) + REFRESH_PERIOD_S
    after_the_death_of_another = OTHERS_COUNT_S + CHECK_PERIOD_S + CHECK_TIMEOUT_S
    assert max(alone, after_the_death_of_another + REFRESH_PERIOD_S) < 60


async def test_silence_is_shown_after_two_unanswered_questions_and_ends_with_the_first_answer(
    keeping: Make,
) -> None:
    provider = DownProvider(SimulatedProvider(), "list_instances")
    provider.is_down = False
    keeper = await keeping(provider)
    context = make_context(keeper)
    sandbox = await keeper.create("shop")
    context.statuses.put(sandbox)
    provider.is_down = True
    seen = []
    for is_down in (True, True, False):
        provider.is_down = is_down
        await keeper.provider_health.check()
        entry = context.statuses.peek(sandbox.owner)
        assert entry is not None
        seen.append(orjson.loads(entry.body))
    labels = [status["label"] for status in seen]
    assert labels == ["Running", "Provider unreachable", "Running"]
    assert [status["status"] for status in seen] == ["RUNNING", "UNKNOWN", "RUNNING"]
    assert [status["ready"] for status in seen] == [True, False, True]
    assert [bool(status["providerDownSince"]) for status in seen] == [False, True, False]


async def test_silence_ends_with_the_first_answer_to_any_call(keeping: Make) -> None:
    provider = DownProvider(SimulatedProvider(), "list_instances")
    keeper = await keeping(provider)
    breaker = Breaker()
    providers = ProviderRegistry([provider], breakers={provider.region: breaker})
    health, other = (
        ProviderHealth(replace(keeper.deps, providers=providers, replica=name))
        for name in ("one", "two")
    )
    for _ in range(FAILURES_MAX):
        await health.check()
    await other.refresh()
    assert health.list_down().keys() == other.list_down().keys() == {"simulated/default"}
    await health.refresh()
    assert health.list_down(), "no call was answered"
    provider.is_down = False
    breaker.succeed()
    assert not health.list_down()
    await other.refresh()
    await health.refresh()
    sandbox = await keeper.create("shop")
    assert health.find_down_since(sandbox) is other.find_down_since(sandbox) is None


async def test_a_provider_that_hangs_is_down_too(
    keeping: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = await keeping(NeverProvider(SimulatedProvider(), "list_instances"))
    monkeypatch.setattr("sandkeeper.services.monitoring.provider_health.CHECK_TIMEOUT_S", 0.01)
    for _ in range(FAILURES_MAX):
        await keeper.provider_health.check()
    assert list(keeper.provider_health.list_down())


async def test_explain_tells_why_an_idle_pause_fails(keeping: Make) -> None:
    clock = MovableClock()
    provider = DownProvider(SimulatedProvider(), "pause")
    keeper = await keeping(provider, clock=clock)
    policy = Policy(idle_timeout_s=1, newborn_grace_s=0, woken_grace_s=0)
    sandbox = await keeper.create("shop", policy=policy)
    clock.advance(seconds=5)
    await keeper.sweep.run()
    told = await keeper.explanations.explain(sandbox.id)
    assert told.last_failure == "The provider cannot be reached."
    assert told.last_failure_at is not None
    assert keeper.clock() - told.last_failure_at < timedelta(minutes=1)
    provider.is_down = False
    clock.advance(minutes=10)
    await keeper.sweep.run()
    told = await keeper.explanations.explain(sandbox.id)
    assert (told.actor, told.last_failure) == (SCHEDULER_ACTOR, None)


async def test_a_provider_that_answers_another_replica_is_not_silent(
    keeping_on: Callable[..., Awaitable[Replica]], database_url: str
) -> None:
    clock = MovableClock()
    world = SimulatedProvider()
    cut_off = DownProvider(world, "list_instances")
    one = await keeping_on(database_url, cut_off, replica="one", clock=clock)
    two = await keeping_on(database_url, world, replica="two", clock=clock)
    for _ in range(FAILURES_MAX + 1):
        await two.provider_health.check()
        await one.provider_health.check()
        assert not one.provider_health.list_down()
    # The replica that got the answers dies.
    clock.advance(seconds=OTHERS_COUNT_S + 1)
    await one.provider_health.check()
    assert one.provider_health.list_down()


async def test_silence_pauses_ends_and_replaces_nothing_and_the_idle_pause_comes_afterwards(
    keeping: Make,
) -> None:
    clock = MovableClock()
    world = SimulatedProvider(clock=clock)
    provider = DownProvider(world, "list_instances", "get", "pause", "kill", "create")
    provider.is_down = False
    keeper = await keeping(provider, clock=clock)
    policy = Policy(idle_timeout_s=60, newborn_grace_s=0, woken_grace_s=0)
    before = await keeper.create("shop", policy=policy)
    provider.is_down = True
    for _ in range(FAILURES_MAX):
        await keeper.provider_health.check()
    for _ in range(3):
        clock.advance(seconds=120)
        await keeper.sweep.run()
        await keeper.provider_health.check()
    during = await keeper.store.sandboxes.get(before.id)
    assert (during.generation, during.instance_id) == (1, before.instance_id)
    assert during.state in (State.RUNNING, State.UNKNOWN)
    listed = (await world.list_instances()).instances
    assert [one.instance_id for one in listed] == [before.instance_id]
    provider.is_down = False
    await keeper.provider_health.check()
    clock.advance(seconds=600)
    await keeper.sweep.run()
    after = await keeper.store.sandboxes.get(before.id)
    assert (after.state, after.generation, after.actor) == (State.PAUSED, 1, SCHEDULER_ACTOR)


async def test_what_ended_during_the_silence_is_not_shown_as_running_after_it(
    keeping: Make,
) -> None:
    world = SimulatedProvider()
    provider = DownProvider(world, "list_instances")
    provider.is_down = False
    keeper = await keeping(provider)
    context = make_context(keeper)
    sandbox = await keeper.create("shop")
    context.statuses.put(sandbox)
    provider.is_down = True
    for _ in range(FAILURES_MAX):
        await keeper.provider_health.check()
    await world.kill(sandbox.instance_id or "")
    shown: list[str] = []

    async def note() -> None:
        found = await keeper.store.sandboxes.get(sandbox.id)
        shown.append(context.presentation.find_truth(found, now=keeper.clock()).state.value)

    keeper.provider_health.on_change(note)
    provider.is_down = False
    await keeper.provider_health.check()
    assert shown == ["KILLED"]
