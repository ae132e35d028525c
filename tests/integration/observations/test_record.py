"""`record` is the one door: it loses no write in a race and finishes what the holder asked for."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

from sandkeeper.domain.observe.observation import Source
from sandkeeper.domain.sandbox import ClaimKind
from sandkeeper.domain.states import State
from sandkeeper.providers.observations import observe_instance
from sandkeeper.services.observe.observations import RecordOutcome
from support.observing_keeper import ObservingKeeper


async def test_a_lost_create_call_is_given_back_by_its_metadata(keeper: ObservingKeeper) -> None:
    sandbox = await keeper.write_down()
    instance = await keeper.provider.create(keeper.spec(sandbox))
    recorded = await keeper.observations.record(observe_instance(instance, source=Source.LIST))
    assert recorded.outcome is RecordOutcome.CHANGED
    assert recorded.sandbox is not None
    assert recorded.sandbox.instance_id == instance.instance_id
    assert recorded.sandbox.state is State.RUNNING


async def test_an_instance_of_an_older_generation_never_becomes_the_present_one(
    keeper: ObservingKeeper,
) -> None:
    sandbox = await keeper.write_down()
    older = replace(keeper.spec(sandbox).tag, generation=0)
    instance = await keeper.provider.create(replace(keeper.spec(sandbox), tag=older))
    recorded = await keeper.observations.record(observe_instance(instance, source=Source.LIST))
    assert recorded.outcome is RecordOutcome.FOREIGN
    assert (await keeper.read(sandbox)).instance_id is None


async def test_finish_is_written_with_the_row_even_in_a_race(keeper: ObservingKeeper) -> None:
    sandbox = await keeper.launch()
    now = keeper.clock()
    claimed = await keeper.store.sandboxes.claim(
        sandbox.id,
        kind=ClaimKind.PAUSE,
        holder="h1",
        until=now + timedelta(seconds=60),
        now=now,
    )
    assert claimed is not None
    instance = await keeper.provider.pause(sandbox.instance_id or "")
    seen = observe_instance(instance, source=Source.REPLY)
    told = keeper.provider.events[-1]
    done, *_ = await asyncio.gather(
        keeper.observations.record(seen, finish=lambda row: row.evolve(claim=None)),
        keeper.deliver(told),
        *(keeper.observations.record(replace(seen, source=Source.GET)) for _ in range(5)),
    )
    assert done.outcome is RecordOutcome.CHANGED
    after = await keeper.read(sandbox)
    assert (after.state, after.claim) == (State.PAUSED, None)


async def test_a_confirmation_freshens_the_record_without_a_new_version(
    keeper: ObservingKeeper,
) -> None:
    sandbox = await keeper.launch()
    seen = observe_instance(await keeper.provider.get(sandbox.instance_id or ""), source=Source.GET)
    seen = replace(seen, end_at=None, at=keeper.clock() + timedelta(seconds=5))
    assert (await keeper.observations.record(seen)).outcome is RecordOutcome.CONFIRMED
    after = await keeper.read(sandbox)
    assert after.version == sandbox.version
    assert after.sightings.last_verified_at == seen.at
