"""Warm-ups in the database: a budget is met exactly, and each outcome is written once."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from sandkeeper.domain.decisions.prewarm import (
    Prewarm,
    PrewarmBudget,
    PrewarmOutcome,
    PrewarmsSpent,
    find_excess,
)
from sandkeeper.store import Store, open_store
from support.records import T0

BUDGET = PrewarmBudget(at_once=3, per_hour=5, per_owner_hour=2)


def warm_up(number: int, sandbox_id: str, seconds: float = 0) -> Prewarm:
    return Prewarm(f"wu-{number}", sandbox_id, "test", T0 + timedelta(seconds=seconds))


def is_allowed(spent: PrewarmsSpent) -> bool:
    return not spent.is_open and find_excess(spent, BUDGET) is None


async def test_however_many_ask_at_once_the_budget_is_met_exactly(
    store: Store, database_url: str
) -> None:
    async with open_store(database_url) as other:
        await asyncio.gather(
            *(
                one.prewarms.begin(warm_up(number, f"sb-{number}"), is_allowed)
                for number, one in enumerate([store, other] * 10)
            )
        )
    assert len(await store.prewarms.list_open(limit=100)) == 3


async def test_a_sandbox_has_one_open_warm_up_and_few_within_an_hour(store: Store) -> None:
    async def begin(number: int, seconds: float) -> bool:
        return is_allowed(await store.prewarms.begin(warm_up(number, "sb", seconds), is_allowed))

    assert await begin(1, 0)
    assert not await begin(2, 1), "one is open"
    [first] = await store.prewarms.list_open(limit=10)
    assert first == warm_up(1, "sb")
    assert await store.prewarms.finish(first, PrewarmOutcome.UNUSED, now=T0)
    assert not await store.prewarms.finish(first, PrewarmOutcome.USED, now=T0), "it is settled once"
    assert await begin(3, 2)
    [second] = await store.prewarms.list_open(limit=10)
    assert await store.prewarms.finish(second, PrewarmOutcome.USED, now=T0)
    assert not await begin(4, 3), "two within the hour are enough"
    assert await begin(5, 3700)


async def test_old_warm_ups_are_forgotten_and_open_ones_are_not(store: Store) -> None:
    for number in (1, 2):
        await store.prewarms.begin(warm_up(number, f"sb-{number}"), is_allowed)
    settled = (await store.prewarms.list_open(limit=10))[0]
    await store.prewarms.finish(settled, PrewarmOutcome.USED, now=T0)
    later = T0 + timedelta(days=1)
    assert (await store.prune(ended_before=T0, before=later, now=later)).others == 1
    assert len(await store.prewarms.list_open(limit=10)) == 1
