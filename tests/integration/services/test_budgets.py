"""Budgets on real databases: each notice once, new sandboxes refused, only idle ones paused."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from sandkeeper.domain.activity import ActivityClass
from sandkeeper.domain.costs.budgets import FLEET, Budget, BudgetAction
from sandkeeper.domain.errors import BudgetNotFoundError, BudgetSpentError, InvalidRequestError
from sandkeeper.domain.policy import Policy
from sandkeeper.domain.states import State
from sandkeeper.testing.providers import SimulatedProvider
from support.deps import MovableClock
from support.sweep_replica import Replica

Make = Callable[..., Awaitable[Replica]]
AWAKE = Policy(idle_timeout_s=None, lifetime_s=None, newborn_grace_s=0, woken_grace_s=0)


async def count_and_check(*keepers: Replica) -> None:
    for keeper in keepers:
        await keeper.cost_roll_up.run()
    await asyncio.gather(*(keeper.budgets.check() for keeper in keepers))


async def test_a_spent_budget_is_said_once_refuses_and_pauses_what_is_idle(
    keeping_on: Make, database_url: str
) -> None:
    clock = MovableClock()
    clock.ahead += datetime(2027, 1, 31, 18, 0, tzinfo=UTC) - clock()
    provider = SimulatedProvider(name="e2b", clock=clock)
    keeper = await keeping_on(database_url, provider, clock=clock)
    other = await keeping_on(database_url, provider, clock=clock, replica="two")
    idle = await keeper.create("idle", policy=AWAKE, tenant="acme")
    used = await keeper.create("used", policy=AWAKE, tenant="acme")
    others = await keeper.create("others", policy=AWAKE, tenant="beta")
    # Two sandboxes of the default size cost 0.2178 dollars an hour.
    await keeper.budgets.set(Budget("acme", Decimal("0.40"), BudgetAction.PAUSE))
    await keeper.budgets.set(Budget(FLEET, Decimal(1000)))
    clock.advance(hours=1)
    await count_and_check(keeper, other)
    (fleet, acme) = await keeper.budgets.list_all()
    assert [one.share for one in acme.notices] == [50]
    assert (fleet.reading.budget.tenant, fleet.notices) == (FLEET, [])
    clock.advance(hours=1)
    await count_and_check(keeper, other)
    await count_and_check(keeper, other)
    acme = (await keeper.budgets.list_all())[1]
    assert [one.share for one in acme.notices] == [50, 80, 100]
    given = [
        value.samples[0].value
        for one in (keeper, other)
        for value in one.metrics.budget_notices.collect()
        if value.samples
    ]
    assert sum(given) == pytest.approx(len(given)), "no replica repeats another's notice"
    for replica in (keeper, other):
        with pytest.raises(BudgetSpentError, match="acme"):
            await replica.create("new", policy=AWAKE, tenant="acme")
    await keeper.create("new", policy=AWAKE, tenant="beta")

    keeper.activities.record(used.id, kind=ActivityClass.INTENT, source="tab")
    await keeper.activities.flush()
    assert await keeper.budget_pauses.run() == 1
    paused = await keeper.get(idle)
    assert paused.state is State.PAUSED
    assert "budget" in paused.reason
    assert (await keeper.get(used)).state is State.RUNNING
    assert (await keeper.get(others)).state is State.RUNNING
    assert {verb for verb, _ in provider.acts} == {"create", "pause"}, "nothing is ended for money"
    await keeper.wakes.wait(await keeper.wakes.start(idle.id, actor="ann"), within_s=30)
    assert (await keeper.get(idle)).state is State.RUNNING, "what exists can be woken"

    clock.advance(hours=5)
    await count_and_check(keeper, other)
    begun = (await keeper.budgets.list_all())[1]
    assert [one.share for one in begun.notices] == [50], "a month began, an hour ago in UTC"
    await keeper.create("february", policy=AWAKE, tenant="acme")


async def test_a_budget_is_for_a_tenant_and_can_be_raised_and_removed(
    keeping: Make,
) -> None:
    clock = MovableClock()
    keeper = await keeping(SimulatedProvider(name="e2b", clock=clock), clock=clock)
    with pytest.raises(InvalidRequestError, match="tenant's name"):
        await keeper.budgets.set(Budget("no such/name", Decimal(1)))
    with pytest.raises(BudgetNotFoundError):
        await keeper.budgets.remove("acme")
    await keeper.budgets.set(Budget(FLEET, Decimal(0), BudgetAction.REFUSE))
    with pytest.raises(BudgetSpentError, match="fleet"):
        await keeper.create("shop", tenant="acme")
    await keeper.budgets.set(Budget(FLEET, Decimal("12.345678901"), BudgetAction.REFUSE))
    assert (await keeper.create("shop", tenant="acme")).state is State.RUNNING
    (kept,) = await keeper.store.budgets.list_all()
    assert kept.dollars == Decimal("12.345678901")
    await keeper.budgets.remove(FLEET)
    assert await keeper.budgets.list_all() == []
    clock.advance(seconds=timedelta(days=1).total_seconds())
    await count_and_check(keeper)
