"""Switches, explanations, trends and pruning, over a real database."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from sandkeeper.domain.activity import ActivityClass
from sandkeeper.domain.errors import InvalidRequestError, SandboxNotFoundError
from sandkeeper.domain.states import State
from sandkeeper.services.monitoring.feature_flags import FeatureFlag, FeatureFlags
from sandkeeper.testing.providers import SimulatedProvider
from support.sweep_replica import Replica

Make = Callable[..., Awaitable[Replica]]


async def test_a_switch_turned_on_one_replica_is_turned_on_all(keeping: Make) -> None:
    keeper = await keeping(SimulatedProvider())
    here, there = FeatureFlags(keeper.deps), FeatureFlags(keeper.deps)
    assert here.is_on(FeatureFlag.ENFORCER)
    assert not here.is_on(FeatureFlag.LEGACY_VERIFY)
    await here.turn("enforcer", on=False, actor="ann")
    assert not here.is_on(FeatureFlag.ENFORCER)
    await there.refresh()
    assert there.all() == {
        **dict.fromkeys(FeatureFlag, True),
        "enforcer": False,
        "legacy_verify": False,
    }
    await there.reset("enforcer", actor="bob")
    await here.refresh()
    assert here.is_on(FeatureFlag.ENFORCER)
    with pytest.raises(InvalidRequestError, match="there are: enforcer"):
        await here.turn("gravity", on=False, actor="ann")


async def test_an_explanation_tells_what_was_ignored_and_what_comes_next(keeping: Make) -> None:
    keeper = await keeping(SimulatedProvider())
    sandbox = await keeper.create("shop")
    keeper.activities.record(sandbox.id, kind=ActivityClass.PASSIVE, source="poll", count=7)
    keeper.activities.record(sandbox.id, kind=ActivityClass.INTENT, source="editor")
    told = await keeper.explanations.explain(sandbox.id)
    assert told.state is State.RUNNING
    assert (told.last_active_class, told.last_active_source) == ("intent", "editor")
    assert (told.ignored_passive_count, told.ignored_passive_source) == (7, "poll")
    assert told.next_at is not None
    assert told.next_rule.startswith("pause after")
    assert told.prevented_by
    with pytest.raises(SandboxNotFoundError):
        await keeper.explanations.explain("unknown")


async def test_the_fleet_is_sampled_once_for_all_replicas(keeping: Make) -> None:
    keeper = await keeping(SimulatedProvider())
    sandbox = await keeper.create("shop")
    await keeper.metrics_history.sample()
    await keeper.metrics_history.sample()
    since = keeper.clock() - timedelta(minutes=5)
    [sample] = await keeper.metrics_history.list_states(since=since)
    assert sample.data["RUNNING"] == 1
    assert b'sandkeeper_sandboxes{state="RUNNING"} 1.0' in keeper.metrics.render()
    keeper.clock.advance(minutes=11)
    assert (await keeper.metrics_history.count_stale(keeper.clock())).stale == 1
    await keeper.verification.verify(sandbox.id)


async def test_what_ended_long_ago_is_forgotten_and_the_living_stay(keeping: Make) -> None:
    limits = {"retention_ended_s": 3600, "retention_events_s": 7200}
    keeper = await keeping(SimulatedProvider(), settings=limits)
    ended, alive = [await keeper.create(name) for name in ("ended", "alive")]
    await keeper.lifecycle.kill(ended.id, actor="ann")
    pruning = keeper.retention
    assert (await pruning.prune()).sandboxes == 0
    keeper.clock.advance(hours=1.5)
    assert (await pruning.prune()).sandboxes == 1
    assert await keeper.store.sandboxes.find(ended.id) is None
    assert (await keeper.get(alive)).state is State.RUNNING
    assert await keeper.store.events.of(ended.id)
    keeper.clock.advance(hours=1)
    assert (await pruning.prune()).events > 0
    assert await keeper.store.events.of(ended.id) == []
