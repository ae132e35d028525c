"""Replicas: their heartbeats, and what becomes free when one of them is removed."""

from __future__ import annotations

from datetime import timedelta

from sandkeeper.domain.job import Rebuild
from sandkeeper.domain.sandbox import ClaimKind, Sandbox
from sandkeeper.store import Store
from sandkeeper.store.replicas.repository import LastBeat
from support.records import T0, at, new_record

from .test_wakes import make as make_wake

LATER = at(300)


async def hold(store: Store, name: str, *, replica: str) -> Sandbox:
    """Insert a sandbox that this replica has claimed."""
    await store.sandboxes.insert(new_record(name))
    held = await store.sandboxes.claim(
        f"sb-{name}", kind=ClaimKind.PAUSE, holder=f"{replica}:1", until=LATER, now=T0
    )
    assert held is not None
    return held


async def begin_request(store: Store, replica: str, now_s: float) -> bool:
    """Return whether the request with this replica's key may go on."""
    known = await store.idempotency_keys.begin(
        scope="PUT /p",
        key=replica,
        fingerprint="a",
        holder=replica,
        now=at(now_s),
        held_until=LATER,
    )
    return known is None


async def test_a_replica_becomes_known_by_its_first_heartbeat(store: Store) -> None:
    assert not await store.replicas.beat("a", now=T0)
    ahead = timedelta(hours=-1, milliseconds=7)
    assert await store.replicas.beat("a", now=at(2), database_ahead=ahead)
    (found,) = (await store.replicas.list()).items()
    assert found == ("a", LastBeat(2, at(2), T0, ahead))


async def test_all_that_a_removed_replica_held_is_free_and_due(store: Store) -> None:
    for replica in ("a", "a_"):  # The second is no pattern that also means the first.
        await store.replicas.beat(replica, now=T0)
        await hold(store, replica, replica=replica)
        wake = make_wake().evolve(id=replica, sandbox_id=replica, due_at=LATER)
        await store.wakes.begin(wake, driver=replica)
        await store.jobs.begin_rebuild(
            Rebuild(replica, replica, "ann", created_at=T0, updated_at=T0, due_at=LATER),
            driver=replica,
        )
        await store.pools.put(replica, target=1, now=T0)
        assert await store.pools.hold(replica, holder=f"{replica}:2", lease_s=300, now=T0)
        assert await begin_request(store, replica, 0)
    seen = (await store.replicas.list())["a"]
    assert await store.replicas.remove("a", seen, now=at(20)) == ["sb-a"]
    assert list(await store.replicas.list()) == ["a_"]
    freed, kept = await store.sandboxes.get("sb-a"), await store.sandboxes.get("sb-a_")
    assert (freed.claim, freed.next_check_at) == (None, at(20))
    assert kept.claim is not None
    assert [wake.id for wake in await store.wakes.list_due(now=at(20), limit=9)] == ["a"]
    assert [one.id for one in await store.jobs.list_due(now=at(20), limit=9)] == ["a"]
    assert await store.pools.hold("a", holder="b:1", lease_s=300, now=at(20))
    assert not await store.pools.hold("a_", holder="b:1", lease_s=300, now=at(20))
    assert await begin_request(store, "a", 20)


async def test_a_replica_that_gave_a_sign_of_life_is_not_removed(store: Store) -> None:
    await store.replicas.beat("a", now=T0)
    seen = (await store.replicas.list())["a"]
    held = await hold(store, "x", replica="a")
    await store.replicas.beat("a", now=T0 + timedelta(seconds=60))
    assert await store.replicas.remove("a", seen, now=at(60)) == []
    assert (await store.sandboxes.get(held.id)).claim == held.claim
    assert "a" in await store.replicas.list()
