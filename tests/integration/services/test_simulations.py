"""A replay of the policy in force gives what really happened, within 2 %."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

import pytest

from sandkeeper.domain.activity import ActivityClass
from sandkeeper.domain.errors import InvalidRequestError
from sandkeeper.domain.policy import Policy
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import State
from sandkeeper.testing.providers import SimulatedProvider
from support.deps import MovableClock
from support.sweep_replica import Replica

Make = Callable[..., Awaitable[Replica]]
POLICY = Policy(idle_timeout_s=180, newborn_grace_s=0, woken_grace_s=0, lifetime_s=None)
NAMES = ("shop", "blog", "wiki")


async def use(keeper: Replica, sandbox: Sandbox) -> None:
    """Use it as a person does: what sleeps is woken first."""
    if (await keeper.get(sandbox)).state is State.PAUSED:
        await keeper.wakes.wait(await keeper.wakes.start(sandbox.id, actor="ann"), within_s=30)
    keeper.activities.record(sandbox.id, kind=ActivityClass.INTENT, source="tab")
    await keeper.activities.flush()


async def live(keeper: Replica, clock: MovableClock, sandboxes: list[Sandbox]) -> None:
    """Let people come and go for some hours; what is due in between is paused in time."""
    chosen = random.Random(11)
    began = clock()
    comings: list[tuple[float, int]] = []
    for number in range(len(sandboxes)):
        at_s = 1.0
        while at_s < 3 * 3600:
            comings.append((at_s, number))
            at_s += chosen.choice((40, 90, 90, 150, 150, 210, 400, 1800))
    for at_s, number in sorted(comings):
        await pass_time(keeper, clock, began + timedelta(seconds=at_s))
        await use(keeper, sandboxes[number])
        await keeper.activity_history.record()


async def pass_time(keeper: Replica, clock: MovableClock, until: datetime) -> None:
    """Move the clock from one due pause to the next, and then to the moment."""
    while True:
        due_at = await keeper.claims.find_next_due_at()
        at = until if due_at is None else min(until, due_at)
        clock.ahead += max(at - clock(), timedelta())
        if at == until:
            return
        await keeper.sweep.run()
        await keeper.activity_history.record()


async def test_the_policy_in_force_is_reproduced(keeping_on: Make, database_url: str) -> None:
    clock = MovableClock()
    provider = SimulatedProvider(name="e2b", clock=clock)
    keeper = await keeping_on(database_url, provider, clock=clock)
    await keeper.activity_history.record()
    made = [await keeper.create(name, policy=POLICY, tenant=f"t-{name}") for name in NAMES]
    await live(keeper, clock, made)
    await pass_time(keeper, clock, clock() + timedelta(hours=1))
    await keeper.cost_roll_up.run()

    report = await keeper.simulations.run(["60", "600", "adaptive"], days=3)
    (everything,) = report.simulations
    outcomes = {one.option.name: one for one in everything.outcomes}
    current = outcomes["current"].replayed
    assert current.running_s == pytest.approx(report.real_running_s, rel=0.02)
    rows = [await keeper.get(one) for one in made]
    assert current.pauses == pytest.approx(sum(one.idle_stats.idle_pauses for one in rows), abs=1)
    assert outcomes["60"].replayed.running_s < current.running_s
    assert outcomes["60"].replayed.wakes > outcomes["600"].replayed.wakes
    assert outcomes["600"].dollars > outcomes["60"].dollars > 0
    assert outcomes["60"].is_best
    assert outcomes["60"].option.command == "SANDKEEPER_IDLE_TIMEOUT_S=60"
    by_tenant = await keeper.simulations.run(["60"], days=3, by="tenant")
    assert [one.key for one in by_tenant.simulations] == ["t-blog", "t-shop", "t-wiki"]
    parts = [one.outcomes[0].replayed.running_s for one in by_tenant.simulations]
    assert sum(parts) == pytest.approx(current.running_s)

    await keeper.activity_history.record()
    again = await keeper.simulations.run([], days=3)
    assert again.simulations[0].outcomes[0].replayed == current, "what is read twice is one use"


async def test_what_cannot_be_replayed_is_refused_with_what_can(keeping: Make) -> None:
    keeper = await keeping(SimulatedProvider())
    for words, days, said in (
        (["5"], 1, "30 to 86400"),
        (["soon"], 1, "'soon'"),
        (["60"], 0, "1 to 35"),
        (["60"], 36, "1 to 35"),
        ([str(one) for one in range(30, 50)], 1, "At most"),
    ):
        with pytest.raises(InvalidRequestError, match=said):
            await keeper.simulations.run(words, days=days)
