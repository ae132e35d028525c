"""A learned idle timeout at work, and what its pauses were worth."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta

from sandkeeper.domain.activity import ActivityClass
from sandkeeper.domain.decisions.adaptive_timeout import compute_idle_timeout_s, read_gaps
from sandkeeper.domain.policy import Policy
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import State
from sandkeeper.testing.providers import SimulatedProvider
from support.sweep_replica import Replica

Make = Callable[..., Awaitable[Replica]]

ADAPTIVE = Policy(
    idle_timeout_s=180,
    newborn_grace_s=0,
    woken_grace_s=0,
    lifetime_s=None,
    idle_min_s=60,
    idle_max_s=600,
)


async def act(keeper: Replica, sandbox: Sandbox, *, after_s: float) -> None:
    """Act again after so long."""
    keeper.clock.advance(seconds=after_s)
    keeper.activities.record(sandbox.id, kind=ActivityClass.INTENT, source="tab")
    await keeper.activities.flush()


async def test_a_thoughtful_user_is_waited_for_and_a_hasty_one_is_not(keeping: Make) -> None:
    keeper = await keeping(SimulatedProvider())
    for name, gap_s, learned_s in (("thoughtful", 170.0, 213), ("hasty", 20.0, 60)):
        sandbox = await keeper.create(name, ADAPTIVE)
        for after_s in [0.0] + [gap_s] * 10:
            await act(keeper, sandbox, after_s=after_s)
            await keeper.sweep.run()
        assert compute_idle_timeout_s(await keeper.get(sandbox)) == learned_s
        keeper.clock.advance(seconds=learned_s - 1)
        await keeper.sweep.run()
        assert (await keeper.get(sandbox)).state is State.RUNNING
        keeper.clock.advance(seconds=1)
        await keeper.sweep.run()
        asleep = await keeper.get(sandbox)
        assert asleep.state is State.PAUSED
        assert asleep.reason == f"idle for {learned_s} s, threshold {learned_s} s"


async def test_a_timeout_that_shrank_is_met_in_time(keeping: Make) -> None:
    """Acts move no deadline; still a shorter threshold than before is not slept through."""
    keeper = await keeping(SimulatedProvider())
    sandbox = await keeper.create("p", ADAPTIVE)
    for gap_s in [0.0] + [10.0] * 9:
        await act(keeper, sandbox, after_s=gap_s)
    acted_at = (await keeper.get(sandbox)).active_at
    assert compute_idle_timeout_s(await keeper.get(sandbox)) == 60
    while (await keeper.get(sandbox)).state is State.RUNNING:
        again_in_s = (await keeper.sweep.run()).again_in_s
        keeper.clock.advance(seconds=again_in_s or 0)
    assert keeper.clock() - acted_at < timedelta(seconds=62)


async def test_two_replicas_keep_each_gap_once(postgres_database: str, keeping_on: Make) -> None:
    provider = SimulatedProvider()
    one = await keeping_on(postgres_database, provider, replica="one")
    two = await keeping_on(postgres_database, provider, replica="two", clock=one.clock)
    sandbox = await one.create("p", ADAPTIVE)
    for number in range(6):
        await act((one, two)[number % 2], sandbox, after_s=30)
        await act((two, one)[number % 2], sandbox, after_s=0.5)
    gaps = read_gaps((await one.get(sandbox)).activity.gaps)
    assert gaps == (30,) * 5
