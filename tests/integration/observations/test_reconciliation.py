"""The provider is the truth: records follow it, and nothing is concluded from silence."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import delete

from conftest import House
from sandkeeper.domain.errors import ProviderUnavailableError
from sandkeeper.domain.observation import Observation, ObservedStatus, Source
from sandkeeper.domain.sandbox import ClaimKind
from sandkeeper.domain.states import KilledReason, State
from sandkeeper.services.observe.reconciliation import ReconcileReport
from sandkeeper.store.tables.sandboxes import SANDBOXES
from sandkeeper.testing.providers import DownProvider, LostReplyProvider

LATER = timedelta(seconds=90)


async def reconcile(house: House, *, dry_run: bool = False) -> ReconcileReport:
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


async def test_a_second_instance_is_removed_when_seen_twice_and_what_no_record_knows_never(
    house: House,
) -> None:
    sandbox = await house.launch()
    spec = house.spec(sandbox)
    twin = await house.provider.create(spec)
    unowned = await house.provider.create(replace(spec, tag=replace(spec.tag, sandbox_id="none")))
    newer = await house.provider.create(replace(spec, tag=replace(spec.tag, generation=2)))
    others = await house.provider.create(replace(spec, tag=replace(spec.tag, keeper="other")))

    early = (await reconcile(house)).counts  # They may be about to be written down.
    assert (early["leak"], early["unowned"]) == (0, 0)
    house.clock.ahead = LATER
    first = await reconcile(house)
    assert (first.counts["leak"], first.counts["removed"]) == (1, 0)
    assert (first.counts["foreign"], first.counts["unowned"]) == (1, 2)
    for passes in range(2, 6):
        house.clock.ahead = passes * LATER
        assert (await reconcile(house)).counts["removed"] == (1 if passes == 2 else 0)
    alive = set(house.provider.instances)
    assert alive == {one.instance_id for one in (sandbox, unowned, newer, others)}
    found = {one.instance_id: one for one in await house.store.leaks.list(since=sandbox.created_at)}
    kinds = {instance_id: one.kind for instance_id, one in found.items()}
    assert kinds == {
        twin.instance_id: "leak",
        unowned.instance_id: "unowned",
        newer.instance_id: "unowned",
        others.instance_id: "foreign",
    }
    removed = found[twin.instance_id]
    assert (removed.removed_by, removed.removed_at is not None) == ("replica-1", True)
    assert str(sandbox.instance_id) in removed.reason
    assert {one.removed_at for one in found.values()} == {None, removed.removed_at}


async def test_a_removal_names_the_person_who_asked_for_the_pass(house: House) -> None:
    sandbox = await house.launch()
    twin = await house.provider.create(house.spec(sandbox))
    for passes in (1, 2):
        house.clock.ahead = passes * LATER
        await house.reconciliation.run(actor="operator:ada")
    [removed] = await house.store.leaks.list(since=house.clock())
    assert (removed.instance_id, removed.removed_by) == (twin.instance_id, "operator:ada")


async def test_a_second_instance_is_kept_when_the_recorded_one_is_gone(house: House) -> None:
    sandbox = await house.launch()
    twin = await house.provider.create(house.spec(sandbox))
    house.clock.ahead = LATER
    assert (await reconcile(house)).counts["leak"] == 1
    house.provider.vanish(sandbox.instance_id or "")
    for passes in (2, 3, 4):
        house.clock.ahead = passes * LATER
        report = await reconcile(house)
        assert (report.counts["unowned"], report.counts["removed"]) == (1, 0)
    assert list(house.provider.instances) == [twin.instance_id]


async def test_a_database_that_lost_its_records_costs_no_sandbox(house: House) -> None:
    sandboxes = [await house.launch(f"shop-{number}") for number in range(3)]
    alive = set(house.provider.instances)
    async with house.store.database.writing() as connection:
        await connection.execute(delete(SANDBOXES))
    for passes in range(1, 5):
        house.clock.ahead = passes * LATER
        assert (await reconcile(house)).counts["unowned"] == len(sandboxes)
    assert set(house.provider.instances) == alive


async def test_the_hourly_cap_bounds_what_a_mistake_can_cost(house: House) -> None:
    sandbox = await house.launch()
    for _ in range(5):
        await house.provider.create(house.spec(sandbox))
    house.clock.ahead = LATER
    await reconcile(house)
    removed = 0
    for passes in range(2, 6):
        house.clock.ahead = passes * LATER
        removed += (await reconcile(house)).counts["removed"]
    assert removed == 2
    house.clock.ahead = timedelta(hours=2)
    assert (await reconcile(house)).counts["removed"] == 2


async def test_what_we_ended_ourselves_and_still_runs_is_shown_and_neither_revived_nor_removed(
    house: House,
) -> None:
    sandbox = await house.launch()
    ended = Observation(
        sandbox.instance_id or "",
        ObservedStatus.KILLED,
        house.clock(),
        Source.REPLY,
        actor="operator:ada",
    )
    await house.observations.record(ended)
    for passes in range(1, 5):
        house.clock.ahead = passes * LATER
        report = await reconcile(house)
        assert (report.counts["unowned"], report.counts["leak"]) == (1, 0)
    assert (await house.read(sandbox)).state is State.KILLED
    assert list(house.provider.instances) == [sandbox.instance_id]
    [shown] = await house.store.leaks.list(since=sandbox.created_at)
    assert (shown.kind, shown.removed_at) == ("unowned", None)
    assert "operator:ada" in shown.reason


async def test_a_dry_run_tells_everything_and_changes_nothing(house: House) -> None:
    drifted, lost = await house.launch("a"), await house.launch("b")
    await house.provider.pause(drifted.instance_id or "")
    house.provider.vanish(lost.instance_id or "")
    before = [await house.read(drifted), await house.read(lost)]
    report = await reconcile(house, dry_run=True)
    assert {one.kind for one in report.corrections} == {"state", "orphaned"}
    assert [await house.read(drifted), await house.read(lost)] == before
