"""Costs are counted from the log: what the provider's own events say, through crashes."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, date, datetime, timedelta

import pytest

from sandkeeper.domain.costs.metering import UsageAmounts
from sandkeeper.domain.owner import Owner
from sandkeeper.providers.base import EventKind, LifecycleEvent
from sandkeeper.services.costs.rollup import CostRollUp
from sandkeeper.store.costs.usage import CURSOR, Counting, GroupName, UsageFilter
from sandkeeper.testing.providers import SimulatedProvider
from support.deps import MovableClock
from support.sweep_replica import Replica

Make = Callable[..., Awaitable[Replica]]
ALWAYS = UsageFilter(date(2020, 1, 1), date(2100, 1, 1))
MS = timedelta(milliseconds=1)


class DiesBeforeTheCommitError(Exception):
    """Stands for a process that ends in the middle of a transaction."""


def count_running_ms(events: Sequence[LifecycleEvent], until: datetime) -> dict[str, int]:
    """Return for how long each instance ran, according to the provider's own events."""
    running: dict[str, datetime] = {}
    found: dict[str, int] = defaultdict(int)
    for event in events:
        if event.kind in (EventKind.CREATED, EventKind.RESUMED):
            running[event.instance_id] = event.at
        elif event.kind in (EventKind.PAUSED, EventKind.KILLED) and event.instance_id in running:
            found[event.instance_id] += (event.at - running.pop(event.instance_id)) // MS
    for instance_id, since in running.items():
        found[instance_id] += (until - since) // MS
    return found


async def sum_by(replica: Replica, group: GroupName) -> dict[str, UsageAmounts]:
    sums: dict[str, UsageAmounts] = defaultdict(UsageAmounts)
    for one in await replica.store.costs.sum_usage(group, ALWAYS):
        sums[one.group] += one.usage
    return dict(sums)


async def live_a_day(keeper: Replica, clock: MovableClock, provider: SimulatedProvider) -> None:
    """Let three sandboxes of two tenants run, sleep, wake and end, past the end of a month."""
    now = clock()
    clock.ahead += datetime(2026, 2, 28, 23, 0, tzinfo=UTC) + timedelta(days=365) - now
    shop = await keeper.create("shop", tenant="acme", template="base")
    await keeper.create("blog", tenant="acme", template="web")
    wiki = await keeper.create("wiki", tenant="beta", template="base")
    clock.advance(minutes=20)
    await keeper.sweep.run()
    clock.advance(hours=2)
    await keeper.wakes.wait(await keeper.wakes.start(shop.id, actor="ann"), within_s=30)
    clock.advance(minutes=3)
    await keeper.lifecycle.kill(wiki.id, actor="ann")
    await keeper.lifecycle.pause(shop.id, actor="ann")
    clock.advance(minutes=1)
    assert {one.state.value for one in provider.instances.values()} == {"paused"}


async def test_the_sums_are_what_the_provider_says_through_crashes_and_replays(
    keeping_on: Make, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = MovableClock()
    provider = SimulatedProvider(name="e2b", clock=clock)
    keeper = await keeping_on(database_url, provider, clock=clock)
    other = await keeping_on(database_url, provider, clock=clock, replica="two")
    await live_a_day(keeper, clock, provider)
    # Long enough ago that sleeping is counted once more.
    clock.advance(hours=2)

    real = Counting.save

    async def die(self: Counting, *args: object) -> None:
        await real(self, *args)  # type: ignore[arg-type]
        raise DiesBeforeTheCommitError

    with monkeypatch.context() as patch:
        patch.setattr(Counting, "save", die)
        with pytest.raises(DiesBeforeTheCommitError):
            await keeper.cost_roll_up.run()
    assert await sum_by(keeper, "tenant") == {}, "half a counting is none"

    roll_ups = [one.cost_roll_up for one in (keeper, other)] + [CostRollUp(keeper.deps)]
    await asyncio.gather(*(one.run() for one in roll_ups))
    await keeper.cost_roll_up.run()

    by_sandbox = await sum_by(keeper, "sandbox")
    truth = count_running_ms(provider.events, clock())
    names = {instance_id: one.tag for instance_id, one in provider.instances.items()}
    for instance_id, tag in names.items():
        assert tag is not None
        counted = by_sandbox[tag.sandbox_id]
        # A reply arrives at most a moment after the provider's own date.
        assert abs(counted.running_ms - truth[instance_id]) < 5_000
        assert counted.paused_ms > 3_600_000
    whole = sum(by_sandbox.values(), UsageAmounts())
    assert abs(whole.running_ms - sum(truth.values())) < 15_000
    for group in ("tenant", "template", "day", "owner"):
        assert sum((await sum_by(keeper, group)).values(), UsageAmounts()) == whole, group  # type: ignore[arg-type]
    assert set(await sum_by(keeper, "tenant")) == {"acme", "beta"}
    assert set(await sum_by(keeper, "day")) == {"2027-02-28", "2027-03-01"}
    assert str(Owner.project("shop")) in await sum_by(keeper, "owner")
    assert 0 < whole.idle_ms <= whole.running_ms
    assert 0 < whole.timeout_ms < whole.paused_ms

    await keeper.cost_roll_up.run()
    assert sum((await sum_by(keeper, "sandbox")).values(), UsageAmounts()) == whole, "nothing new"


async def test_costs_outlive_the_log_and_the_records(keeping_on: Make, database_url: str) -> None:
    clock = MovableClock()
    provider = SimulatedProvider(name="e2b", clock=clock)
    keeper = await keeping_on(database_url, provider, clock=clock)
    made = await keeper.create("shop", tenant="acme")
    clock.advance(minutes=10)
    await keeper.lifecycle.kill(made.id, actor="ann")
    await keeper.cost_roll_up.run()
    before = await sum_by(keeper, "tenant")
    assert before["acme"].running_ms >= 600_000
    clock.advance(days=40)
    await keeper.retention.prune()
    assert await keeper.store.sandboxes.find(made.id) is None
    assert await sum_by(keeper, "sandbox") == {}, "those of single sandboxes are kept for a while"
    await keeper.cost_roll_up.run()
    assert await sum_by(keeper, "tenant") == before


async def test_a_sandbox_older_than_the_log_is_counted_from_its_record(
    keeping_on: Make, database_url: str
) -> None:
    clock = MovableClock()
    provider = SimulatedProvider(name="e2b", clock=clock)
    keeper = await keeping_on(database_url, provider, clock=clock)
    made = await keeper.create("shop", tenant="acme")
    async with keeper.store.costs.counting(now=clock()) as counting:
        counting.cursor = await keeper.store.events.latest_seq()
    assert int(await keeper.store.key_values.find(CURSOR)) > 0
    clock.advance(minutes=30)
    await keeper.cost_roll_up.run()
    counted = (await sum_by(keeper, "sandbox"))[made.id]
    assert counted.running_ms == pytest.approx(1_800_000, abs=60_000)
