"""A warm member goes to one claimant, a lease and a sweep meet in the row: on both databases."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta

import pytest

from sandkeeper.domain.clock import to_ms
from sandkeeper.domain.decisions.idle import Keep, Kill, decide_idle
from sandkeeper.domain.errors import SandboxExistsError
from sandkeeper.domain.owner import Owner, OwnerKind
from sandkeeper.domain.policy import IdleAction, Launch, Policy
from sandkeeper.domain.sandbox import ClaimKind, CurrentRun, Sandbox
from sandkeeper.domain.sessions.lease import Lease
from sandkeeper.domain.states import State
from sandkeeper.store import Store, open_store

NOW = to_ms(datetime.now(UTC))
POLICY = Policy(idle_timeout_s=60, on_idle=IdleAction.KILL, newborn_grace_s=0, woken_grace_s=0)


def sandbox(name: str, owner: Owner) -> Sandbox:
    return Sandbox(
        id=f"sb-{name}",
        owner=owner,
        provider="e2b",
        created_at=NOW,
        updated_at=NOW,
        state_since=NOW,
        state=State.RUNNING,
        instance_id=f"i-{name}",
        run=CurrentRun(run_started_at=NOW),
        policy=POLICY,
        next_check_at=NOW,
    )


def member(number: int, template: str = "base") -> Sandbox:
    name = f"{template}-{number}"
    return sandbox(name, Owner(OwnerKind.POOL, f"{template}#{number:04}"))


async def claim(store: Store, name: str, template: str = "base") -> Sandbox | None:
    owner = Owner(OwnerKind.SESSION, name)
    return await store.pools.claim(
        template, owner=owner, launch=Launch(template=template), policy=POLICY, now=NOW
    )


async def test_ten_members_under_two_hundred_claims_go_to_ten(database_url: str) -> None:
    async with AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(open_store(database_url)) for _ in range(3)]
        await stores[0].pools.put("base", target=10, now=NOW)
        for number in range(10):
            await stores[0].sandboxes.insert(member(number))
        await stores[0].sandboxes.insert(member(0, template="base_"))
        found = await asyncio.gather(
            *(claim(stores[number % 3], f"s{number}") for number in range(200))
        )
        taken = [one for one in found if one is not None]
        assert len({one.id for one in taken}) == len(taken) == 10
        for one in taken:
            assert await stores[1].sandboxes.get_by_owner(one.owner) == one
        pool = await stores[2].pools.find("base")
        assert pool is not None
        assert (pool.hits, pool.misses, pool.hit_rate) == (10, 190, 0.05)
        assert await stores[0].pools.list_members("base", limit=20) == []
        assert len(await stores[0].pools.list_members("base_", limit=20)) == 1


async def test_an_owner_with_a_sandbox_takes_no_member(database_url: str) -> None:
    async with open_store(database_url) as store:
        await store.pools.put("base", target=1, now=NOW)
        await store.sandboxes.insert(member(1))
        await store.sandboxes.insert(sandbox("own", Owner(OwnerKind.SESSION, "ann")))
        with pytest.raises(SandboxExistsError):
            await claim(store, "ann")
        assert len(await store.pools.list_members("base", limit=2)) == 1
        pool = await store.pools.find("base")
        assert pool is not None
        assert (pool.hits, pool.misses) == (0, 0)


async def test_of_replicas_one_fills_and_a_dead_one_is_followed(database_url: str) -> None:
    async with open_store(database_url) as store:
        await store.pools.put("base", target=1, now=NOW)

        async def hold(holder: str, at: datetime) -> bool:
            return await store.pools.hold("base", holder=holder, lease_s=60, now=at)

        held = await asyncio.gather(*(hold(name, NOW) for name in "abc"))
        assert sorted(held) == [False, False, True]
        assert await hold("d", NOW + timedelta(seconds=61))


async def test_who_holds_a_lease_is_seen_by_the_sweep_and_the_other_way_round(
    database_url: str,
) -> None:
    """Either the sweep sees the lease, or the lease is refused until the sweep is done."""
    async with open_store(database_url) as store:
        made = sandbox("one", Owner(OwnerKind.SESSION, "ann"))
        await store.sandboxes.insert(made)
        late = NOW + timedelta(seconds=100)

        def lease(name: str, until_s: float) -> Lease:
            until = late + timedelta(seconds=until_s)
            return Lease(f"le-{name}", made.id, "test", taken_at=late, until=until)

        held = await store.sandboxes.claim_due(now=late, holder="sweep", lease_s=60, limit=1)
        assert isinstance(decide_idle(held[0], now=late), Kill)
        assert not await store.leases.acquire(lease("a", 30), source="test")
        await store.sandboxes.release(made.id, holder="sweep", now=late, next_check_at=late)
        assert await store.leases.acquire(lease("b", 300), source="test")
        assert await store.leases.acquire(lease("c", 90), source="test")
        held = await store.sandboxes.claim_due(now=late, holder="sweep", lease_s=60, limit=1)
        decision = decide_idle(held[0], now=late)
        assert isinstance(decision, Keep)
        assert decision.until == late + timedelta(seconds=300)
        saved = await store.sandboxes.save(
            held[0].evolve(claim=None, leased_until=None),
            expect_version=held[0].version,
            now=late,
        )
        assert saved.activity.leased_until == late + timedelta(seconds=300), (
            "a save takes no lease back"
        )
        assert await store.leases.release("le-b", now=late) is not None
        after = await store.sandboxes.get(made.id)
        assert after.activity.leased_until == late + timedelta(seconds=90)
        over = late + timedelta(seconds=91)
        assert isinstance(decide_idle(after, now=over), Kill), "a dead holder's lease ends"
        assert await store.leases.renew("le-c", until=over, now=over) is None
        assert await store.leases.prune(now=over) == 1


async def test_a_lease_needs_a_claimed_row_to_be_free_and_running(database_url: str) -> None:
    async with open_store(database_url) as store:
        made = sandbox("one", Owner(OwnerKind.SESSION, "ann"))
        await store.sandboxes.insert(made)
        until = NOW + timedelta(seconds=60)
        lease = Lease("le-a", made.id, "test", taken_at=NOW, until=until)
        await store.sandboxes.claim(made.id, kind=ClaimKind.KILL, holder="x", until=until, now=NOW)
        assert not await store.leases.acquire(lease, source="test")
        held = await store.sandboxes.release(made.id, holder="x", now=NOW)
        assert held is not None
        await store.sandboxes.save(
            held.evolve(state=State.PAUSED), expect_version=held.version, now=NOW
        )
        assert not await store.leases.acquire(lease, source="test")
        assert (await store.sandboxes.get(made.id)).activity.leased_until is None
