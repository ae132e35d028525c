"""Pause, kill and extend: claim, act, record, with a real database and misbehaving providers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sandkeeper.domain.errors import (
    OutcomeUnknownError,
    PolicyRefusedError,
    ProviderUnavailableError,
    SandboxBusyError,
    SandkeeperError,
    WrongStateError,
)
from sandkeeper.domain.observe.observation import Observation, ObservedStatus, Source
from sandkeeper.domain.owner import Owner
from sandkeeper.domain.sandbox import ClaimKind
from sandkeeper.domain.states import KilledReason, State
from sandkeeper.providers.base import CreateSpec, Instance, InstancePage
from sandkeeper.testing.providers import (
    DownProvider,
    LostReplyProvider,
    MisbehavingProvider,
    NeverProvider,
    SimulatedProvider,
)
from support.eventually import eventually
from support.sweep_replica import Replica

Make = Callable[..., Awaitable[Replica]]


async def test_a_second_pause_finds_the_work_done(keeping: Make) -> None:
    provider = SimulatedProvider(latency_s=0.05)
    keeper = await keeping(provider)
    sandbox = await keeper.create("shop")
    both = await asyncio.gather(
        keeper.lifecycle.pause(sandbox.id, actor="ann"),
        keeper.lifecycle.pause(sandbox.id, actor="bob"),
    )
    assert {one.state for one in both} == {State.PAUSED}
    assert [verb for verb, _ in provider.acts].count("pause") == 1
    after = await keeper.get(sandbox)
    assert after.claim is None
    assert not after.is_paused_by_sweep
    assert after.actor in ("ann", "bob")


async def test_a_pause_of_what_is_gone_tells_the_truth(keeping: Make) -> None:
    provider = SimulatedProvider()
    keeper = await keeping(provider)
    sandbox = await keeper.create("shop")
    provider.vanish(str(sandbox.instance_id))
    after = await keeper.lifecycle.pause(sandbox.id, actor="ann")
    assert after.state is State.KILLED
    assert after.last_end.killed_reason is KilledReason.NOT_FOUND


async def test_a_failed_pause_changes_nothing_and_gives_the_claim_back(keeping: Make) -> None:
    provider = DownProvider(SimulatedProvider(), "pause")
    keeper = await keeping(provider)
    sandbox = await keeper.create("shop")
    with pytest.raises(ProviderUnavailableError):
        await keeper.lifecycle.pause(sandbox.id, actor="ann")
    after = await keeper.get(sandbox)
    assert (after.state, after.claim) == (State.RUNNING, None)
    provider.is_down = False
    assert (await keeper.lifecycle.pause(sandbox.id, actor="ann")).state is State.PAUSED


async def test_no_act_outlives_its_claim(keeping: Make) -> None:
    keeper = await keeping(NeverProvider(SimulatedProvider(), "pause"), lease_s=2.3)
    sandbox = await keeper.create("shop")
    with pytest.raises(ProviderUnavailableError, match="before the claim ran out"):
        await keeper.lifecycle.pause(sandbox.id, actor="ann")
    assert (await keeper.get(sandbox)).claim is None


async def test_a_failing_hook_stops_the_pause(keeping: Make) -> None:
    provider = SimulatedProvider()

    async def lose_files(_sandbox: Any) -> None:
        raise OSError("the disk is full")

    keeper = await keeping(provider, before_pause=lose_files)
    sandbox = await keeper.create("shop")
    with pytest.raises(OSError, match="disk is full"):
        await keeper.lifecycle.pause(sandbox.id, actor="ann")
    assert ("pause", sandbox.instance_id) not in provider.acts
    assert (await keeper.get(sandbox)).claim is None


async def test_a_hook_longer_than_the_lease_keeps_its_claim(keeping: Make) -> None:
    provider = SimulatedProvider()

    async def capture_slowly(held: Any) -> None:
        async def is_renewed() -> bool:
            present = await keeper.get(held)
            assert present.claim is not None
            assert present.claim.holder == held.claim.holder
            return bool(present.claim.until > held.claim.until)

        await eventually(is_renewed, within_s=20)

    keeper = await keeping(provider, lease_s=2.3, before_pause=capture_slowly)
    sandbox = await keeper.create("shop")
    assert (await keeper.lifecycle.pause(sandbox.id, actor="ann")).state is State.PAUSED


async def test_a_held_sandbox_is_busy_for_others(keeping: Make) -> None:
    keeper = await keeping(SimulatedProvider())
    sandbox = await keeper.create("shop")
    async with keeper.claims.hold(sandbox.id, ClaimKind.WAKE):
        with pytest.raises(SandboxBusyError) as refusal:
            async with keeper.claims.hold(sandbox.id, ClaimKind.PAUSE, wait_s=0):
                pass
    assert refusal.value.fields["held_for"] == "wake"


async def test_killing_twice_and_killing_what_is_gone_both_end_it(keeping: Make) -> None:
    provider = SimulatedProvider()
    keeper = await keeping(provider)
    sandbox = await keeper.create("shop")
    provider.vanish(str(sandbox.instance_id))
    first = await keeper.lifecycle.kill(sandbox.id, actor="ann")
    second = await keeper.lifecycle.kill(sandbox.id, actor="bob")
    assert first.state is second.state is State.KILLED
    assert (second.actor, second.last_end.killed_reason) == ("ann", KilledReason.MANUAL)
    with pytest.raises(WrongStateError):
        await keeper.lifecycle.pause(sandbox.id, actor="ann")


class ForgetfulProvider(MisbehavingProvider):
    """Says that it does not know an instance which it lists."""

    async def kill(self, _instance_id: str) -> bool:
        return False


class UnansweringForgetfulProvider(ForgetfulProvider):
    """Besides, its answer to a creation is lost, and its list is down for a while."""

    is_down = True

    async def create(self, spec: CreateSpec) -> Instance:
        await self._provider.create(spec)
        raise ProviderUnavailableError("The reply was lost.")

    async def list_instances(self, **given: Any) -> InstancePage:
        if self.is_down:
            raise ProviderUnavailableError("The list is down.")
        return await self._provider.list_instances(**given)


async def test_a_kill_that_finds_nothing_is_not_believed_while_it_is_listed(keeping: Make) -> None:
    provider = SimulatedProvider()
    keeper = await keeping(ForgetfulProvider(provider))
    sandbox = await keeper.create("shop")
    with pytest.raises(OutcomeUnknownError, match="what it lists"):
        await keeper.lifecycle.kill(sandbox.id, actor="ann")
    after = await keeper.get(sandbox)
    assert (after.state, after.claim) == (State.RUNNING, None)


async def test_a_creation_is_not_written_off_while_its_instance_is_listed(keeping: Make) -> None:
    provider = SimulatedProvider()
    forgetful = UnansweringForgetfulProvider(provider)
    keeper = await keeping(forgetful)
    with pytest.raises(SandkeeperError):
        await keeper.create("shop")
    forgetful.is_down = False
    starting = await keeper.store.sandboxes.get_by_owner(Owner.project("shop"))
    with pytest.raises(OutcomeUnknownError, match="still lists"):
        await keeper.lifecycle.kill(starting.id, actor="ann")
    assert (await keeper.get(starting)).state is State.STARTING
    assert len(provider.instances) == 1


async def test_killing_what_only_a_wrong_event_ended_ends_it_at_the_provider_too(
    keeping: Make,
) -> None:
    provider = SimulatedProvider()
    keeper = await keeping(provider)
    sandbox = await keeper.create("shop")
    now = keeper.clock()
    wrong = Observation(
        str(sandbox.instance_id),
        ObservedStatus.KILLED,
        now,
        Source.WEBHOOK,
        event_id="e",
        received_at=now,
    )
    await keeper.observations.record(wrong)
    assert list(provider.instances) == [sandbox.instance_id]
    killed = await keeper.lifecycle.kill(sandbox.id, actor="ann", reason="not needed")
    assert provider.instances == {}
    assert (killed.state, killed.actor, killed.is_end_ours) == (State.KILLED, "ann", True)
    assert (await keeper.verification.verify(sandbox.id)).state is State.KILLED


async def test_an_extension_moves_both_ends_and_keeps_to_the_cap(keeping: Make) -> None:
    provider = SimulatedProvider()
    keeper = await keeping(provider)
    sandbox = await keeper.create("shop")
    after = await keeper.lifecycle.extend(sandbox.id, by_s=7200, actor="ann")
    assert sandbox.run.expires_at is not None
    assert after.run.expires_at is not None
    assert (after.run.expires_at - sandbox.run.expires_at).total_seconds() > 3500
    at_provider = provider.instances[str(sandbox.instance_id)].end_at
    assert at_provider is not None
    assert abs((at_provider - after.run.expires_at).total_seconds()) < 5
    assert "sandbox.extended" in await keeper.list_types(sandbox)
    with pytest.raises(PolicyRefusedError):
        await keeper.lifecycle.extend(sandbox.id, by_s=90_000, actor="ann")


async def test_after_a_lost_reply_a_look_settles_what_came_of_it(keeping: Make) -> None:
    keeper = await keeping(LostReplyProvider(SimulatedProvider(), "pause", "kill"))
    sandbox = await keeper.create("shop")
    paused = await keeper.lifecycle.pause(sandbox.id, actor="ann")
    assert (paused.state, paused.actor, paused.claim) == (State.PAUSED, "ann", None)
    killed = await keeper.lifecycle.kill(sandbox.id, actor="ann")
    assert (killed.state, killed.actor, killed.claim) == (State.KILLED, "ann", None)


async def test_without_an_answer_to_the_look_the_caller_learns_that_it_is_unclear(
    keeping: Make,
) -> None:
    keeper = await keeping(DownProvider(SimulatedProvider(), "pause", "get"))
    sandbox = await keeper.create("shop")
    with pytest.raises(OutcomeUnknownError):
        await keeper.lifecycle.pause(sandbox.id, actor="ann")
    assert (await keeper.get(sandbox)).claim is None
