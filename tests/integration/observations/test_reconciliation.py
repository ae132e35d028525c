"""The provider is the truth: records follow it, and nothing is concluded from silence."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import delete

from sandkeeper.domain.errors import ProviderUnavailableError
from sandkeeper.domain.observe.observation import Observation, ObservedStatus, Source
from sandkeeper.domain.sandbox import ClaimKind, Sandbox
from sandkeeper.domain.states import KilledReason, State
from sandkeeper.providers.base import Instance, InstanceState
from sandkeeper.services.observe.reconciliation import ReconcileReport
from sandkeeper.store.tables.sandboxes import SANDBOXES
from sandkeeper.testing.providers import DownProvider, LostReplyProvider
from support.observing_keeper import ObservingKeeper

LATER = timedelta(seconds=90)


async def reconcile(keeper: ObservingKeeper, *, dry_run: bool = False) -> ReconcileReport:
    return (await keeper.reconciliation.run(dry_run=dry_run))[0]


async def create_twin(keeper: ObservingKeeper, sandbox: Sandbox, number: int = 1) -> Instance:
    """Create another instance of a sandbox; only a request that differs can do that."""
    return await keeper.provider.create(replace(keeper.spec(sandbox), timeout_s=600 + number))


async def test_a_state_that_differs_is_corrected_and_the_next_pass_finds_nothing(
    keeper: ObservingKeeper,
) -> None:
    paused, running = await keeper.launch("a"), await keeper.launch("b")
    await keeper.provider.pause(paused.instance_id or "")
    report = await reconcile(keeper)
    assert report.counts["state"] == 1
    assert (await keeper.read(paused)).state is State.PAUSED
    assert (await keeper.read(running)).state is State.RUNNING

    before = [await keeper.read(paused), await keeper.read(running)]
    keeper.clock.ahead = timedelta(minutes=3)
    assert not (await reconcile(keeper)).corrections
    after = [await keeper.read(paused), await keeper.read(running)]
    assert [one.version for one in before] == [one.version for one in after]
    for old, new in zip(before, after, strict=True):
        assert old.sightings.last_verified_at is not None
        assert new.sightings.last_verified_at is not None
        assert new.sightings.last_verified_at > old.sightings.last_verified_at


async def test_a_silent_loss_ends_the_record_and_an_end_with_a_reason_keeps_it(
    keeper: ObservingKeeper,
) -> None:
    lost, expired = await keeper.launch("a"), await keeper.launch("b")
    keeper.provider.vanish(lost.instance_id or "")
    keeper.provider.end(expired.instance_id or "", reason="timeout")
    assert (await reconcile(keeper)).counts["orphaned"] == 2
    lost, expired = await keeper.read(lost), await keeper.read(expired)
    assert (lost.state, lost.last_end.killed_reason) == (State.KILLED, KilledReason.NOT_FOUND)
    assert (expired.state, expired.last_end.killed_reason) == (State.EXPIRED, KilledReason.EXPIRED)


async def test_records_of_a_region_that_is_configured_no_more_keep_no_other_from_being_compared(
    keeper: ObservingKeeper,
) -> None:
    left, here = await keeper.launch("a"), await keeper.launch("b")
    await keeper.store.sandboxes.save(
        left.evolve(region="closed"), expect_version=left.version, now=keeper.clock()
    )
    keeper.provider.vanish(left.instance_id or "")
    await keeper.provider.pause(here.instance_id or "")
    assert (await reconcile(keeper)).counts["state"] == 1
    assert (await keeper.read(here)).state is State.PAUSED
    assert (await keeper.read(left)).state is State.RUNNING


async def test_unreachable_is_never_gone(keeper: ObservingKeeper) -> None:
    sandbox = await keeper.launch()
    keeper.provider.vanish(sandbox.instance_id or "")
    keeper.use(DownProvider(keeper.provider, "get"))  # type: ignore[arg-type]
    assert (await reconcile(keeper)).counts["failed"] == 1
    assert (await keeper.read(sandbox)).state is State.RUNNING
    keeper.use(DownProvider(keeper.provider))  # type: ignore[arg-type]
    with pytest.raises(ProviderUnavailableError):
        await keeper.reconciliation.run()
    assert (await keeper.read(sandbox)).state is State.RUNNING


async def test_a_claimed_row_is_left_alone(keeper: ObservingKeeper) -> None:
    sandbox = await keeper.launch()
    keeper.provider.vanish(sandbox.instance_id or "")
    now = keeper.clock()
    await keeper.store.sandboxes.claim(
        sandbox.id, kind=ClaimKind.WAKE, holder="h", until=now + timedelta(seconds=30), now=now
    )
    await reconcile(keeper)
    assert (await keeper.read(sandbox)).state is State.RUNNING
    keeper.clock.ahead = timedelta(seconds=60)
    assert (await reconcile(keeper)).counts["stuck_claims"] == 1
    assert (await keeper.read(sandbox)).state is State.KILLED


async def test_a_creation_whose_answer_was_lost_is_adopted_and_not_doubled(
    keeper: ObservingKeeper,
) -> None:
    sandbox = await keeper.write_down()
    with pytest.raises(ProviderUnavailableError):
        await LostReplyProvider(keeper.provider).create(keeper.spec(sandbox))
    assert (await reconcile(keeper)).counts["adopted"] == 1
    adopted = await keeper.read(sandbox)
    assert adopted.state is State.RUNNING
    assert list(keeper.provider.instances) == [adopted.instance_id]
    keeper.clock.ahead = LATER
    for _ in range(3):
        assert (await reconcile(keeper)).counts["leak"] == 0
    assert list(keeper.provider.instances) == [adopted.instance_id]


async def test_a_second_instance_is_paused_when_seen_twice_and_removed_a_day_later(
    keeper: ObservingKeeper,
) -> None:
    sandbox = await keeper.launch()
    spec = keeper.spec(sandbox)
    twin = await create_twin(keeper, sandbox)
    pooled = replace(spec.tag, sandbox_id="none", owner_kind="pool", owner_id="p-1")
    unowned = await keeper.provider.create(replace(spec, tag=pooled))
    newer = await keeper.provider.create(replace(spec, tag=replace(spec.tag, generation=2)))
    others = await keeper.provider.create(replace(spec, tag=replace(spec.tag, keeper="other")))

    early = (await reconcile(keeper)).counts  # They may be about to be written down.
    assert (early["leak"], early["unowned"]) == (0, 0)
    keeper.clock.ahead = LATER
    first = await reconcile(keeper)
    assert (first.counts["leak"], first.counts["removed"]) == (1, 0)
    assert (first.counts["foreign"], first.counts["unowned"]) == (1, 2)
    for passes in range(2, 5):
        keeper.clock.ahead = passes * LATER
        counts = (await reconcile(keeper)).counts
        assert (counts["paused"], counts["removed"]) == (3 if passes == 2 else 0, 0)
    states = {name: one.state for name, one in keeper.provider.instances.items()}
    assert states == {
        sandbox.instance_id: InstanceState.RUNNING,
        twin.instance_id: InstanceState.PAUSED,
        unowned.instance_id: InstanceState.PAUSED,
        newer.instance_id: InstanceState.PAUSED,
        others.instance_id: InstanceState.RUNNING,
    }
    keeper.clock.ahead = timedelta(days=1, minutes=5)
    assert [(await reconcile(keeper)).counts["removed"] for _ in range(2)] == [1, 0]
    alive = set(keeper.provider.instances)
    assert alive == {one.instance_id for one in (sandbox, unowned, newer, others)}
    found = {
        one.instance_id: one for one in await keeper.store.leaks.list(since=sandbox.created_at)
    }
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


async def test_a_removal_names_the_person_who_asked_for_the_pass(keeper: ObservingKeeper) -> None:
    sandbox = await keeper.launch()
    twin = await create_twin(keeper, sandbox)
    for ahead in (LATER, 2 * LATER, timedelta(days=2)):
        keeper.clock.ahead = ahead
        await keeper.reconciliation.run(actor="operator:ada")
    [removed] = await keeper.store.leaks.list(since=keeper.clock())
    assert (removed.instance_id, removed.removed_by) == (twin.instance_id, "operator:ada")


async def test_a_second_instance_is_kept_when_the_recorded_one_is_gone(
    keeper: ObservingKeeper,
) -> None:
    sandbox = await keeper.launch()
    twin = await create_twin(keeper, sandbox)
    keeper.clock.ahead = LATER
    assert (await reconcile(keeper)).counts["leak"] == 1
    keeper.provider.vanish(sandbox.instance_id or "")
    for passes in (2, 3, 4, 2000):
        keeper.clock.ahead = passes * LATER
        report = await reconcile(keeper)
        assert (report.counts["unowned"], report.counts["removed"]) == (1, 0)
    assert list(keeper.provider.instances) == [twin.instance_id]


async def test_a_leak_that_was_resumed_since_is_in_use_and_kept(keeper: ObservingKeeper) -> None:
    sandbox = await keeper.launch()
    twin = await create_twin(keeper, sandbox)
    for passes in (1, 2):
        keeper.clock.ahead = passes * LATER
        await reconcile(keeper)
    await keeper.provider.connect(twin.instance_id, timeout_s=60)
    for days in (2, 3):
        keeper.clock.ahead = timedelta(days=days)
        counts = (await reconcile(keeper)).counts
        assert (counts["leak"], counts["paused"], counts["removed"]) == (1, 0, 0)
    assert keeper.provider.instances[twin.instance_id].state is InstanceState.RUNNING


async def test_a_database_that_lost_its_records_adopts_every_sandbox(
    keeper: ObservingKeeper,
) -> None:
    sandboxes = [await keeper.launch(f"shop-{number}") for number in range(3)]
    await keeper.provider.pause(sandboxes[0].instance_id or "")
    alive = dict(keeper.provider.instances)
    async with keeper.store.database.writing() as connection:
        await connection.execute(delete(SANDBOXES))
    keeper.clock.ahead = LATER
    assert (await reconcile(keeper)).counts["adopted"] == len(sandboxes)
    for passes in range(2, 5):
        keeper.clock.ahead = passes * LATER
        assert not (await reconcile(keeper)).corrections
    assert keeper.provider.instances == alive
    found = [await keeper.read(one) for one in sandboxes]
    assert [one.state for one in found] == [State.PAUSED, State.RUNNING, State.RUNNING]
    assert [(one.owner, one.instance_id) for one in found] == [
        (one.owner, one.instance_id) for one in sandboxes
    ]


async def test_a_record_older_than_its_instance_takes_the_newer_one(
    keeper: ObservingKeeper,
) -> None:
    """The backup is from before a wake that replaced the instance."""
    sandbox = await keeper.launch()
    keeper.provider.vanish(sandbox.instance_id or "")
    spec = keeper.spec(sandbox)
    newer = await keeper.provider.create(replace(spec, tag=replace(spec.tag, generation=2)))
    for passes in (1, 2):
        keeper.clock.ahead = passes * LATER
        await reconcile(keeper)
    taken = await keeper.read(sandbox)
    assert (taken.state, taken.instance_id, taken.generation) == (
        State.RUNNING,
        newer.instance_id,
        2,
    )
    assert list(keeper.provider.instances) == [newer.instance_id]


async def test_the_hourly_cap_bounds_what_a_mistake_can_cost(keeper: ObservingKeeper) -> None:
    sandbox = await keeper.launch()
    for number in range(1, 6):
        await create_twin(keeper, sandbox, number)
    for passes in (1, 2):
        keeper.clock.ahead = passes * LATER
        await reconcile(keeper)
    removed = 0
    for passes in range(4):
        keeper.clock.ahead = timedelta(days=2) + passes * LATER
        removed += (await reconcile(keeper)).counts["removed"]
    assert removed == 2
    keeper.clock.ahead = timedelta(days=2, hours=2)
    assert (await reconcile(keeper)).counts["removed"] == 2


async def test_what_we_ended_ourselves_and_still_runs_is_paused_and_shown_and_never_removed(
    keeper: ObservingKeeper,
) -> None:
    sandbox = await keeper.launch()
    ended = Observation(
        sandbox.instance_id or "",
        ObservedStatus.KILLED,
        keeper.clock(),
        Source.REPLY,
        actor="operator:ada",
    )
    await keeper.observations.record(ended)
    for passes in range(1, 5):
        keeper.clock.ahead = passes * LATER
        report = await reconcile(keeper)
        assert (report.counts["unowned"], report.counts["leak"]) == (1, 0)
    assert (await keeper.read(sandbox)).state is State.KILLED
    assert list(keeper.provider.instances) == [sandbox.instance_id]
    [shown] = await keeper.store.leaks.list(since=sandbox.created_at)
    assert (shown.kind, shown.removed_at) == ("unowned", None)
    assert "operator:ada" in shown.reason


async def test_a_dry_run_tells_everything_and_changes_nothing(keeper: ObservingKeeper) -> None:
    drifted, lost = await keeper.launch("a"), await keeper.launch("b")
    await keeper.provider.pause(drifted.instance_id or "")
    keeper.provider.vanish(lost.instance_id or "")
    before = [await keeper.read(drifted), await keeper.read(lost)]
    report = await reconcile(keeper, dry_run=True)
    assert {one.kind for one in report.corrections} == {"state", "orphaned"}
    assert [await keeper.read(drifted), await keeper.read(lost)] == before
