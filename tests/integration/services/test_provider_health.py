"""A provider that falls silent is noticed without a page view, and nothing stays green over it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta

import orjson
import pytest

from sandkeeper.api.deps import make_context
from sandkeeper.domain.owner import SCHEDULER_ACTOR
from sandkeeper.domain.policy import Policy
from sandkeeper.services.monitoring.provider_health import (
    CHECK_PERIOD_S,
    CHECK_TIMEOUT_S,
    FAILURES_MAX,
)
from sandkeeper.testing.providers import DownProvider, NeverProvider, SimulatedProvider
from support.deps import MovableClock
from support.sweep_replica import Replica

Make = Callable[..., Awaitable[Replica]]


def test_a_dead_provider_is_noticed_within_a_minute() -> None:
    assert FAILURES_MAX * (CHECK_PERIOD_S + CHECK_TIMEOUT_S) < 60


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
    assert [status["ready"] for status in seen] == [True, False, True]
    assert [bool(status["providerDownSince"]) for status in seen] == [False, True, False]


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
