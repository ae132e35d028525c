"""The store's promises about rows, on both databases."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from sandkeeper.domain.activity import Activity, ActivityClass, Touch
from sandkeeper.domain.errors import (
    InvalidRequestError,
    SandboxExistsError,
    SandboxNotFoundError,
    VersionConflictError,
)
from sandkeeper.domain.events import StateChanged
from sandkeeper.domain.observe.observation import ObservedStatus
from sandkeeper.domain.owner import Owner
from sandkeeper.domain.policy import IdleAction, Launch, Policy
from sandkeeper.domain.sandbox import Claim, ClaimKind, Sandbox
from sandkeeper.domain.states import KilledReason, State
from sandkeeper.store import Delivery, SandboxQuery, Sort, Store, open_store
from support.records import T0, at, new_record


def changed(sandbox: Sandbox, new: State = State.RUNNING) -> StateChanged:
    return StateChanged(
        sandbox_id=sandbox.id,
        owner=sandbox.owner,
        at=T0,
        actor="test",
        reason="why",
        old_state=sandbox.state,
        new_state=new,
        source="reply",
    )


def touched(sandbox_id: str, seconds: float, kind: ActivityClass = ActivityClass.INTENT) -> Touch:
    act = Activity(at(seconds), kind, "tab")
    if kind.keeps_awake:
        return Touch(sandbox_id, act, None)
    return Touch(sandbox_id, None, act)


async def test_a_record_comes_back_as_it_was_written(store: Store) -> None:
    full = new_record(
        "full",
        state=State.KILLED,
        generation=3,
        launch=Launch("base", {"A": "1"}, {"k": "ü"}, 3000, "npm start", "/app", "eu"),
        policy=Policy(idle_timeout_s=None, lifetime_s=60.5, on_idle=IdleAction.KILL),
        region="eu",
        instance_id="i-1",
        run_id="r-1",
        run_started_at=at(1),
        url="https://3000-i-1.test",
        ready=True,
        reason="r",
        actor="a",
        expires_at=at(2),
        end_at=at(3),
        end_as_of=at(4),
        last_active_at=at(5),
        last_active_class=ActivityClass.WORK,
        last_active_source="exec",
        passive_count=7,
        passive_at=at(6),
        passive_source="poll",
        last_verified_at=at(7),
        verification_failures=2,
        unreachable_at=at(8),
        observed_at=at(9),
        state_as_of=at(10),
        acted_at=at(11),
        last_event_at=at(12),
        last_event_seen=ObservedStatus.KILLED,
        last_event_id="e-1",
        last_webhook_at=at(13),
        killed_at=at(14),
        killed_reason=KilledReason.EXPIRED,
        paused_by_scheduler_at=at(15),
        recreated=True,
        recreation_reason="expired",
        claim=Claim(ClaimKind.WAKE, "me", at(16)),
        next_check_at=at(17),
    )
    await store.sandboxes.insert(full)
    assert await store.sandboxes.get("sb-full") == full
    assert await store.sandboxes.get_by_owner(Owner.project("full")) == full
    assert await store.sandboxes.find_by_instance("i-1") == full
    with pytest.raises(SandboxNotFoundError):
        await store.sandboxes.get("sb-none")


async def test_an_owner_and_an_instance_have_one_record(store: Store) -> None:
    await store.sandboxes.insert(new_record("one", instance_id="i-1"))
    with pytest.raises(SandboxExistsError):
        await store.sandboxes.insert(new_record("one").evolve(id="sb-other"))
    with pytest.raises(SandboxExistsError):
        await store.sandboxes.insert(new_record("two", instance_id="i-1"))
    two = await store.sandboxes.insert(new_record("two"))
    with pytest.raises(SandboxExistsError):
        await store.sandboxes.save(
            two.evolve(instance_id="i-1"), expect_version=two.version, now=at(1)
        )
    assert (await store.sandboxes.get(two.id)).version == 1


async def test_a_save_needs_the_version_it_read_and_writes_all_or_nothing(store: Store) -> None:
    one = await store.sandboxes.insert(new_record("one"))
    delivery = Delivery(received_at=at(1), outcome="applied", event_id="ev-1")
    saved = await store.sandboxes.save(
        one.evolve(state=State.RUNNING),
        [changed(one)],
        expect_version=1,
        now=at(1),
        delivery=delivery,
    )
    assert (saved.version, saved.state, saved.updated_at) == (2, State.RUNNING, at(1))
    with pytest.raises(VersionConflictError):
        await store.sandboxes.save(
            one.evolve(state=State.KILLED),
            [changed(one, State.KILLED)],
            expect_version=1,
            now=at(2),
            delivery=Delivery(received_at=at(2), outcome="applied", event_id="ev-2"),
        )
    logged = await store.events.after(0)
    assert [(event.version, event.data["new_state"]) for event in logged] == [(2, "RUNNING")]
    assert await store.deliveries.find_seen(["ev-1", "ev-2"]) == {"ev-1"}
    assert [one.event_id for one in await store.deliveries.latest()] == ["ev-1"]


async def test_of_many_savers_of_one_reading_one_wins(store: Store) -> None:
    one = await store.sandboxes.insert(new_record("one"))

    async def save(number: int) -> bool:
        try:
            await store.sandboxes.save(
                one.evolve(reason=str(number)), expect_version=1, now=at(number)
            )
        except VersionConflictError:
            return False
        return True

    assert sum(await asyncio.gather(*(save(number) for number in range(20)))) == 1


async def test_a_save_takes_no_newer_activity_back(store: Store) -> None:
    one = await store.sandboxes.insert(new_record("one", last_active_at=at(1)))
    await store.sandboxes.touch([touched(one.id, 50)])
    saved = await store.sandboxes.save(one, expect_version=1, now=at(60))
    assert saved.activity.last_active_at == at(50)


async def test_activity_only_moves_forward_and_passive_is_only_counted(store: Store) -> None:
    one = await store.sandboxes.insert(new_record("one"))
    two = await store.sandboxes.insert(new_record("two"))
    found = await store.sandboxes.touch(
        [touched(one.id, 50), touched(two.id, 5), touched("sb-none", 5)]
    )
    assert found == {one.id, two.id}
    await store.sandboxes.touch([touched(one.id, 20, ActivityClass.WORK)])
    await store.sandboxes.touch([touched(one.id, 90, ActivityClass.PASSIVE)])
    await store.sandboxes.touch([touched(one.id, 80, ActivityClass.PASSIVE)])
    one = await store.sandboxes.get(one.id)
    assert (one.activity.last_active_at, one.activity.last_active_class) == (
        at(50),
        ActivityClass.INTENT,
    )
    assert (one.activity.passive_count, one.activity.passive_at, one.version) == (2, at(90), 1)
    assert (await store.sandboxes.get(two.id)).activity.last_active_at == at(5)


async def test_replicas_that_write_to_the_same_sandboxes_at_once_never_stand_in_each_others_way(
    store: Store, database_url: str
) -> None:
    ids = [(await store.sandboxes.insert(new_record(f"p{number:02}"))).id for number in range(40)]
    async with open_store(database_url) as other:
        for turn in range(10):
            touches = [touched(one, turn) for one in ids]
            await asyncio.gather(
                store.sandboxes.touch(touches),
                other.sandboxes.touch(touches[::-1]),
                store.sandboxes.confirm(ids[::-1], at=at(turn)),
                other.sandboxes.confirm(ids, at=at(turn)),
            )
    last = await store.sandboxes.get(ids[7])
    assert (last.activity.last_active_at, last.sightings.last_verified_at) == (at(9), at(9))


async def test_a_claim_has_one_holder_until_it_ends(store: Store) -> None:
    one = await store.sandboxes.insert(new_record("one"))

    async def claim(holder: str, now: float, *, renew: bool = False) -> Sandbox | None:
        return await store.sandboxes.claim(
            one.id,
            kind=ClaimKind.PAUSE,
            holder=holder,
            until=at(now + 10),
            now=at(now),
            renew=renew,
        )

    taken = await asyncio.gather(*(claim(f"h{number}", 0) for number in range(10)))
    winners = [sandbox for sandbox in taken if sandbox is not None]
    assert len(winners) == 1
    assert winners[0].version == 2
    holder = winners[0].claim.holder if winners[0].claim else ""
    assert await claim(holder, 5) is None
    assert await claim(holder, 5, renew=True) is not None
    assert await store.sandboxes.release(one.id, holder="another", now=at(6)) is None
    assert await claim("late", 16) is not None
    assert await store.sandboxes.release(one.id, holder=holder, now=at(17)) is None
    released = await store.sandboxes.release(
        one.id, holder="late", now=at(17), next_check_at=at(30)
    )
    assert released is not None
    assert (released.claim, released.next_check_at) == (None, at(30))


async def test_due_work_is_shared_without_overlap_and_comes_back_when_its_holder_dies(
    store: Store, database_url: str
) -> None:
    for number in range(60):
        due = at(number) if number < 50 else None
        await store.sandboxes.insert(new_record(f"p{number:02}", next_check_at=due))
    assert await store.sandboxes.find_next_due_at(now=T0) == at(0)
    assert await store.counts.due(now=at(39)) == 40
    async with open_store(database_url) as other:

        async def take(replica: Store, holder: str) -> list[str]:
            mine: list[str] = []
            while batch := await replica.sandboxes.claim_due(
                now=at(39), holder=holder, lease_s=30, limit=7
            ):
                mine += [sandbox.id for sandbox in batch]
            return mine

        first, second = await asyncio.gather(take(store, "a"), take(other, "b"))
    assert sorted(first + second) == [f"sb-p{number:02}" for number in range(40)]
    again = await store.sandboxes.claim_due(now=at(69), holder="c", lease_s=30, limit=100)
    assert len(again) == 50
    assert again[0].claim == Claim(ClaimKind.SWEEP, "c", at(99))


async def test_a_claimed_sandbox_is_not_due(store: Store) -> None:
    one = await store.sandboxes.insert(new_record("one", next_check_at=at(1)))
    await store.sandboxes.claim(one.id, kind=ClaimKind.WAKE, holder="w", until=at(60), now=at(2))
    assert await store.sandboxes.claim_due(now=at(10), holder="s", lease_s=5, limit=9) == []
    assert await store.sandboxes.find_next_due_at(now=at(10)) is None
    assert len(await store.sandboxes.claim_due(now=at(60), holder="s", lease_s=5, limit=9)) == 1


async def test_a_confirmation_moves_only_the_age_of_the_knowledge(store: Store) -> None:
    one = await store.sandboxes.insert(new_record("one", last_verified_at=at(50)))
    two = await store.sandboxes.insert(new_record("two"))
    assert await store.counts.stale(before=at(40), of=2) == 1
    assert await store.sandboxes.confirm([one.id, two.id], at=at(45)) == 2
    assert (await store.sandboxes.get(one.id)).sightings.last_verified_at == at(50)
    found = await store.sandboxes.get(two.id)
    assert (found.sightings.last_verified_at, found.sightings.state_as_of, found.version) == (
        at(45),
        at(45),
        1,
    )
    assert await store.counts.stale(before=at(40), of=2) == 0


async def test_pages_follow_each_other_without_gap_or_overlap(store: Store) -> None:
    for number in range(25):
        await store.sandboxes.insert(
            new_record(
                f"p{number % 5}-{number}",
                created_at=at(number % 4),
                last_active_at=at(number) if number % 2 else None,
                state=list(State)[number % 7],
            )
        )
    for sort, descending in itertools.product(Sort, (True, False)):
        query = SandboxQuery(sort=sort, descending=descending, limit=4)
        page = await store.sandboxes.list(query)
        seen = [sandbox.id for sandbox in page.items]
        while page.next_cursor is not None:
            page = await store.sandboxes.list(query, page.next_cursor)
            seen += [sandbox.id for sandbox in page.items]
        assert len(seen) == len(set(seen)) == 25
        whole = await store.sandboxes.list(SandboxQuery(sort=sort, descending=descending))
        assert [sandbox.id for sandbox in whole.items] == seen


async def test_a_list_filters_and_refuses_a_foreign_cursor(store: Store) -> None:
    await store.sandboxes.insert(new_record("shop", state=State.RUNNING, region="eu"))
    await store.sandboxes.insert(
        new_record(
            "blog",
            state=State.PAUSED,
            launch=Launch(metadata={"team": "100%_red"}, env={"TOKEN": "hidden"}),
        )
    )

    async def found(query: SandboxQuery) -> list[str]:
        return [one.owner.id for one in (await store.sandboxes.list(query)).items]

    assert await found(SandboxQuery(states=(State.RUNNING, State.KILLED))) == ["shop"]
    assert await found(SandboxQuery(search="sb-sh")) == ["shop"]
    assert await found(SandboxQuery(search="100%_r")) == ["blog"]
    assert await found(SandboxQuery(search="RED")) == ["blog"], "in either case"
    assert await found(SandboxQuery(search="%_r")) == ["blog"]
    assert await found(SandboxQuery(search="10")) == ["blog"], "two characters: a beginning"
    assert await found(SandboxQuery(search="b")) == ["blog"]
    assert await found(SandboxQuery(search="%")) == []
    assert await found(SandboxQuery(search='" OR "sb')) == []
    for hidden in ("TOKEN", "hidden", "env", "metadata"):
        assert await found(SandboxQuery(search=hidden)) == [], "of a launch, only its metadata"
    assert await found(SandboxQuery(region="eu")) == ["shop"]
    assert await found(SandboxQuery(owner_id="blog")) == ["blog"]
    with pytest.raises(InvalidRequestError):
        await store.sandboxes.list(SandboxQuery(), "no cursor")
    counted = await store.counts.by_state()
    assert (counted[State.RUNNING], counted[State.PAUSED], counted[State.KILLED]) == (1, 1, 0)
    live = await store.sandboxes.list_live(provider="e2b", after_id="sb-blog")
    assert [one.owner.id for one in live] == ["shop"]
