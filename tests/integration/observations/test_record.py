"""`record` is the one door: it loses no write in a race and finishes what the holder asked for."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

from conftest import House
from sandkeeper.domain.observation import Source
from sandkeeper.domain.sandbox import ClaimKind
from sandkeeper.domain.states import State
from sandkeeper.services.observe.observations import RecordOutcome, observe_instance


async def test_a_lost_create_call_is_given_back_by_its_metadata(house: House) -> None:
    sandbox = await house.write_down()
    instance = await house.provider.create(house.spec(sandbox))
    recorded = await house.observations.record(observe_instance(instance, source=Source.LIST))
    assert recorded.outcome is RecordOutcome.CHANGED
    assert recorded.sandbox is not None
    assert recorded.sandbox.instance_id == instance.instance_id
    assert recorded.sandbox.state is State.RUNNING


async def test_an_instance_of_an_older_generation_never_becomes_the_present_one(
    house: House,
) -> None:
    sandbox = await house.write_down()
    older = replace(house.spec(sandbox).tag, generation=0)
    instance = await house.provider.create(replace(house.spec(sandbox), tag=older))
    recorded = await house.observations.record(observe_instance(instance, source=Source.LIST))
    assert recorded.outcome is RecordOutcome.FOREIGN
    assert (await house.read(sandbox)).instance_id is None


async def test_finish_is_written_with_the_row_even_in_a_race(house: House) -> None:
    sandbox = await house.launch()
    now = house.clock()
    claimed = await house.store.sandboxes.claim(
        sandbox.id,
        kind=ClaimKind.PAUSE,
        holder="h1",
        until=now + timedelta(seconds=60),
        now=now,
    )
    assert claimed is not None
    instance = await house.provider.pause(sandbox.instance_id or "")
    seen = observe_instance(instance, source=Source.REPLY)
    told = house.provider.events[-1]
    done, *_ = await asyncio.gather(
        house.observations.record(seen, finish=lambda row: row.evolve(claim=None)),
        house.deliver(told),
        *(house.observations.record(replace(seen, source=Source.LOOK)) for _ in range(5)),
    )
    assert done.outcome is RecordOutcome.CHANGED
    after = await house.read(sandbox)
    assert (after.state, after.claim) == (State.PAUSED, None)


async def test_a_confirmation_freshens_the_record_without_a_new_version(house: House) -> None:
    sandbox = await house.launch()
    seen = observe_instance(
        await house.provider.look(sandbox.instance_id or ""), source=Source.LOOK
    )
    seen = replace(seen, end_at=None, at=house.clock() + timedelta(seconds=5))
    assert (await house.observations.record(seen)).outcome is RecordOutcome.CONFIRMED
    after = await house.read(sandbox)
    assert after.version == sandbox.version
    assert after.last_verified_at == seen.at
