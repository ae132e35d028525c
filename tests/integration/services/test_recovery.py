"""After a crash or an outage of the database no claim is waited for, and work is finished."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sandkeeper.domain.activity import ActivityClass
from sandkeeper.domain.errors import (
    ProviderUnavailableError,
    SandboxBusyError,
    StoreUnavailableError,
)
from sandkeeper.domain.owner import Owner
from sandkeeper.domain.sandbox import ClaimKind, Sandbox
from sandkeeper.domain.states import State
from sandkeeper.providers.base import InstanceState
from sandkeeper.services.lifecycle import heartbeat, recovery
from sandkeeper.testing.providers import SimulatedProvider
from support.deps import MovableClock
from support.eventually import eventually
from support.sweep_replica import Replica

Keeping = Callable[..., Awaitable[Replica]]


async def claim(replica: Replica, sandbox: Sandbox) -> Sandbox:
    """Claim the sandbox as an operation that never ends."""
    held = await replica.store.sandboxes.claim(
        sandbox.id,
        kind=ClaimKind.PAUSE,
        holder=replica.claims.new_claim(ClaimKind.PAUSE).holder,
        until=replica.claims.new_claim(ClaimKind.PAUSE).until,
        now=replica.clock(),
    )
    assert held is not None
    return held


async def work_long(replica: Replica, sandbox: Sandbox) -> None:
    """Hold the sandbox, with one heartbeat, for work without end."""
    async with replica.claims.hold_long(sandbox.id, ClaimKind.WAKE, lease_s=15, wait_s=1):
        await replica.heartbeat.beat()
        await asyncio.Event().wait()


async def test_an_operation_after_an_outage_does_not_wait_for_the_next_heartbeat(
    keeping: Keeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = await keeping(SimulatedProvider())
    sandbox = await keeper.create("p")
    await keeper.heartbeat.beat()
    real = heartbeat.now_s
    monkeypatch.setattr(heartbeat, "now_s", lambda: real() + heartbeat.EXPIRES_S)
    assert (keeper.heartbeat.left_s or 0) < 0
    paused = await keeper.lifecycle.pause(sandbox.id, actor="test")
    assert paused.state is State.PAUSED
    await keeper.heartbeat.stop()


async def test_a_sign_of_life_from_before_an_outage_takes_back_no_later_one(
    keeping: Keeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database stood still under the first one, and answers it last."""
    replica = await keeping(SimulatedProvider())
    await replica.heartbeat.beat()
    goes_on, real_beat, real_now_s = asyncio.Event(), replica.store.replicas.beat, heartbeat.now_s

    async def answer_late(*given: Any, **named: Any) -> bool:
        monkeypatch.setattr(replica.store.replicas, "beat", real_beat)
        await goes_on.wait()
        return await real_beat(*given, **named)

    monkeypatch.setattr(replica.store.replicas, "beat", answer_late)
    early = asyncio.create_task(replica.heartbeat.beat())
    await asyncio.sleep(0.05)
    monkeypatch.setattr(heartbeat, "now_s", lambda: real_now_s() + heartbeat.EXPIRES_S)
    late = asyncio.create_task(replica.heartbeat.ensure())
    await asyncio.wait([late], timeout=0.5)
    goes_on.set()
    await asyncio.gather(early, late)
    assert (replica.heartbeat.left_s or 0) > heartbeat.LEFT_S_MIN
    await replica.heartbeat.stop()


async def test_a_keeper_that_starts_alone_finishes_a_creation_at_once(keeping: Keeping) -> None:
    provider = SimulatedProvider(latency_s=3600)
    dead = await keeping(provider, replica="dead")
    creating = asyncio.create_task(dead.create("p"))
    started = await eventually(lambda: dead.store.sandboxes.list_by_owner([Owner.project("p")]))
    creating.cancel()
    for task in dead.creation._under_way:
        task.cancel()
    provider.latency_s = 0
    next_one = await keeping(provider, replica="next")
    await next_one.recovery.start()
    await next_one.sweep.run()
    found = await next_one.get(started[0])
    assert (found.state, found.claim) == (State.RUNNING, None)
    await next_one.recovery.stop()


async def test_a_keeper_that_starts_learns_what_the_dead_one_did(keeping: Keeping) -> None:
    provider = SimulatedProvider()
    dead = await keeping(provider, replica="dead")
    held = await claim(dead, await dead.create("p"))
    assert held.instance_id is not None
    await provider.pause(held.instance_id)  # And it died before this was recorded.
    next_one = await keeping(provider, replica="next")
    await next_one.recovery.start()
    await next_one.recovery.run()
    assert (await next_one.get(held)).state is State.PAUSED
    await next_one.recovery.stop()


async def test_a_keeper_that_is_not_alone_frees_nothing(keeping: Keeping) -> None:
    one = await keeping(SimulatedProvider(), replica="one")
    await one.recovery.start()
    held = await claim(one, await one.create("p"))
    two = await keeping(SimulatedProvider(), replica="two")
    await two.recovery.start()
    await two.recovery.run()
    assert (await two.get(held)).claim == held.claim
    await two.recovery.stop()
    assert (await two.get(held)).claim == held.claim
    await one.recovery.stop()
    assert (await two.get(held)).claim is None


async def test_a_replica_without_heartbeat_loses_its_claims(
    keeping_on: Callable[..., Awaitable[Replica]],
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recovery, "WATCH_S", 0.1)
    clock, provider = MovableClock(), SimulatedProvider()
    dead = await keeping_on(database_url, provider, clock=clock, replica="dead")
    await dead.heartbeat.beat()
    alive = await keeping_on(database_url, provider, clock=clock, replica="alive")
    watcher = await keeping_on(database_url, provider, clock=clock, replica="watcher")
    kept = await claim(alive, await alive.create("kept"))
    lost = await claim(dead, await dead.create("lost"))

    async def pass_over() -> bool:
        await alive.heartbeat.beat()
        await watcher.recovery.run()
        return (await watcher.get(lost)).claim is None

    assert not await pass_over()
    clock.advance(seconds=heartbeat.EXPIRES_S)
    assert not await pass_over()  # It may be the database that stood still.
    await eventually(pass_over)
    assert (await watcher.get(kept)).claim == kept.claim
    clock.advance(seconds=recovery.BEAT_PERIOD_S)
    with pytest.raises(SandboxBusyError):
        await dead.claims.renew(lost)
    for replica in (dead, alive):
        await replica.heartbeat.stop()


async def test_a_process_stops_acting_when_its_heartbeat_expires(
    keeping: Keeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "EXPIRES_S", heartbeat.MARGIN_S + 0.05)
    provider = SimulatedProvider()
    replica = await keeping(provider)
    sandbox = await replica.create("p")
    provider.latency_s = 3600
    await replica.heartbeat.beat()
    with pytest.raises(ProviderUnavailableError):
        await replica.lifecycle.pause(sandbox.id, actor="test")
    assert sandbox.instance_id is not None
    assert provider.instances[sandbox.instance_id].state is InstanceState.RUNNING
    with pytest.raises(ProviderUnavailableError):  # And it begins nothing new.
        await replica.lifecycle.pause(sandbox.id, actor="test")
    with pytest.raises(SandboxBusyError):
        await work_long(replica, sandbox)
    await replica.heartbeat.stop()
    provider.latency_s = 0
    assert (await replica.lifecycle.pause(sandbox.id, actor="test")).state is State.PAUSED


async def test_time_in_which_the_machine_was_suspended_counts(
    keeping: Keeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = await keeping(SimulatedProvider())
    await replica.heartbeat.beat()
    real = heartbeat.now_s
    monkeypatch.setattr(heartbeat, "now_s", lambda: real() + heartbeat.EXPIRES_S)
    assert (replica.heartbeat.left_s or 0) < 0
    await replica.heartbeat.stop()


async def test_a_release_that_failed_is_repeated(
    keeping: Keeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = await keeping(SimulatedProvider())
    sandbox = await replica.create("p")

    async def fail(*_: object, **__: object) -> None:
        raise StoreUnavailableError

    with monkeypatch.context() as patch:
        patch.setattr(replica.store.sandboxes, "release", fail)
        async with replica.claims.hold(sandbox.id, ClaimKind.PAUSE):
            pass
    assert (await replica.get(sandbox)).claim is not None
    await replica.recovery.run()
    assert (await replica.get(sandbox)).claim is None


@pytest.mark.parametrize("statement", ["claim", "claim_due"])
async def test_a_claim_whose_reply_was_lost_is_released(
    keeping: Keeping, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    clock = MovableClock()
    replica = await keeping(SimulatedProvider(), clock=clock)
    sandbox = await replica.create("p")
    clock.advance(seconds=61)
    real = getattr(replica.store.sandboxes, statement)

    async def lose_reply(*given: object, **named: object) -> None:
        await real(*given, **named)
        raise StoreUnavailableError

    acts = {
        "claim": lambda: replica.lifecycle.pause(sandbox.id, actor="test"),
        "claim_due": replica.sweep.run,
    }
    with monkeypatch.context() as patch:
        patch.setattr(replica.store.sandboxes, statement, lose_reply)
        with pytest.raises(StoreUnavailableError):
            await acts[statement]()
    assert (await replica.get(sandbox)).claim is not None
    await replica.recovery.run()
    found = await replica.get(sandbox)
    assert found.claim is None
    assert found.next_check_at is not None
    assert found.next_check_at <= clock()


async def test_after_a_crash_nothing_is_paused_before_an_idle_period_has_passed(
    keeping: Keeping,
) -> None:
    clock, provider = MovableClock(), SimulatedProvider()
    dead = await keeping(provider, clock=clock, replica="dead")
    sandbox = await dead.create("p")
    clock.advance(seconds=59)
    await dead.heartbeat.beat()
    dead.activities.record(sandbox.id, kind=ActivityClass.INTENT, source="test")  # Then it died.
    await dead.heartbeat.stop()
    next_one = await keeping(provider, clock=clock, replica="next")
    await next_one.recovery.start()
    clock.advance(seconds=2)
    await next_one.sweep.run()
    assert (await next_one.get(sandbox)).state is State.RUNNING
    clock.advance(seconds=60)
    await next_one.sweep.run()
    assert (await next_one.get(sandbox)).state is State.PAUSED
    await next_one.recovery.stop()


async def test_a_pause_waits_for_the_activity_of_every_replica(
    keeping_on: Callable[..., Awaitable[Replica]], database_url: str
) -> None:
    clock, provider = MovableClock(), SimulatedProvider()
    one = await keeping_on(database_url, provider, clock=clock, replica="one")
    two = await keeping_on(database_url, provider, clock=clock, replica="two")
    used, unused = await one.create("used"), await one.create("unused")
    await two.heartbeat.beat()
    clock.advance(seconds=59)
    two.activities.record(used.id, kind=ActivityClass.INTENT, source="test")
    clock.advance(seconds=2)
    await one.sweep.run()
    assert (await one.get(used)).state is (await one.get(unused)).state is State.RUNNING
    await two.heartbeat.beat()
    clock.advance(seconds=2)
    await one.sweep.run()
    assert (await one.get(used)).state is State.RUNNING
    assert (await one.get(unused)).state is State.PAUSED
    await two.heartbeat.stop()
