"""Slots: never more starts than the limit, however many ask; what runs is counted by the rows."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta

from sandkeeper.domain.decisions.capacity import Limits, Place, Waiter
from sandkeeper.domain.decisions.priority import Overflow, Priority
from sandkeeper.domain.owner import Owner
from sandkeeper.domain.policy import Launch
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import State
from sandkeeper.store import Store, open_store
from sandkeeper.store.capacity.line import KEPT, SEEN
from sandkeeper.store.capacity.slots import PROBE_EVERY, Slot
from support.records import T0, at, record

HERE = Place("e2b", "")
NO_ONE = T0 - timedelta(days=1)


def slot(name: str, *, template: str = "base", tenant: str = "default") -> Slot:
    return Slot(
        f"sb-{name}", 1, HERE, template, tenant, token=f"token-{name}", reserved_until=at(90)
    )


def waiter(
    name: str,
    *,
    tenant: str = "default",
    template: str = "base",
    overflow: Overflow = Overflow.WAIT,
    priority: Priority = Priority.PERSON,
    since: datetime = T0,
) -> Waiter:
    return Waiter(
        f"project:{name}", f"sb-{name}", 1, HERE, template, tenant, priority, overflow, since
    )


def running(name: str, **fields: object) -> Sandbox:
    return record(
        id=f"sb-{name}",
        owner=Owner.project(name),
        instance_id=f"i-{name}",
        **{
            "created_at": at(-600),
            "run_started_at": at(-600),
            "last_active_at": at(-600),
            **fields,
        },
    )


async def reserve(store: Store, one: Slot, limit: int | None = None, **by_template: int) -> bool:
    limits = Limits(limit, by_template)
    return await store.slots.reserve(one, limits, seen_after=NO_ONE, now=T0)


async def count(store: Store) -> int:
    found = await store.slots.read_usage()
    return found[HERE].total if HERE in found else 0


async def save(store: Store, sandbox: Sandbox) -> Sandbox:
    return await store.sandboxes.save(sandbox, expect_version=sandbox.version, now=T0)


async def test_of_many_that_ask_at_once_the_limit_is_met_exactly(
    store: Store, database_url: str
) -> None:
    async with open_store(database_url) as other:
        stores = [store, other] * 15
        taken = await asyncio.gather(
            *(reserve(one, slot(str(n)), limit=7) for n, one in enumerate(stores))
        )
    assert sum(taken) == await count(store) == 7
    assert await reserve(store, slot(str(taken.index(True))), limit=7), "it has one already"


async def test_what_runs_is_counted_by_its_row_however_it_was_started(store: Store) -> None:
    adopted = await store.sandboxes.insert(running("adopted", launch=Launch(template="desktop")))
    assert (await store.slots.read_usage())[HERE].by_template == {"desktop": 1}
    assert not await reserve(store, slot("next"), limit=1)
    lost = await save(store, adopted.evolve(state=State.UNKNOWN))
    assert not await reserve(store, slot("next"), limit=1), "it may run"
    paused = await save(store, lost.evolve(state=State.PAUSED))
    assert await reserve(store, slot("next"), limit=1)
    await save(store, paused.evolve(state=State.RUNNING))
    assert await count(store) == 2, "traffic resumed it"


async def test_a_start_is_counted_until_its_result_is_known(store: Store) -> None:
    asleep = await store.sandboxes.insert(running("a", state=State.PAUSED))
    one = slot("a")
    assert await reserve(store, one, limit=1)
    awake = await save(store, asleep.evolve(state=State.RUNNING))
    assert await count(store) == 1, "the slot became live"
    await save(store, awake.evolve(state=State.PAUSED))
    assert await count(store) == 0
    assert await reserve(store, one, limit=1)
    await store.slots.release(one)
    assert await count(store) == 0, "the provider refused"


async def test_an_unanswered_start_is_counted_until_the_provider_was_asked(store: Store) -> None:
    asleep = await store.sandboxes.insert(running("a", state=State.PAUSED))
    await reserve(store, slot("a"), limit=1)
    await save(store, asleep.evolve(state=State.UNKNOWN))
    [unknown] = [await store.sandboxes.get("sb-a")]
    await reserve(store, slot("a"), limit=1)
    await save(store, unknown.evolve(state=State.PAUSED))
    assert await count(store) == 1, "an older observation says nothing about it"
    assert await store.slots.orphan(until=at(160), now=at(60), limit=9) == 0, "it is not due"
    assert await store.slots.orphan(until=at(160), now=at(100), limit=9) == 1
    assert await store.slots.list_orphans(now=at(150), limit=9) == []
    [orphan] = await store.slots.list_orphans(now=at(160), limit=9)
    await store.slots.settle(orphan, again_at=at(200))
    assert await store.slots.list_orphans(now=at(160), limit=9) == []
    await store.slots.settle(orphan)
    assert await count(store) == 0


async def test_a_template_has_a_limit_of_its_own(store: Store) -> None:
    assert await reserve(store, slot("a", template="desktop"), desktop=1)
    assert not await reserve(store, slot("b", template="desktop"), desktop=1)
    assert await reserve(store, slot("c"), desktop=1)


async def test_a_learned_limit_holds_and_is_tried_again_after_an_hour(store: Store) -> None:
    for name in "ab":
        await store.sandboxes.insert(running(name))
    assert await store.slots.learn(HERE, None, now=T0) == 2
    assert not await reserve(store, slot("c"), limit=9)

    async def probe(name: str) -> bool:
        return await store.slots.reserve(
            slot(name), Limits(), seen_after=NO_ONE, now=T0 + PROBE_EVERY
        )

    assert await probe("c")
    assert not await probe("d"), "one start an hour"
    assert await store.slots.forget_outdated() == []
    await store.sandboxes.insert(running("c"))
    assert await store.slots.forget_outdated() == [HERE], "the provider let a third one run"


async def test_what_no_record_has_takes_room_too(store: Store) -> None:
    await store.sandboxes.insert(running("a"))
    found = await store.slots.note_unrecorded(HERE, unknown=1, tagged=[("sb-a", 1), ("sb-x", 2)])
    assert found == 2
    assert not await reserve(store, slot("b"), limit=3)
    assert await reserve(store, slot("b"), limit=4)


async def serve(
    store: Store, *names: str, limit: int, now: datetime = T0
) -> tuple[set[str], dict[str, int], Sequence[Sandbox]]:
    turn = await store.line.serve(
        HERE,
        Limits(limit),
        mine={f"project:{name}": slot(name) for name in names},
        until=now + timedelta(seconds=90),
        evict_until=now + timedelta(seconds=60),
        now=now,
    )
    return set(turn.granted), dict(turn.positions), turn.victims


async def test_the_line_is_served_fairly_and_newcomers_do_not_pass_it(store: Store) -> None:
    await store.sandboxes.insert(running("busy", tenant="big"))
    for number in range(3):
        await store.line.join(waiter(f"big{number}", tenant="big", since=at(number)), now=T0)
    await store.line.join(waiter("small", tenant="small", since=at(9)), now=T0)
    assert not await store.slots.reserve(
        slot("new"), Limits(9), seen_after=T0 - timedelta(seconds=1), now=T0
    )
    granted, positions, _ = await serve(store, "big0", "big1", "big2", "small", limit=2)
    assert granted == {"project:small"}
    assert positions == {"project:big0": 1, "project:big1": 2, "project:big2": 3}


async def test_a_dead_waiter_is_passed_over_and_keeps_its_place_for_a_while(store: Store) -> None:
    await store.line.join(waiter("dead"), now=T0)
    await store.line.join(waiter("alive", since=at(1)), now=T0 + SEEN)
    granted, _, _ = await serve(store, "alive", limit=1, now=T0 + SEEN)
    assert granted == {"project:alive"}
    back = await store.line.join(waiter("dead", since=at(50)), now=at(50))
    assert back is not None
    assert back.since == T0
    await store.line.step_aside("project:dead", now=at(50))
    assert (await serve(store, limit=9, now=at(50)))[1] == {}
    late = at(50) + KEPT
    gone = await store.line.join(waiter("dead", since=late), now=late)
    assert gone is not None
    assert gone.since == late


async def test_room_is_made_by_what_is_needed_least_and_never_twice(store: Store) -> None:
    await store.sandboxes.insert(running("used", last_active_at=at(-5)))
    await store.sandboxes.insert(running("leased", leased_until=at(60)))
    await store.sandboxes.insert(running("old", last_active_at=at(-500)))
    await store.sandboxes.insert(running("older", last_active_at=at(-550)))
    pooled = running("pool", last_active_at=None, run_started_at=at(-3))
    await store.sandboxes.insert(pooled.evolve(owner=Owner.parse("pool:base:1")))
    for name in ("x", "y"):
        await store.line.join(waiter(name, overflow=Overflow.EVICT), now=T0)
    _, positions, victims = await serve(store, "x", "y", limit=5)
    assert len(positions) == 2
    assert [one.id for one in victims] == ["sb-pool", "sb-older"]
    assert (await serve(store, "x", "y", limit=5))[2] == (), "two make room for two"


async def test_a_lowered_limit_ends_nothing_and_lets_nothing_start(store: Store) -> None:
    for name in "abc":
        await store.sandboxes.insert(running(name))
    await store.line.join(waiter("x"), now=T0)
    assert await serve(store, "x", limit=1) == (set(), {"project:x": 1}, ())
    assert await count(store) == 3
