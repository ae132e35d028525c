"""The event log and the smaller tables, on both databases."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sandkeeper.domain.errors import (
    IdempotencyInFlightError,
    IdempotencyMismatchError,
    VersionConflictError,
)
from sandkeeper.domain.events import Event, SandboxExtended, SandboxReady
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import State
from sandkeeper.store import Delivery, Pruned, Store, open_store
from sandkeeper.store.events import EventFilter
from sandkeeper.store.idempotency import StoredReply
from sandkeeper.store.metrics_history import MetricSample
from sandkeeper.store.sandboxes.leaks import Leak
from support.eventually import eventually
from support.records import T0, at, new_record


def ready(sandbox: Sandbox, url: str = "u") -> Event:
    return SandboxReady(
        sandbox_id=sandbox.id,
        owner=sandbox.owner,
        at=T0,
        actor="a",
        reason="r",
        ready=True,
        url=url,
    )


async def test_an_event_reads_back_with_all_its_fields(store: Store) -> None:
    one = new_record("one")
    extended = SandboxExtended(
        sandbox_id=one.id, owner=one.owner, at=at(1), actor="user:1", reason="r", expires_at=at(9)
    )
    await store.sandboxes.insert(one, [ready(one), extended])
    first, second = await store.events.after(0)
    assert (first.type, first.data) == ("sandbox.ready", {"ready": True, "url": "u"})
    assert (second.seq, second.at, second.actor) == (first.seq + 1, at(1), "user:1")
    assert second.data == {"expires_at": at(9).isoformat()}
    assert second.owner == one.owner
    assert await store.events.after(first.seq) == [second]
    assert await store.events.of(one.id, limit=1) == [second]
    assert await store.events.of(one.id, before=second.seq) == [first]
    assert await store.events.latest(types=["sandbox.ready"]) == [first]
    assert await store.events.of(one.id, after=first.seq) == [second]
    assert await store.events.latest_seq() == second.seq


async def test_the_log_is_searched_by_time_actor_owner_type_and_text(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = new_record("shop-one"), new_record("two")
    for minute, sandbox in enumerate([one, two, one, two]):
        event = ready(sandbox, f"https://{minute}.test")
        if minute == 0:
            await store.sandboxes.insert(one, [event])
            await store.sandboxes.insert(two)
        else:
            await store.sandboxes.append_events(sandbox, [event], now=at(minute))

    async def find(limit: int = 100, **fields: Any) -> list[str]:
        """Return the URLs of every page, and prove that the pages end."""
        found: list[str] = []
        before: int | None = None
        for _ in range(20):
            page = await store.events.search(EventFilter(**fields), before=before, limit=limit)
            found += [event.data["url"][8] for event in page.events]
            before = page.next_before
            if before is None:
                return found
        raise AssertionError("the pages have no end")

    assert await find() == ["3", "2", "1", "0"]
    assert await find(limit=1) == ["3", "2", "1", "0"]
    assert await find(owner=one.owner) == ["2", "0"]
    assert await find(text="SHOP-O") == ["2", "0"]
    assert await find(text="1.test") == ["1"]
    assert await find(text="100%") == []
    assert await find(actor="A", types=("sandbox.ready",)) == ["3", "2", "1", "0"]
    assert await find(types=("sandbox.extended",)) == []
    assert await find(since=at(1), until=at(3)) == ["2", "1"]
    assert await find(since=at(2), limit=1) == ["3", "2"]
    assert await find(until=at(2), owner=two.owner) == ["1"]
    monkeypatch.setattr("sandkeeper.store.events.SIFTED_MAX", 1)
    assert await find(text="0.test") == ["0"]


async def test_a_reader_that_follows_the_numbers_misses_nothing(
    store: Store, database_url: str
) -> None:
    """Writers of two replicas commit at once; the reader asks only for what is after its last."""
    for number in range(8):
        await store.sandboxes.insert(new_record(f"p{number}"))
    async with open_store(database_url) as other:

        async def write(replica: Store, number: int) -> None:
            sandbox = new_record(f"p{number}")
            for turn in range(15):
                event = ready(sandbox, f"{number}-{turn}")
                await replica.sandboxes.append_events(sandbox, [event, event], now=at(turn))

        seen: list[int] = []

        async def follow() -> None:
            while len(seen) < 8 * 15 * 2:
                seen.extend(one.seq for one in await store.events.after(seen[-1] if seen else 0))
                await asyncio.sleep(0)

        replicas = (store, other)
        writers = [write(replicas[number % 2], number) for number in range(8)]
        await asyncio.wait_for(asyncio.gather(follow(), *writers), 120)
    assert seen == sorted(set(seen))
    assert len(await store.events.after(0)) == 240


async def test_listeners_hear_of_every_committed_write(store: Store) -> None:
    heard: list[str] = []
    stop = store.events.on_append(lambda: heard.append("x"))
    one = await store.sandboxes.insert(new_record("one"), [ready(new_record("one"))])
    await store.sandboxes.save(one, expect_version=1, now=at(1))
    with pytest.raises(VersionConflictError):
        await store.sandboxes.save(one, expect_version=1, now=at(1))
    assert len(heard) == 2
    stop()
    await store.sandboxes.append_events(one, [ready(one)], now=at(2))
    assert len(heard) == 2


async def test_every_write_of_a_sandbox_is_found_after_a_position(store: Store) -> None:
    one = await store.sandboxes.insert(new_record("one"))
    await store.sandboxes.insert(new_record("two"))
    position = await store.changes.find_position()
    assert (await store.changes.since(position)).sandbox_ids == ()
    await store.sandboxes.confirm([one.id], at=at(1))
    found = await store.changes.since(position)
    assert list(found.sandbox_ids) == [one.id]
    assert (await store.changes.since(found.position)).sandbox_ids == ()


async def test_removed_records_are_reported_once_and_then_forgotten(store: Store) -> None:
    ended = new_record("one", state=State.KILLED)
    await store.sandboxes.insert(ended)
    await store.sandboxes.insert(new_record("two"))
    position = await store.changes.find_position()
    await store.prune(ended_before=at(9), before=at(9), now=at(9))
    assert list((await store.changes.since(position)).sandbox_ids) == [ended.id]
    await store.sandboxes.insert(new_record("three"))
    await store.prune(ended_before=at(9), before=at(9), now=at(9))
    assert ended.id not in (await store.changes.since(0)).sandbox_ids


async def test_replicas_on_postgresql_notify_each_other(store: Store, database_url: str) -> None:
    heard: list[str] = []
    async with open_store(database_url) as other, other.events.listening(heard.append):
        await store.events.notify("7")
        if store.is_shared:
            await eventually(lambda: heard == ["7"], within_s=30)
        else:
            assert heard == []


async def test_a_repeated_event_is_known_and_the_inbox_keeps_every_delivery(store: Store) -> None:
    first = Delivery(
        received_at=at(1),
        outcome="applied",
        delivery_id="d1",
        event_id="e1",
        type="sandbox.lifecycle.paused",
        instance_id="i",
        event_at=T0,
    )
    await store.deliveries.record(first)
    await store.deliveries.record(
        Delivery(received_at=at(2), outcome="duplicate", event_id="e1", delivery_id="d2")
    )
    await store.deliveries.record(Delivery(received_at=at(3), outcome="refused", detail="bad"))
    await store.deliveries.mark_seen(["e2", "e1"], seen_at=at(4))
    assert await store.deliveries.find_seen(["e1", "e2", "e3"]) == {"e1", "e2"}
    inbox = await store.deliveries.latest()
    assert [one.outcome for one in inbox] == ["refused", "duplicate", "applied"]
    assert inbox[2] == first


async def test_the_inbox_is_read_page_by_page(store: Store) -> None:
    for second in range(5):
        await store.deliveries.record(Delivery(received_at=at(second), outcome=f"{second}"))
    newest = await store.deliveries.latest(limit=2)
    await store.deliveries.record(Delivery(received_at=at(9), outcome="came in between"))
    older = await store.deliveries.latest(before=newest[-1].number, limit=2)
    oldest = await store.deliveries.latest(before=older[-1].number, limit=2)
    pages = [[one.outcome for one in page] for page in (newest, older, oldest)]
    assert pages == [["4", "3"], ["2", "1"], ["0"]]


async def test_the_same_key_gives_the_same_answer_once(store: Store) -> None:
    async def begin(body: str, now: float = 0) -> StoredReply | None:
        return await store.idempotency_keys.begin(
            scope="PUT /p",
            key="k",
            fingerprint=body,
            holder="r",
            now=at(now),
            held_until=at(now + 60),
        )

    assert await begin("a") is None
    with pytest.raises(IdempotencyInFlightError):
        await begin("a", 1)
    with pytest.raises(IdempotencyMismatchError):
        await begin("b", 1)
    assert await begin("a", 61) is None
    await store.idempotency_keys.abandon(scope="PUT /p", key="k")
    assert await begin("b", 62) is None
    await store.idempotency_keys.finish(scope="PUT /p", key="k", status=201, body="{}")
    await store.idempotency_keys.abandon(scope="PUT /p", key="k")
    assert await begin("b", 999) == StoredReply(201, "{}")


async def test_replicas_agree_on_a_fact(store: Store) -> None:
    values = await asyncio.gather(
        *(store.key_values.put_new("webhook.secret", number, now=T0) for number in range(8))
    )
    assert len(set(values)) == 1
    await store.key_values.put("switch.enforcer", {"on": False}, now=T0)
    await store.key_values.put("switch.enforcer", {"on": True}, now=at(1))
    assert await store.key_values.list("switch.") == {"switch.enforcer": {"on": True}}
    await store.key_values.remove("switch.enforcer")
    assert await store.key_values.find("switch.enforcer") is None


async def test_a_leak_counts_one_sighting_per_look(store: Store) -> None:
    def seen(seconds: float) -> Leak:
        return Leak("i", "e2b", "leak", at(seconds), at(seconds), metadata={"k": "v"})

    assert (await store.leaks.record(seen(0))).sightings == 1
    assert (await store.leaks.record(seen(0))).sightings == 1
    twice = await store.leaks.record(seen(60))
    assert (twice.sightings, twice.first_seen_at, twice.metadata) == (2, T0, {"k": "v"})
    assert await store.leaks.list(since=at(30)) == [twice]
    assert await store.leaks.list(since=at(61)) == []


async def test_a_removed_leak_stays_with_who_when_and_why_until_its_retention_is_over(
    store: Store,
) -> None:
    for name, seconds in (("a", 0), ("b", 5), ("c", 10)):
        await store.leaks.record(Leak(name, "e2b", "leak", at(seconds), at(seconds), reason="twin"))
    await store.leaks.mark_removed("a", at=at(90), by="replica-1", reason="twin of x")
    await store.leaks.mark_removed("b", at=at(95), by="operator:ada", reason="twin of y")
    assert await store.leaks.count_removed(since=at(60)) == 2
    found = await store.leaks.list(since=at(8))
    assert [one.instance_id for one in found] == ["c", "b", "a"]
    told = [(one.removed_at, one.removed_by, one.reason) for one in found]
    assert told == [
        (None, None, "twin"),
        (at(95), "operator:ada", "twin of y"),
        (at(90), "replica-1", "twin of x"),
    ]
    await store.prune(ended_before=at(92), before=at(92), now=at(92))
    assert [one.instance_id for one in await store.leaks.list(since=T0)] == ["b"]


async def test_a_leak_that_was_taken_for_another_kind_is_counted_from_the_beginning(
    store: Store,
) -> None:
    def seen(kind: str, seconds: float) -> Leak:
        return Leak("i", "e2b", kind, at(seconds), at(seconds), reason=f"why {kind}")

    for seconds in (0, 60, 120):
        await store.leaks.record(seen("unowned", seconds))
    leak = await store.leaks.record(seen("leak", 180))
    assert (leak.kind, leak.sightings, leak.first_seen_at) == ("leak", 1, at(180))
    assert leak.reason == "why leak"


async def test_samples_come_back_oldest_first(store: Store) -> None:
    for number in range(5):
        await store.metrics_history.add(
            MetricSample("fleet.states", at(number), {"paused": number})
        )
    found = await store.metrics_history.list("fleet.states", since=at(1), limit=3)
    assert [one.data["paused"] for one in found] == [2, 3, 4]


async def test_prune_removes_what_is_old_and_ended_and_nothing_else(store: Store) -> None:
    for number in range(3):
        await store.sandboxes.insert(
            new_record(f"old{number}", state=State.KILLED), [ready(new_record(f"old{number}"))]
        )
    await store.sandboxes.insert(new_record("young", state=State.KILLED, state_since=at(50)))
    await store.sandboxes.insert(new_record("alive", state=State.PAUSED))
    await store.deliveries.record(Delivery(received_at=T0, outcome="applied", event_id="e"))
    await store.metrics_history.add(MetricSample("k", at(99), {}))
    begun = await store.prune(ended_before=at(10), before=at(10), now=at(10), within_s=0)
    assert begun == Pruned(0, 0, 0, is_complete=False)
    pruned = await store.prune(ended_before=at(10), before=at(10), now=at(10))
    assert pruned == Pruned(sandboxes=3, events=3, others=2)
    assert await store.prune(ended_before=at(10), before=at(10), now=at(10)) == Pruned(0, 0, 0)
    assert await store.sandboxes.find("sb-young") is not None
    assert await store.sandboxes.find("sb-alive") is not None
    assert len(await store.metrics_history.list("k", since=T0)) == 1
