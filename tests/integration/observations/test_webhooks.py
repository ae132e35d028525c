"""What the provider pushes is believed if it is signed, and counts once."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from sandkeeper.domain.errors import (
    InvalidRequestError,
    InvalidSignatureError,
    PayloadTooLargeError,
    StoreError,
)
from sandkeeper.domain.events import StateChanged
from sandkeeper.domain.observe.observation import Source
from sandkeeper.domain.sandbox import ClaimKind
from sandkeeper.domain.states import KilledReason, State
from sandkeeper.providers.base import LifecycleEvent
from sandkeeper.providers.observations import observe_event
from sandkeeper.services.observe.webhooks import REFUSED_KEPT_PER_S, WebhookBatcher
from sandkeeper.store import Delivery
from support.observing_keeper import ObservingKeeper


async def test_a_pause_at_the_provider_becomes_ours_with_its_time(keeper: ObservingKeeper) -> None:
    sandbox = await keeper.launch()
    assert sandbox.state is State.RUNNING
    await keeper.provider.pause(sandbox.instance_id or "")
    told = keeper.provider.events[-1]
    assert await keeper.deliver(told) == "changed"
    paused = await keeper.read(sandbox)
    assert paused.state is State.PAUSED
    assert abs((paused.state_since - told.at).total_seconds()) < 0.01
    assert paused.sightings.last_webhook_at is not None


async def test_a_replayed_event_is_a_duplicate_and_changes_nothing(keeper: ObservingKeeper) -> None:
    sandbox = await keeper.launch()
    await keeper.provider.pause(sandbox.instance_id or "")
    told = keeper.provider.events[-1]
    assert await keeper.deliver(told) == "changed"
    before = await keeper.read(sandbox)
    assert [await keeper.deliver(told) for _ in range(3)] == ["duplicate"] * 3
    assert await keeper.read(sandbox) == before
    outcomes = [one.outcome for one in await keeper.store.deliveries.latest()]
    assert outcomes == ["duplicate"] * 3 + ["changed"]


async def test_the_same_event_delivered_many_times_at_once_changes_the_state_once(
    keeper: ObservingKeeper,
) -> None:
    sandbox = await keeper.launch()
    await keeper.provider.pause(sandbox.instance_id or "")
    told = keeper.provider.events[-1]
    outcomes = await asyncio.gather(*(keeper.deliver(told) for _ in range(8)))
    assert sorted(outcomes) == ["changed"] + ["duplicate"] * 7
    assert (await keeper.read(sandbox)).state is State.PAUSED
    log = await keeper.store.events.after(0, limit=100)
    moves = [one for one in log if one.type == StateChanged.type]
    assert len(moves) == 2  # STARTING to RUNNING, RUNNING to PAUSED.


async def test_a_burst_is_recorded_as_if_each_had_come_alone(keeper: ObservingKeeper) -> None:
    burst = []
    sandboxes = [await keeper.launch(f"shop-{number}") for number in range(10)]
    for number, sandbox in enumerate(sandboxes):
        await keeper.provider.pause(sandbox.instance_id or "")
        burst.append(keeper.provider.events[-1])
        if number % 2:
            keeper.provider.end(sandbox.instance_id or "", reason="timeout")
            burst.append(keeper.provider.events[-1])
    lost = await keeper.write_down("lost")
    await keeper.provider.create(keeper.spec(lost))
    burst += [keeper.provider.events[-1], *burst[:3]]
    outcomes = await asyncio.gather(*(keeper.deliver(event) for event in burst))
    assert "unknown" not in outcomes  # A pause that arrives after the end may change nothing.
    assert outcomes.count("duplicate") == 3
    states = [(await keeper.read(sandbox)).state for sandbox in sandboxes]
    assert states == [State.PAUSED, State.EXPIRED] * 5
    assert (await keeper.read(lost)).instance_id == burst[15].instance_id
    kept = await keeper.store.deliveries.latest()
    assert sorted(one.outcome for one in kept) == sorted(outcomes)
    log = await keeper.store.events.after(0, limit=100)
    versions = {one.sandbox_id: one.version for one in log}
    for sandbox in sandboxes:
        # A pause that arrives after the end leaves its time on the record and makes no event.
        assert versions[sandbox.id] <= (await keeper.read(sandbox)).version


async def test_one_of_a_burst_that_cannot_be_written_holds_up_no_other(
    keeper: ObservingKeeper,
) -> None:
    sandboxes = [await keeper.launch(f"shop-{number}") for number in range(3)]
    told = []
    for sandbox in sandboxes:
        await keeper.provider.pause(sandbox.instance_id or "")
        told.append(keeper.provider.events[-1])
    told[1] = replace(told[1], event_id="half a character: \udc00")
    intake = WebhookBatcher(keeper.observations)

    async def deliver(event: LifecycleEvent) -> str:
        seen = observe_event(event, source=Source.WEBHOOK, received_at=keeper.clock())
        delivery = Delivery(keeper.clock(), outcome="", event_id=event.event_id)
        return (await intake.record(seen, delivery)).outcome.value

    async with asyncio.timeout(10):
        outcomes = await asyncio.gather(*map(deliver, told), return_exceptions=True)
    assert (outcomes[0], outcomes[2]) == ("changed", "changed")
    assert isinstance(outcomes[1], Exception)
    states = [(await keeper.read(sandbox)).state for sandbox in sandboxes]
    assert states == [State.PAUSED, State.RUNNING, State.PAUSED]


async def test_a_burst_and_other_writers_lose_nothing_to_each_other(
    keeper: ObservingKeeper,
) -> None:
    sandboxes = [await keeper.launch(f"shop-{number}") for number in range(5)]
    told = []
    for sandbox in sandboxes:
        await keeper.provider.pause(sandbox.instance_id or "")
        told.append(keeper.provider.events[-1])
    now = keeper.clock()
    await asyncio.gather(
        *(keeper.deliver(event) for event in told),
        *(
            keeper.store.sandboxes.claim(
                sandbox.id,
                kind=ClaimKind.EXTEND,
                holder=sandbox.id,
                until=now + timedelta(seconds=60),
                now=now,
            )
            for sandbox in sandboxes
        ),
    )
    for sandbox in sandboxes:
        after = await keeper.read(sandbox)
        assert after.state is State.PAUSED
        assert after.claim is not None


@pytest.mark.parametrize(
    ("reason", "state", "killed"),
    [
        ("request", State.KILLED, KilledReason.MANUAL),
        ("timeout", State.EXPIRED, KilledReason.EXPIRED),
        ("orphaned", State.TERMINATED, KilledReason.TERMINATED),
        ("a reason of tomorrow", State.KILLED, KilledReason.MANUAL),
    ],
)
async def test_the_kill_reason_decides_how_it_ended(
    keeper: ObservingKeeper, reason: str, state: State, killed: KilledReason
) -> None:
    sandbox = await keeper.launch()
    keeper.provider.end(sandbox.instance_id or "", reason=reason)
    await keeper.deliver(keeper.provider.events[-1])
    ended = await keeper.read(sandbox)
    assert (ended.state, ended.last_end.killed_reason) == (state, killed)
    assert reason in ended.reason


async def test_a_whole_life_in_any_order_ends_in_the_same_record(keeper: ObservingKeeper) -> None:
    ends: set[tuple[object, ...]] = set()
    for seed in range(6):
        sandbox = await keeper.launch(f"shop-{seed}")
        instance_id = sandbox.instance_id or ""
        begin = len(keeper.provider.events) - 1
        await keeper.provider.pause(instance_id)
        await keeper.provider.connect(instance_id, timeout_s=60)
        await keeper.provider.pause(instance_id)
        keeper.provider.end(instance_id, reason="timeout")
        told = keeper.provider.events[begin:] * 2
        random.Random(seed).shuffle(told)
        for event in told:
            await keeper.deliver(event)
        ended = await keeper.read(sandbox)
        last = keeper.provider.events[-1]
        ends.add(
            (
                ended.state,
                ended.last_end.killed_reason,
                ended.run.run_id == last.run_id,
                ended.run.ready,
            )
        )
    assert ends == {(State.EXPIRED, KilledReason.EXPIRED, True, False)}


async def test_strangers_and_types_of_tomorrow_are_taken_and_change_nothing(
    keeper: ObservingKeeper,
) -> None:
    sandbox = await keeper.launch()
    told = keeper.provider.events[-1]
    assert await keeper.deliver(told, type="sandbox.lifecycle.forked") == "ignored"
    foreign = await keeper.deliver(told, id="e2", sandbox_id="istranger", event_data={})
    assert foreign == "unknown"
    assert await keeper.read(sandbox) == sandbox


async def test_refused_deliveries_are_in_the_inbox_but_cannot_fill_it(
    keeper: ObservingKeeper,
) -> None:
    body = b'{"id": "e1"}'
    good = await keeper.headers(body)
    for given, headers, error in (
        (body + b" ", good, InvalidSignatureError),
        (body, {}, InvalidSignatureError),
        (b" " * (5 * 1024 * 1024), good, PayloadTooLargeError),
        (b"not json", await keeper.headers(b"not json"), InvalidRequestError),
        (body, good, InvalidRequestError),
    ):
        with pytest.raises(error):
            await keeper.webhooks.receive(given, headers)
    kept = {one.outcome for one in await keeper.store.deliveries.latest()}
    assert kept == {"invalid_signature", "payload_too_large", "invalid_request"}

    now = keeper.clock()
    keeper.webhooks._clock = lambda: now
    for _ in range(REFUSED_KEPT_PER_S * 3):
        with pytest.raises(InvalidSignatureError):
            await keeper.webhooks.receive(body, {})
    assert len(await keeper.store.deliveries.latest()) <= 5 + REFUSED_KEPT_PER_S


async def test_a_delivery_that_the_database_cannot_take_is_counted_as_failed(
    keeper: ObservingKeeper,
) -> None:
    sandbox = await keeper.launch()
    await keeper.provider.pause(sandbox.instance_id or "")
    event = keeper.provider.events[-1]
    unknown_type = {"id": "e-odd", "type": "sandbox.lifecycle.forked"}
    await rename_inbox(keeper, "deliveries", "deliveries_away")
    for changes in ({}, unknown_type):
        with pytest.raises((StoreError, SQLAlchemyError)):
            await keeper.deliver(event, **changes)
    await rename_inbox(keeper, "deliveries_away", "deliveries")
    assert count_deliveries(keeper, "failed") == 2
    assert await keeper.deliver(event) == "changed", "the provider sends it again"
    assert await keeper.deliver(event, **unknown_type) == "ignored"
    assert count_deliveries(keeper, "failed") == 2


async def rename_inbox(keeper: ObservingKeeper, old: str, new: str) -> None:
    async with keeper.store.database.writing() as connection:
        await connection.execute(text(f"ALTER TABLE {old} RENAME TO {new}"))


def count_deliveries(keeper: ObservingKeeper, outcome: str) -> float:
    return sum(
        sample.value
        for family in keeper.metrics.webhooks_received.collect()
        for sample in family.samples
        if sample.labels.get("outcome") == outcome
    )
