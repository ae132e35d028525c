"""The provider is the truth: records follow it, and nothing is concluded from silence."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from sandkeeper.domain.errors import ProviderUnavailableError
from sandkeeper.domain.sandbox import ClaimKind, KilledReason
from sandkeeper.domain.states import State
from sandkeeper.testing.providers import DownProvider, LostReplyProvider

if TYPE_CHECKING:
    from conftest import House
    from sandkeeper.services.reconciliation import Reconciled

LATER = timedelta(seconds=90)


async def reconcile(house: House, *, dry_run: bool = False) -> Reconciled:
    return (await house.reconciliation.run(dry_run=dry_run))[0]


async def test_a_state_that_differs_is_corrected_and_the_next_pass_finds_nothing(
    house: House,
) -> None:
    paused, running = await house.launch("a"), await house.launch("b")
    await house.provider.pause(paused.instance_id or "")
    report = await reconcile(house)
    assert report.counts["state"] == 1
    assert (await house.read(paused)).state is State.PAUSED
    assert (await house.read(running)).state is State.RUNNING

    before = [await house.read(paused), await house.read(running)]
    house.clock.ahead = timedelta(minutes=3)
    assert not (await reconcile(house)).corrections
    after = [await house.read(paused), await house.read(running)]
    assert [one.version for one in before] == [one.version for one in after]
    for old, new in zip(before, after, strict=True):
        assert old.last_verified_at is not None
        assert new.last_verified_at is not None
        assert new.last_verified_at > old.last_verified_at


async def test_a_silent_loss_ends_the_record_and_an_end_with_a_reason_keeps_it(
    house: House,
) -> None:
    lost, expired = await house.launch("a"), await house.launch("b")
    house.provider.vanish(lost.instance_id or "")
    house.provider.end(expired.instance_id or "", reason="timeout")
    assert (await reconcile(house)).counts["orphaned"] == 2
    lost, expired = await house.read(lost), await house.read(expired)
    assert (lost.state, lost.killed_reason) == (State.KILLED, KilledReason.NOT_FOUND)
    assert (expired.state, expired.killed_reason) == (State.EXPIRED, KilledReason.EXPIRED)


async def test_records_of_a_region_that_is_configured_no_more_keep_no_other_from_being_compared(
    house: House,
) -> None:
    left, here = await house.launch("a"), await house.launch("b")
    await house.store.sandboxes.save(
        left.evolve(region="closed"), expect_version=left.version, now=house.clock()
    )
    house.provider.vanish(left.instance_id or "")
    await house.provider.pause(here.instance_id or "")
    assert (await reconcile(house)).counts["state"] == 1
    assert (await house.read(here)).state is State.PAUSED
    assert (await house.read(left)).state is State.RUNNING


async def test_unreachable_is_never_gone(house: House) -> None:
    sandbox = await house.launch()
    house.provider.vanish(sandbox.instance_id or "")
    house.use(DownProvider(house.provider, "look"))  # type: ignore[arg-type]
    assert (await reconcile(house)).counts["failed"] == 1
    assert (await house.read(sandbox)).state is State.RUNNING
    house.use(DownProvider(house.provider))  # type: ignore[arg-type]
    with pytest.raises(ProviderUnavailableError):
        await house.reconciliation.run()
    assert (await house.read(sandbox)).state is State.RUNNING


async def test_a_row_that_somebody_holds_is_left_alone(house: House) -> None:
    sandbox = await house.launch()
    house.provider.vanish(sandbox.instance_id or "")
    now = house.clock()
    await house.store.sandboxes.claim(
        sandbox.id, kind=ClaimKind.WAKE, holder="h", until=now + timedelta(seconds=30), now=now
    )
    await reconcile(house)
    assert (await house.read(sandbox)).state is State.RUNNING
    house.clock.ahead = timedelta(seconds=60)
    assert (await reconcile(house)).counts["stuck_claims"] == 1
    assert (await house.read(sandbox)).state is State.KILLED


async def test_a_creation_whose_answer_was_lost_is_adopted_and_not_doubled(house: House) -> None:
    sandbox = await house.write_down()
    with pytest.raises(ProviderUnavailableError):
        await LostReplyProvider(house.provider).create(house.spec(sandbox))
    assert (await reconcile(house)).counts["adopted"] == 1
    adopted = await house.read(sandbox)
    assert adopted.state is State.RUNNING
    assert list(house.provider.instances) == [adopted.instance_id]
    house.clock.ahead = LATER
    for _ in range(3):
        assert (await reconcile(house)).counts["leak"] == 0
    assert list(house.provider.instances) == [adopted.instance_id]


async def test_a_leak_is_removed_only_when_seen_twice_and_a_stranger_never(house: House) -> None:
    sandbox = await house.launch()
    spec = house.spec(sandbox)
    twin = await house.provider.create(spec)
    nobodys = await house.provider.create(replace(spec, tag=replace(spec.tag, sandbox_id="none")))
    others = await house.provider.create(replace(spec, tag=replace(spec.tag, keeper="other")))

    assert (await reconcile(house)).counts["leak"] == 0  # They may be about to be written down.
    house.clock.ahead = LATER
    first = await reconcile(house)
    assert (first.counts["leak"], first.counts["removed"]) == (2, 0)
    assert first.counts["foreign"] == 1
    house.clock.ahead = 2 * LATER
    assert (await reconcile(house)).counts["removed"] == 2
    alive = set(house.provider.instances)
    assert alive == {sandbox.instance_id, others.instance_id}
    assert {twin.instance_id, nobodys.instance_id}.isdisjoint(alive)
    kinds = {one.kind for one in await house.store.leaks.list(since=sandbox.created_at)}
    assert kinds == {"foreign"}


async def test_the_hourly_cap_bounds_what_a_mistake_can_cost(house: House) -> None:
    sandbox = await house.launch()
    for number in range(5):
        tag = replace(house.spec(sandbox).tag, sandbox_id=f"lost-{number}")
        await house.provider.create(replace(house.spec(sandbox), tag=tag))
    house.clock.ahead = LATER
    await reconcile(house)
    removed = 0
    for passes in range(2, 6):
        house.clock.ahead = passes * LATER
        removed += (await reconcile(house)).counts["removed"]
    assert removed == 2
    house.clock.ahead = timedelta(hours=2)
    assert (await reconcile(house)).counts["removed"] == 2


async def test_what_was_killed_on_purpose_and_still_runs_is_a_leak_and_not_revived(
    house: House,
) -> None:
    sandbox = await house.launch()
    instance = house.provider.instances[sandbox.instance_id or ""]
    house.provider.end(instance.instance_id, reason="request")
    await house.deliver(house.provider.events[-1])
    house.provider.instances[instance.instance_id] = instance
    for passes in (1, 2):
        house.clock.ahead = passes * LATER
        await reconcile(house)
    assert (await house.read(sandbox)).state is State.KILLED
    assert house.provider.instances == {}


async def test_a_dry_run_tells_everything_and_changes_nothing(house: House) -> None:
    drifted, lost = await house.launch("a"), await house.launch("b")
    await house.provider.pause(drifted.instance_id or "")
    house.provider.vanish(lost.instance_id or "")
    before = [await house.read(drifted), await house.read(lost)]
    report = await reconcile(house, dry_run=True)
    assert {one.kind for one in report.corrections} == {"state", "orphaned"}
    assert [await house.read(drifted), await house.read(lost)] == before
