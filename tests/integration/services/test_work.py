"""The look before an idle pause: work inside puts it off, and a look that fails does not."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sandkeeper.domain.policy import IdleAction, Policy
from sandkeeper.domain.states import State
from sandkeeper.domain.work import RunningCommand
from sandkeeper.services.lifecycle import work_check
from sandkeeper.testing.providers import MisbehavingProvider, SimulatedProvider
from support.sweep_replica import QUICK, Replica

Make = Callable[..., Awaitable[Replica]]
BUILD = RunningCommand(7, "make build")


class CountingProvider(MisbehavingProvider):
    """Answers correctly, and counts its calls by name."""

    def __init__(self, provider: SimulatedProvider) -> None:
        super().__init__(provider)
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._provider, name)
        if not asyncio.iscoroutinefunction(value):
            return value
        self.calls[name] += 1
        return value


async def test_a_sandbox_at_work_is_paused_after_the_work_has_ended(keeping: Make) -> None:
    provider = SimulatedProvider()
    keeper = await keeping(provider)
    sandbox = await keeper.create("shop")
    provider.commands[str(sandbox.instance_id)] = [BUILD]
    for _ in range(3):
        keeper.clock.advance(seconds=61)
        outcome = await keeper.sweep.run()
        assert (outcome.detail["working"], outcome.detail["paused"]) == (1, 0)
    awake = await keeper.get(sandbox)
    assert (awake.state, awake.claim) == (State.RUNNING, None)
    provider.clock = keeper.clock
    told = await keeper.explanations.explain(sandbox.id)
    assert told.work is not None
    assert "`make build` (pid 7)" in told.work
    del provider.commands[str(sandbox.instance_id)]
    keeper.clock.advance(seconds=61)
    assert (await keeper.sweep.run()).detail["paused"] == 1
    told = await keeper.explanations.explain(sandbox.id)
    assert told.work is None
    assert told.why == "idle for 61 s after its work ended, threshold 60 s"
    assert 60 < told.idle_tail_s < 90, "and not from the creation, 244 s before"


async def test_a_forgotten_daemon_has_its_hour_once_and_not_per_resume(keeping: Make) -> None:
    provider = SimulatedProvider()
    keeper = await keeping(provider)
    sandbox = await keeper.create("shop")
    provider.commands[str(sandbox.instance_id)] = [BUILD]
    keeper.clock.advance(seconds=61)
    assert (await keeper.sweep.run()).detail["working"] == 1
    keeper.clock.advance(hours=1)
    assert (await keeper.sweep.run()).detail["paused"] == 1
    await provider.connect(str(sandbox.instance_id), timeout_s=3600)
    assert (await keeper.verification.verify(sandbox.id)).state is State.RUNNING
    keeper.clock.advance(seconds=61)
    assert (await keeper.sweep.run()).detail["paused"] == 1


async def test_a_busy_processor_and_an_idle_end_are_asked_about_too(keeping: Make) -> None:
    provider = SimulatedProvider()
    keeper = await keeping(provider)
    ends = Policy(idle_timeout_s=60, newborn_grace_s=0, woken_grace_s=0, on_idle=IdleAction.KILL)
    sandbox = await keeper.create("shop", ends)
    provider.cpu_pct[str(sandbox.instance_id)] = 80.0
    keeper.clock.advance(seconds=61)
    assert (await keeper.sweep.run()).detail["working"] == 1
    provider.cpu_pct.clear()
    keeper.clock.advance(seconds=61)
    assert (await keeper.sweep.run()).detail["killed"] == 1


async def test_a_policy_without_work_is_paused_without_a_look(keeping: Make) -> None:
    provider = CountingProvider(SimulatedProvider())
    keeper = await keeping(provider)
    quick = Policy(idle_timeout_s=60, newborn_grace_s=0, woken_grace_s=0, work_max_s=0)
    await keeper.create("shop", quick)
    keeper.clock.advance(seconds=61)
    provider.calls.clear()
    assert (await keeper.sweep.run()).detail["paused"] == 1
    del provider.calls["measure_skew"]
    assert provider.calls == {"pause": 1}


async def test_a_look_costs_one_request_each_and_one_for_all(keeping: Make) -> None:
    inner = SimulatedProvider()
    provider = CountingProvider(inner)
    keeper = await keeping(provider)
    made = [await keeper.create(f"shop-{number}") for number in range(20)]
    inner.commands = {str(one.instance_id): [BUILD] for one in made}
    keeper.clock.advance(seconds=61)
    assert (await keeper.sweep.run()).detail["working"] == 20
    provider.calls.clear()
    keeper.clock.advance(seconds=61)
    assert (await keeper.sweep.run()).detail["working"] == 20
    assert provider.calls["list_commands"] == 20
    assert provider.calls["measure_cpu_pct"] <= 3
    assert set(provider.calls) == {"list_commands", "measure_cpu_pct"}


@pytest.mark.parametrize("question", ["list_commands", "get_connection_info"])
async def test_a_provider_that_cannot_answer_pauses_as_if_nothing_ran(
    keeping: Make, monkeypatch: pytest.MonkeyPatch, question: str
) -> None:
    class Mute(MisbehavingProvider):
        """Does not answer questions about what runs inside."""

        async def inject_fault(self, call: Callable[[], Awaitable[Any]]) -> Any:
            del call
            await asyncio.Event().wait()

    monkeypatch.setattr(work_check, "CHECK_S", 0.05)
    keeper = await keeping(Mute(SimulatedProvider(), question, "measure_cpu_pct"))
    sandbox = await keeper.create("shop", QUICK)
    keeper.clock.advance(seconds=61)
    assert (await keeper.sweep.run()).detail["paused"] == 1
    assert (await keeper.get(sandbox)).state is State.PAUSED
