"""The idle sweep: due rows are handled once, active ones left alone, and none blocks another."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from sandkeeper.domain.activity import ActivityClass
from sandkeeper.domain.errors import ProviderUnavailableError, ProviderUnsupportedError
from sandkeeper.domain.policy import IdleAction, Policy
from sandkeeper.domain.states import KilledReason, State
from sandkeeper.testing.providers import MisbehavingProvider, SimulatedProvider
from support.eventually import eventually
from support.sweep_replica import Replica

Make = Callable[..., Awaitable[Replica]]


class InterruptedProvider(MisbehavingProvider):
    """Answers correctly, and runs a callback while it does."""

    interrupt: Callable[[], None]

    async def inject_fault(self, call: Callable[[], Awaitable[Any]]) -> Any:
        answer = await call()
        self.interrupt()
        return answer


class DeafToProvider(MisbehavingProvider):
    """Fails, or never answers, for one instance only."""

    def __init__(self, provider: SimulatedProvider, *, error: Exception | None) -> None:
        super().__init__(provider, "pause")
        self.victim: str | None = None
        self._error = error

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._provider, name)
        if name != "pause":
            return value

        async def pause(instance_id: str) -> Any:
            if instance_id != self.victim:
                return await value(instance_id)
            if self._error is not None:
                raise self._error
            return await asyncio.Event().wait()

        return pause


async def test_the_idle_sleep_and_the_active_stay_awake(keeping: Make) -> None:
    provider = SimulatedProvider()
    keeper = await keeping(provider)
    idle, active, watched = [await keeper.create(name) for name in ("idle", "active", "watched")]
    keeper.clock.advance(seconds=59)
    assert (await keeper.sweep.run()).detail["checked"] == 0
    keeper.activities.record(active.id, kind=ActivityClass.WORK, source="exec")
    keeper.activities.record(watched.id, kind=ActivityClass.PASSIVE, source="poll")
    keeper.clock.advance(seconds=2)
    outcome = await keeper.sweep.run()
    assert (outcome.detail["paused"], outcome.detail["kept"]) == (2, 1)
    asleep = await keeper.get(idle)
    assert asleep.state is State.PAUSED
    assert asleep.is_paused_by_sweep
    assert asleep.actor == "sandbox-idle-enforcer"
    assert (await keeper.get(watched)).state is State.PAUSED
    assert (await keeper.explanations.explain(watched.id)).ignored_passive_count == 1
    awake = await keeper.get(active)
    assert (awake.state, awake.claim) == (State.RUNNING, None)
    assert outcome.again_in_s is not None
    assert 50 < outcome.again_in_s < 60


async def test_what_is_gone_when_its_time_comes_counts_as_no_pause(keeping: Make) -> None:
    provider = SimulatedProvider()
    keeper = await keeping(provider)
    sandbox = await keeper.create("shop")
    provider.vanish(str(sandbox.instance_id))
    keeper.clock.advance(seconds=61)
    detail = (await keeper.sweep.run()).detail
    assert (detail["paused"], detail["verified"]) == (0, 1)
    assert (await keeper.get(sandbox)).state is State.KILLED
    assert "sandkeeper_idle_tail_seconds_count 0.0" in keeper.metrics.render().decode()


async def test_a_pass_with_nothing_due_says_when_the_next_deadline_is(keeping: Make) -> None:
    keeper = await keeping(SimulatedProvider())
    assert (await keeper.sweep.run()).again_in_s is None
    await keeper.create("shop")
    again_in_s = (await keeper.sweep.run()).again_in_s
    assert again_in_s is not None
    assert 55 < again_in_s <= 60


async def test_the_driver_pauses_at_the_deadline_by_itself(keeping: Make) -> None:
    keeper = await keeping(SimulatedProvider())
    policy = Policy(idle_timeout_s=0.3, newborn_grace_s=0, woken_grace_s=0)
    async with keeper.scheduler:
        sandbox = await keeper.create("shop", policy)
        keeper.scheduler.wake_up("idle-sweep")

        async def is_asleep() -> bool:
            return (await keeper.get(sandbox)).state is State.PAUSED

        await eventually(is_asleep, within_s=20)
    [paused, *_] = await keeper.store.events.of(sandbox.id)
    assert paused.data["new_state"] == "PAUSED"
    assert paused.data["lag_s"] >= 0
    [report] = [r for r in (await keeper.health.report()).readings if r.name == "idle_lag_p95"]
    assert report.value is not None


async def test_a_newborn_sandbox_has_its_grace(keeping: Make) -> None:
    keeper = await keeping(SimulatedProvider())
    await keeper.create("shop", Policy(idle_timeout_s=1, newborn_grace_s=60, woken_grace_s=0))
    keeper.clock.advance(seconds=59)
    assert (await keeper.sweep.run()).detail["paused"] == 0
    keeper.clock.advance(seconds=2)
    assert (await keeper.sweep.run()).detail["paused"] == 1


async def test_a_just_woken_sandbox_is_not_paused_by_an_old_deadline(keeping: Make) -> None:
    provider = SimulatedProvider()
    keeper = await keeping(provider)
    policy = Policy(idle_timeout_s=1, newborn_grace_s=0, woken_grace_s=30)
    sandbox = await keeper.create("shop", policy)
    await keeper.lifecycle.pause(sandbox.id, actor="ann")
    await provider.connect(str(sandbox.instance_id), timeout_s=3600)
    assert (await keeper.verification.verify(sandbox.id)).state is State.RUNNING
    keeper.clock.advance(seconds=25)
    assert (await keeper.sweep.run()).detail["paused"] == 0
    keeper.clock.advance(seconds=10)
    assert (await keeper.sweep.run()).detail["paused"] == 1


async def test_activity_before_the_call_abandons_the_pause(keeping: Make) -> None:
    provider = SimulatedProvider()

    async def act(held: Any) -> None:
        keeper.activities.record(held.id, kind=ActivityClass.INTENT, source="tab")

    keeper = await keeping(provider, before_pause=act)
    sandbox = await keeper.create("shop")
    keeper.clock.advance(seconds=61)
    outcome = await keeper.sweep.run()
    assert outcome.detail["abandoned"] == 1
    after = await keeper.get(sandbox)
    assert (after.state, after.claim) == (State.RUNNING, None)
    assert after.next_check_at is not None
    assert after.next_check_at > keeper.clock()
    assert ("pause", sandbox.instance_id) not in provider.acts
    assert "sandbox.pause_abandoned" in await keeper.list_types(sandbox)


async def test_activity_during_the_call_gets_the_sandbox_back_running(keeping: Make) -> None:
    provider = SimulatedProvider()
    interrupted = InterruptedProvider(provider, "pause")
    keeper = await keeping(interrupted)
    sandbox = await keeper.create("shop")
    interrupted.interrupt = lambda: keeper.activities.record(
        sandbox.id, kind=ActivityClass.INTENT, source="tab"
    )
    keeper.clock.advance(seconds=61)
    assert (await keeper.sweep.run()).detail["abandoned"] == 1
    assert (await keeper.get(sandbox)).state is State.RUNNING
    assert provider.instances[str(sandbox.instance_id)].state == "running"


async def test_a_sandbox_that_stays_due_is_acted_on_once_a_pass(keeping: Make) -> None:
    simulated = SimulatedProvider()
    provider = InterruptedProvider(simulated, "pause")
    keeper = await keeping(provider)
    always_due = Policy(idle_timeout_s=0, newborn_grace_s=0, woken_grace_s=0)
    sandbox = await keeper.create("shop", policy=always_due)

    def use() -> None:
        keeper.clock.advance(milliseconds=1)
        keeper.activities.record(sandbox.id, kind=ActivityClass.INTENT, source="click")

    provider.interrupt = use
    for passes in (1, 2):
        keeper.clock.advance(seconds=2)
        async with asyncio.timeout(10):
            await keeper.sweep.run()
        assert [verb for verb, _ in simulated.acts].count("pause") == passes


async def test_activity_during_a_pause_by_hand_does_not_undo_it(keeping: Make) -> None:
    provider = InterruptedProvider(SimulatedProvider(), "pause")
    keeper = await keeping(provider)
    sandbox = await keeper.create("shop")
    provider.interrupt = lambda: keeper.activities.record(
        sandbox.id, kind=ActivityClass.INTENT, source="tab"
    )
    assert (await keeper.lifecycle.pause(sandbox.id, actor="ann")).state is State.PAUSED


async def test_one_failing_sandbox_never_blocks_another(keeping: Make) -> None:
    provider = DeafToProvider(SimulatedProvider(), error=ProviderUnavailableError())
    keeper = await keeping(provider)
    sandboxes = [await keeper.create(f"p{number}") for number in range(30)]
    provider.victim = sandboxes[3].instance_id
    keeper.clock.advance(seconds=61)
    outcome = await keeper.sweep.run()
    assert (outcome.detail["paused"], outcome.detail["failed"]) == (29, 1)
    victim = await keeper.get(sandboxes[3])
    assert (victim.state, victim.claim) == (State.RUNNING, None)
    assert "sandbox.operation_failed" in await keeper.list_types(victim)
    provider.victim = None
    keeper.clock.advance(seconds=16)
    assert (await keeper.sweep.run()).detail["paused"] == 1


async def test_one_hung_call_never_blocks_another(keeping: Make) -> None:
    provider = DeafToProvider(SimulatedProvider(), error=None)
    keeper = await keeping(provider, lease_s=4)
    sandboxes = [await keeper.create(f"p{number}") for number in range(20)]
    provider.victim = sandboxes[0].instance_id
    keeper.clock.advance(seconds=61)
    sweeping = asyncio.create_task(keeper.sweep.run())

    async def all_others_sleep() -> bool:
        others = [await keeper.get(one) for one in sandboxes[1:]]
        return all(one.state is State.PAUSED for one in others)

    await eventually(all_others_sleep)
    assert (await sweeping).detail["failed"] == 1


async def test_a_plan_that_cannot_pause_is_reported_and_marks_nothing_paused(keeping: Make) -> None:
    provider = DeafToProvider(SimulatedProvider(), error=ProviderUnsupportedError())
    keeper = await keeping(provider)
    sandbox = await keeper.create("shop")
    provider.victim = sandbox.instance_id
    keeper.clock.advance(seconds=61)
    assert (await keeper.sweep.run()).detail["failed"] == 1
    after = await keeper.get(sandbox)
    assert after.state is State.RUNNING
    assert after.next_check_at is not None
    assert (after.next_check_at - keeper.clock()).total_seconds() > 500
    [failed, *_] = await keeper.store.events.of(sandbox.id)
    assert failed.data["code"] == "provider_unsupported"


async def test_a_sandbox_in_use_is_extended_and_one_without_extension_expires(
    keeping: Make,
) -> None:
    provider = SimulatedProvider()
    keeper = await keeping(provider)
    kept = await keeper.create("kept", Policy(idle_timeout_s=None, lifetime_s=600))
    ended = await keeper.create(
        "ended", Policy(idle_timeout_s=None, lifetime_s=600, extend_while_active=False)
    )
    keeper.clock.advance(seconds=601)
    outcome = await keeper.sweep.run()
    assert (outcome.detail["extended"], outcome.detail["killed"]) == (1, 1)
    after = await keeper.get(kept)
    assert after.state is State.RUNNING
    assert after.run.expires_at is not None
    assert after.run.expires_at > keeper.clock()
    over = await keeper.get(ended)
    assert (over.state, over.last_end.killed_reason) == (State.EXPIRED, KilledReason.EXPIRED)
    assert ended.instance_id not in provider.instances


async def test_a_policy_may_end_the_idle_instead(keeping: Make) -> None:
    keeper = await keeping(SimulatedProvider())
    policy = Policy(idle_timeout_s=60, newborn_grace_s=0, on_idle=IdleAction.KILL)
    sandbox = await keeper.create("shop", policy)
    keeper.clock.advance(seconds=61)
    assert (await keeper.sweep.run()).detail["killed"] == 1
    assert (await keeper.get(sandbox)).state is State.TERMINATED
