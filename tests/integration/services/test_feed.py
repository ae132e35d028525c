"""The feed gives every committed event once, in order, to all who listen, on both databases."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from sandkeeper.store import LoggedEvent
from sandkeeper.testing.providers import SimulatedProvider
from support.eventually import eventually
from support.sweep_replica import Replica

MakeOn = Callable[..., Awaitable[Replica]]


async def test_a_replica_hears_its_own_and_the_others_events_in_order(
    keeping_on: MakeOn, database_url: str
) -> None:
    provider = SimulatedProvider()
    one, two = [await keeping_on(database_url, provider, replica=name) for name in ("1", "2")]
    await one.create("before")
    heard: list[int] = []
    async with one.feed, two.feed:
        one.feed.subscribe(lambda events: heard.extend(event.seq for event in events))
        await asyncio.gather(
            *(replica.create(f"{number}") for number in range(20) for replica in (one, two))
        )
        await one.feed.wait_until_shown()
        logged = await one.store.events.after(0, limit=1000)
        assert heard == [event.seq for event in logged][-len(heard) :]
        assert len(heard) == 40


async def test_a_notice_of_another_replica_arrives_long_before_the_poll(
    keeping_on: MakeOn, postgres_database: str
) -> None:
    provider = SimulatedProvider()
    one, two = [await keeping_on(postgres_database, provider, replica=name) for name in "12"]
    one.feed._poll_s = two.feed._poll_s = 3600
    heard: list[LoggedEvent] = []
    async with one.feed, two.feed:
        one.feed.subscribe(heard.extend)

        async def is_heard() -> bool:
            # Listening begins in the background, so the first notices may come too early.
            await two.create(f"at {asyncio.get_running_loop().time()}")
            return bool(heard)

        await eventually(is_heard, every_s=0.2)


async def test_a_bad_listener_never_stops_the_others(
    keeping: Callable[..., Awaitable[Replica]],
) -> None:
    keeper = await keeping(SimulatedProvider())
    heard: list[str] = []

    def fail(_events: Sequence[LoggedEvent]) -> None:
        raise RuntimeError("a bug in a listener")

    async with keeper.feed:
        keeper.feed.subscribe(fail)
        unsubscribe = keeper.feed.subscribe(lambda events: heard.extend(e.type for e in events))
        await keeper.create("shop")
        await keeper.feed.wait_until_shown()
        assert heard == ["sandbox.created", "sandbox.state_changed"]
        unsubscribe()
        await keeper.create("other")
        await keeper.feed.wait_until_shown()
    assert len(heard) == 2
