"""The gaps that are learned from: each is kept once, by whichever way activity is written."""

from __future__ import annotations

from sandkeeper.domain.activity import Activity, ActivityClass, Touch
from sandkeeper.domain.decisions.adaptive_timeout import (
    GAPS_TEXT_MAX,
    UsageHistory,
    add_gap,
    read_gaps,
)
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.sessions.lease import Lease
from sandkeeper.domain.states import State
from sandkeeper.store import Store
from support.records import T0, at, new_record


def acted(seconds: float, kind: ActivityClass = ActivityClass.INTENT) -> list[Touch]:
    return [Touch("sb", Activity(at(seconds), kind, "tab"), None)]


async def insert(store: Store) -> Sandbox:
    return await store.sandboxes.insert(new_record(state=State.RUNNING))


async def read(store: Store) -> tuple[int, ...]:
    return read_gaps((await store.sandboxes.get("sb")).activity.gaps)


async def test_an_intent_ends_the_gap_since_the_last_act(store: Store) -> None:
    await insert(store)
    await store.sandboxes.touch(acted(0))
    assert await read(store) == (), "the first act has no gap before it"
    await store.sandboxes.touch(acted(42.9))
    await store.sandboxes.touch(acted(46))
    assert await read(store) == (42,), "what follows within seconds is the same stretch of work"
    await store.sandboxes.touch(acted(100, ActivityClass.WORK))
    await store.sandboxes.touch(acted(110))
    assert await read(store) == (10, 42), "a running command is no gap, and the gap begins after it"


async def test_a_touch_that_comes_twice_or_late_makes_no_gap(store: Store) -> None:
    await insert(store)
    for seconds in (0, 60, 60, 30):
        await store.sandboxes.touch(acted(seconds))
    assert await read(store) == (60,)
    looked = Touch("sb", None, Activity(at(500), ActivityClass.PASSIVE, "poll"))
    await store.sandboxes.touch([looked])
    assert await read(store) == (60,)


async def test_the_database_keeps_what_the_rule_keeps(store: Store) -> None:
    await insert(store)
    seconds, text = 0.0, ""
    await store.sandboxes.touch(acted(0))
    for number in range(90):
        gap_s = 4 + number**2 * 1.7
        seconds += gap_s
        text = add_gap(text, gap_s)
        await store.sandboxes.touch(acted(seconds))
    kept = (await store.sandboxes.get("sb")).activity.gaps
    assert len(kept) == GAPS_TEXT_MAX
    # Instants are whole milliseconds, so that a gap may be a second off.
    assert all(
        abs(one - other) <= 1 for one, other in zip(read_gaps(kept), read_gaps(text), strict=True)
    )


async def test_a_lease_ends_a_gap_and_its_own_length_is_none(store: Store) -> None:
    await insert(store)
    await store.sandboxes.touch(acted(0))
    for number, seconds in enumerate((0.2, 90)):
        lease = Lease(f"le-{number}", "sb", "agent", at(seconds), at(seconds + 60))
        assert await store.leases.acquire(lease, source="session")
        await store.leases.release(lease.id, now=at(seconds + 30))
    assert await read(store) == (59,)


async def test_a_save_of_an_older_reading_takes_no_gap_back(store: Store) -> None:
    old = await insert(store)
    await store.sandboxes.touch(acted(0))
    await store.sandboxes.touch(acted(60))
    await store.sandboxes.save(old.evolve(idle_pauses=3), expect_version=1, now=at(61))
    saved = await store.sandboxes.get("sb")
    assert (saved.idle_stats.idle_pauses, read_gaps(saved.activity.gaps)) == (3, (60,))


async def test_the_newest_habit_is_kept_and_lent_to_a_sandbox_that_has_none(store: Store) -> None:
    assert await store.usage_history.find("execution:ada") is None
    newest = UsageHistory("execution:ada", "60,30,", at(100))
    for history in (
        UsageHistory("execution:ada", "30,", at(50)),
        newest,
        UsageHistory("execution:ada", "", at(70)),
    ):
        await store.usage_history.save(history)
    assert await store.usage_history.find("execution:ada") == newest
    await insert(store)
    await store.usage_history.load("sb", "60,30,")
    await store.usage_history.load("sb", "9,")
    assert await read(store) == (60, 30)
    assert (await store.prune(ended_before=T0, before=at(200), now=at(200))).others == 1
    assert await store.usage_history.find("execution:ada") is None
