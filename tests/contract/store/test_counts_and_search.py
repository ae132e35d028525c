"""Counts, search texts and sort keys are those of the rows, whatever wrote these, and however."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import suppress
from datetime import timedelta

import pytest
from sqlalchemy import text

from sandkeeper.domain.activity import Activity, ActivityClass, Touch
from sandkeeper.domain.errors import VersionConflictError
from sandkeeper.domain.owner import Owner, OwnerKind
from sandkeeper.domain.policy import Policy
from sandkeeper.domain.sandbox import ClaimKind, Launch, Sandbox
from sandkeeper.domain.states import State
from sandkeeper.store import Store, open_store
from sandkeeper.store.sandboxes.query import SandboxQuery, Sort
from sandkeeper.store.schema import downgrade, upgrade
from support.records import T0, at, new_record

_ROWS = "SELECT provider, region, state, count(*) FROM sandboxes GROUP BY provider, region, state"
_COUNTS = (
    "SELECT provider, region, state, sum(change) FROM sandbox_counts"
    " GROUP BY provider, region, state HAVING sum(change) <> 0"
)
_NEWEST = {True: "max", False: "greatest"}


def touched(sandbox_id: str, turn: int) -> Touch:
    return Touch(sandbox_id, Activity(at(turn), ActivityClass.INTENT, "tab"), None)


async def read(store: Store, query: str) -> list[tuple[object, ...]]:
    async with store.database.reading() as connection:
        return sorted(map(tuple, await connection.execute(text(query))), key=repr)


async def assert_derived(store: Store) -> None:
    """Everything that triggers keep is what the rows say."""
    assert Counter({row[:3]: int(str(row[3])) for row in await read(store, _COUNTS)}) == Counter(
        {row[:3]: int(str(row[3])) for row in await read(store, _ROWS)}
    )
    newest = _NEWEST[store.database.is_sqlite]
    kept = await read(
        store, "SELECT sandbox_id, last_active_at, seen_at FROM sandbox_changes WHERE NOT removed"
    )
    assert kept == await read(
        store,
        "SELECT id, last_active_at, CASE WHEN state IN ('KILLED', 'EXPIRED', 'TERMINATED')"
        f" THEN NULL ELSE {newest}(coalesce(last_verified_at, created_at),"
        " coalesce(observed_at, 0)) END FROM sandboxes",
    )
    searched = dict(await read(store, "SELECT sandbox_id, text FROM sandbox_search"))
    rows = await read(store, "SELECT id, coalesce(instance_id, ''), owner_id FROM sandboxes")
    assert searched.keys() == {row[0] for row in rows}
    for row in rows:
        assert str(searched[row[0]]).startswith("\n\n" + "\n\n".join(map(str, row)))


async def write_at_random(store: Store, seed: int, *, turns: int) -> None:
    """Use every way to write a sandbox, in any order, and beside others that do the same."""
    chance = random.Random(seed)
    own: list[Sandbox] = []
    for turn in range(turns):
        match chance.randrange(8) if own else 0:
            case 0 | 1:
                made = new_record(
                    f"w{seed}-{turn}",
                    state=chance.choice(list(State)),
                    region=chance.choice([None, "eu", "us"]),
                    next_check_at=at(turn),
                )
                own.append(await store.sandboxes.insert(made))
            case 2:
                one = await store.sandboxes.find(chance.choice(own).id)
                if one is not None:
                    changed = one.evolve(state=chance.choice(list(State)), region="ap")
                    with suppress(VersionConflictError):  # Another one pruned it.
                        await store.sandboxes.save(
                            changed, expect_version=one.version, now=at(turn)
                        )
            case 3:
                found = [await store.sandboxes.find(one.id) for one in chance.sample(own, 1)]
                moved = [(one.evolve(state=State.PAUSED), ()) for one in found if one is not None]
                with suppress(VersionConflictError):
                    await store.bulk.save(moved, deliveries=(), now=at(turn))
            case 4:
                await store.sandboxes.touch([touched(one.id, turn) for one in own])
                await store.sandboxes.confirm([one.id for one in own], at=at(turn))
            case 5:
                one = chance.choice(own)
                await store.sandboxes.claim(
                    one.id, kind=ClaimKind.PAUSE, holder="h", until=at(turn), now=at(turn)
                )
                await store.sandboxes.release(one.id, holder="h", now=at(turn))
            case 6:
                await store.counts.fold()
            case 7:
                await store.prune(ended_before=at(turn), before=at(-9), now=at(turn))


async def test_no_writer_makes_them_differ(store: Store, database_url: str) -> None:
    async with open_store(database_url) as other:
        await asyncio.gather(
            *(write_at_random(one, seed, turns=12) for seed, one in enumerate((store, other) * 2))
        )
    await assert_derived(store)
    await store.counts.fold()
    await assert_derived(store)
    shown = await store.counts.by_state(silent=[("e2b", "eu")])
    assert sum(shown.values()) == sum((await store.counts.by_state()).values())
    assert len(await read(store, "SELECT number FROM sandbox_counts")) <= 4 * len(State)


async def test_a_sandbox_from_the_pool_is_found_under_its_new_owner(store: Store) -> None:
    await store.pools.put("base", target=1, now=T0)
    member = new_record("x", state=State.RUNNING).evolve(owner=Owner(OwnerKind.POOL, "base#first"))
    await store.sandboxes.insert(member)
    await store.pools.claim(
        "base",
        owner=Owner.project("customer-seven"),
        launch=Launch(metadata={"tier": "gold"}, tenant="acme"),
        policy=Policy(),
        now=at(1),
    )
    for searched in ("customer-seven", "gold", "mer-s", "acme"):
        found = await store.sandboxes.list(SandboxQuery(search=searched))
        assert [one.id for one in found.items] == [member.id], searched
    assert not (await store.sandboxes.list(SandboxQuery(search="base#first"))).items
    await assert_derived(store)


async def test_a_tenants_sandboxes_are_listed_and_found_and_the_default_one_is_no_word(
    store: Store,
) -> None:
    for name, tenant in (("a", "acme"), ("b", "acme-2"), ("c", "default")):
        await store.sandboxes.insert(new_record(name, tenant=tenant))
    listed = await store.sandboxes.list(SandboxQuery(tenant="acme"))
    assert [(one.id, one.tenant) for one in listed.items] == [("sb-a", "acme")]
    found = await store.sandboxes.list(SandboxQuery(search="acme"))
    assert {one.id for one in found.items} == {"sb-a", "sb-b"}
    assert not (await store.sandboxes.list(SandboxQuery(search="default"))).items
    moved = listed.items[0].evolve(tenant="globex")
    await store.sandboxes.save(moved, expect_version=moved.version, now=at(1))
    found = await store.sandboxes.list(SandboxQuery(search="globex", tenant="globex"))
    assert [one.id for one in found.items] == ["sb-a"]
    await assert_derived(store)


class NeverCommittedError(Exception):
    """A process that dies in its transaction."""


async def test_a_transaction_that_never_commits_counts_nothing(store: Store) -> None:
    await store.sandboxes.insert(new_record("one", state=State.RUNNING))

    async def die() -> None:
        async with store.database.writing() as connection:
            await connection.execute(text("UPDATE sandboxes SET state = 'KILLED', owner_id = 'x'"))
            await connection.execute(text("DELETE FROM sandboxes"))
            raise NeverCommittedError

    with pytest.raises(NeverCommittedError):
        await die()
    await assert_derived(store)
    assert (await store.counts.by_state())[State.RUNNING] == 1


async def test_a_migration_counts_what_an_older_version_wrote(store: Store) -> None:
    await store.sandboxes.insert(new_record("kept", state=State.RUNNING))
    await store.sandboxes.insert(new_record("gone", state=State.KILLED))
    await downgrade(store.database, "0021")
    async with store.database.writing() as connection:
        await connection.execute(text("UPDATE sandboxes SET state = 'PAUSED' WHERE id = 'sb-kept'"))
        await connection.execute(text("DELETE FROM sandboxes WHERE id = 'sb-gone'"))
    await upgrade(store.database)
    await assert_derived(store)
    counted = await store.counts.by_state()
    assert (counted[State.PAUSED], sum(counted.values())) == (1, 1)
    found = await store.sandboxes.list(SandboxQuery(search="kept", sort=Sort.ACTIVE))
    assert [one.owner.id for one in found.items] == ["kept"]


async def test_what_has_no_value_to_sort_by_comes_last_in_both_directions(store: Store) -> None:
    for number in range(6):
        moment = at(number) if number % 2 else None
        await store.sandboxes.insert(
            new_record(f"p{number}", last_active_at=moment, next_check_at=moment)
        )
    for sort in (Sort.ACTIVE, Sort.CHECK):
        for descending, expected in ((True, "531420"), (False, "135024")):
            names = ""
            cursor = None
            while True:
                query = SandboxQuery(sort=sort, descending=descending, limit=2)
                page = await store.sandboxes.list(query, cursor)
                names += "".join(one.owner.id[1:] for one in page.items)
                cursor = page.next_cursor
                if cursor is None:
                    break
            assert names == expected


async def test_a_frequent_word_is_found_page_by_page(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandkeeper.store.sandboxes.search.MATCHES_MAX", 3)
    for number in range(9):
        await store.sandboxes.insert(new_record(f"shop-{number}", created_at=at(number)))
        await store.sandboxes.insert(new_record(f"blog-{number}", created_at=at(number)))
    query = SandboxQuery(search="HOP-", limit=5)
    first = await store.sandboxes.list(query)
    second = await store.sandboxes.list(query, first.next_cursor)
    found = [one.owner.id for one in (*first.items, *second.items)]
    assert found == [f"shop-{number}" for number in range(8, -1, -1)]


async def test_metadata_that_no_database_can_search_is_stored_all_the_same(store: Store) -> None:
    odd = {"nul": "a\0b", "quote": 'say "hi"', "slash": "\\u0000", "é": "ünï"}
    made = await store.sandboxes.insert(new_record("odd", launch=Launch(metadata=odd)))
    assert (await store.sandboxes.get(made.id)).launch.metadata == odd
    assert (await store.sandboxes.list(SandboxQuery(search="odd"))).items == [made]


async def test_prune_removes_the_log_from_its_beginning_and_stops_at_what_is_younger(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandkeeper.store.store.PRUNE_BATCH", 3)
    columns = (
        "sandbox_id, owner_kind, owner_id, type, at, recorded_at, version, actor, reason, data"
    )
    ages = [60] * 7 + [1] * 2 + [60]
    async with store.database.writing() as connection:
        for age in ages:
            recorded = round((at(0) - timedelta(days=age)).timestamp() * 1000)
            values = f"'s', 'project', 'p', 't', 0, {recorded}, 1, '', '', '{{}}'"
            await connection.execute(text(f"INSERT INTO events ({columns}) VALUES ({values})"))
    before = at(0) - timedelta(days=30)
    pruned = await store.prune(ended_before=before, before=before, now=at(0))
    assert pruned.events == 7
    assert len(await store.events.of("s")) == 3, "an old entry behind a young one waits for it"
