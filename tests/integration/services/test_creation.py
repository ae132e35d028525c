"""Creation: one sandbox per owner, also after concurrent calls, crashes and lost replies."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from sandkeeper.domain.decisions.wake import WakeStatus
from sandkeeper.domain.errors import (
    InvalidRequestError,
    ProviderRateLimitedError,
    ProviderRefusedError,
    ProviderUnavailableError,
)
from sandkeeper.domain.owner import Owner
from sandkeeper.domain.policy import Launch, Policy
from sandkeeper.domain.states import KilledReason, State
from sandkeeper.providers.base import CreateSpec, Instance
from sandkeeper.services.composition import Services
from sandkeeper.services.lifecycle.instances import InstanceFactory
from sandkeeper.services.observe.reconciliation import Reconciliation
from sandkeeper.testing.providers import (
    DownProvider,
    LostReplyProvider,
    MisbehavingProvider,
    RateLimitedProvider,
    SimulatedProvider,
)
from support.crashing_keeper import DEATHS, OutlivingProvider, project
from support.deps import make_deps
from support.sweep_replica import Replica

Make = Callable[..., Awaitable[Replica]]
MakeOn = Callable[..., Awaitable[Replica]]


TESTS = Path(__file__).parents[2]


class RefusingProvider(MisbehavingProvider):
    """Calls every request wrong."""

    async def inject_fault(self, call: Callable[[], Awaitable[Any]]) -> Any:
        del call
        raise ProviderRefusedError(detail="template 'nope' not found")


async def test_a_created_sandbox_runs_and_carries_its_name_at_the_provider(keeping: Make) -> None:
    provider = SimulatedProvider()
    keeper = await keeping(provider)
    sandbox = await keeper.create("shop", port=3000, metadata={"team": "web"})
    assert (sandbox.state, sandbox.claim, sandbox.run.ready) == (State.RUNNING, None, False)
    assert sandbox.run.url == f"https://3000-{sandbox.instance_id}.simulated.test"
    tag = provider.instances[str(sandbox.instance_id)].tag
    assert tag is not None
    assert (tag.sandbox_id, tag.owner_id, tag.generation) == (sandbox.id, "shop", 1)
    assert sandbox.run.expires_at is not None
    assert await keeper.list_types(sandbox) == [
        "sandbox.created",
        "sandbox.state_changed",
    ]


@pytest.mark.timeout(120)
async def test_many_creators_make_one(keeping_on: MakeOn, database_url: str) -> None:
    provider = SimulatedProvider(latency_s=0.02)
    replicas = [await keeping_on(database_url, provider, replica=name) for name in "abc"]
    asked = [
        replicas[number % 3].creation.create(
            Owner.project("shop"), launch=Launch(), policy=Policy(), actor=f"caller {number}"
        )
        for number in range(30)
    ]
    made = await asyncio.gather(*asked)
    assert [one.is_new for one in made].count(True) == 1
    assert len({one.sandbox.id for one in made}) == 1
    assert len(provider.instances) == 1


async def test_an_ended_sandbox_is_never_made_again_by_asking(keeping: Make) -> None:
    provider = SimulatedProvider()
    keeper = await keeping(provider)
    sandbox = await keeper.create("shop")
    await keeper.lifecycle.kill(sandbox.id, actor="ann")
    again = await keeper.create("shop")
    assert (again.id, again.state) == (sandbox.id, State.KILLED)
    assert provider.instances == {}


async def test_a_lost_answer_is_found_again_at_once(keeping: Make) -> None:
    provider = SimulatedProvider()
    keeper = await keeping(LostReplyProvider(provider, "create"))
    sandbox = await keeper.create("shop")
    assert sandbox.state is State.RUNNING
    assert list(provider.instances) == [sandbox.instance_id]


async def test_fifty_deaths_between_create_and_commit_leave_no_orphan_and_no_double(
    keeping_on: MakeOn, database_url: str, tmp_path: Path
) -> None:
    """Each keeper is killed at another moment, from before the create until after the commit."""
    world = tmp_path / "instances"
    world.mkdir()
    await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "support.crashing_keeper", database_url, str(world)],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        check=True,
        timeout=100,
    )
    provider = OutlivingProvider(world)
    survivor = await keeping_on(database_url, provider)
    counts = await survivor.store.counts.by_state()
    assert counts[State.STARTING] >= len(provider.instances) // 4
    assert sum(counts.values()) == DEATHS

    survivor.clock.advance(seconds=121)
    report = (await make_reconciliation(survivor, provider).run())[0]
    assert report.counts["leak"] == 0
    records = [
        await survivor.store.sandboxes.get_by_owner(Owner.project(project(number)))
        for number in range(DEATHS)
    ]
    assert {one.instance_id for one in records} - {None} == set(provider.instances)

    await survivor.sweep.run()
    for number, before in enumerate(records):
        sandbox = await survivor.store.sandboxes.get_by_owner(Owner.project(project(number)))
        assert sandbox.state is State.RUNNING
        assert not sandbox.is_claimed(survivor.clock())
        assert sandbox.instance_id in provider.instances
        assert before.instance_id in {None, sandbox.instance_id}
    assert len(provider.instances) == DEATHS


def make_reconciliation(replica: Replica, provider: SimulatedProvider) -> Reconciliation:
    deps = make_deps(replica.store, provider, clock=replica.clock, replica="survivor")
    return Services(deps).reconciliation


async def test_a_refused_creation_ends_as_killed_with_its_reason(keeping: Make) -> None:
    keeper = await keeping(RefusingProvider(SimulatedProvider(), "create"))
    with pytest.raises(ProviderRefusedError):
        await keeper.create("shop", template="nope")
    sandbox = await keeper.store.sandboxes.get_by_owner(Owner.project("shop"))
    assert (sandbox.state, sandbox.last_end.killed_reason) == (
        State.KILLED,
        KilledReason.CREATION_FAILED,
    )
    assert sandbox.claim is None


async def test_an_unreachable_provider_leaves_it_starting_and_the_sweep_finishes(
    keeping: Make,
) -> None:
    provider = DownProvider(SimulatedProvider())
    keeper = await keeping(provider)
    with pytest.raises(ProviderUnavailableError):
        await keeper.create("shop")
    sandbox = await keeper.store.sandboxes.get_by_owner(Owner.project("shop"))
    assert (sandbox.state, sandbox.claim) == (State.STARTING, None)
    provider.is_down = False
    keeper.clock.advance(seconds=16)
    await keeper.sweep.run()
    assert (await keeper.get(sandbox)).state is State.RUNNING


async def test_a_limited_creation_is_tried_again_when_the_provider_said(keeping: Make) -> None:
    keeper = await keeping(RateLimitedProvider(SimulatedProvider(), "create"))
    with pytest.raises(ProviderRateLimitedError):
        await keeper.create("shop")
    sandbox = await keeper.store.sandboxes.get_by_owner(Owner.project("shop"))
    assert sandbox.next_check_at is not None
    assert 25 < (sandbox.next_check_at - keeper.clock()).total_seconds() <= 30


async def test_a_creation_without_an_answer_is_given_up(keeping: Make) -> None:
    provider = DownProvider(SimulatedProvider(), "create")
    keeper = await keeping(provider)
    with pytest.raises(ProviderUnavailableError):
        await keeper.create("shop")
    keeper.clock.advance(seconds=1000)
    await keeper.sweep.run()
    sandbox = await keeper.store.sandboxes.get_by_owner(Owner.project("shop"))
    assert (sandbox.state, sandbox.last_end.killed_reason) == (
        State.KILLED,
        KilledReason.CREATION_FAILED,
    )


class LateProvider(MisbehavingProvider):
    """Carries a creation out later than its sender waits."""

    late: CreateSpec | None = None

    async def create(self, spec: CreateSpec) -> Instance:
        if self.late is None:
            self.late = spec
            raise ProviderUnavailableError("It did not answer in time.")
        return await self._provider.create(spec)

    async def open_sdk_sandbox(self, _instance_id: str) -> object:
        return object()  # Nothing is done inside.

    async def carry_out(self) -> None:
        assert self.late is not None
        await self._provider.create(self.late)


@pytest.mark.parametrize("end", ["repeat", "kill", "give up"])
async def test_a_creation_that_is_carried_out_late_makes_no_second_instance(
    keeping: Make, end: str
) -> None:
    simulated = SimulatedProvider()
    provider = LateProvider(simulated)
    keeper = await keeping(provider, settings={"keep_files": False})
    with pytest.raises(ProviderUnavailableError):
        await keeper.create("shop")
    sandbox = await keeper.store.sandboxes.get_by_owner(Owner.project("shop"))
    if end == "kill":
        await keeper.lifecycle.kill(sandbox.id, actor="ann")
    keeper.clock.advance(seconds=1000 if end == "give up" else 20)
    await keeper.sweep.run()
    begun = await keeper.wakes.start(sandbox.id, actor="ann")
    assert (await keeper.wakes.wait(begun, within_s=30)).status is WakeStatus.SUCCEEDED
    await provider.carry_out()
    assert list(simulated.instances) == [(await keeper.get(sandbox)).instance_id]
    await keeper.wakes.close()


async def test_killing_a_creation_that_was_never_answered_leaves_nothing(keeping: Make) -> None:
    provider = SimulatedProvider()
    keeper = await keeping(provider)
    draft = keeper.creation._draft(Owner.project("shop"), Launch(), Policy(), "ann")
    await keeper.store.sandboxes.insert(draft.evolve(claim=None))
    await provider.create(InstanceFactory(keeper.deps, keeper.slots)._spec(draft))
    killed = await keeper.lifecycle.kill(draft.id, actor="bob")
    assert (killed.state, killed.claim) == (State.KILLED, None)
    assert provider.instances == {}


async def test_an_unknown_region_is_named_and_nothing_is_written(keeping: Make) -> None:
    keeper = await keeping(SimulatedProvider())
    with pytest.raises(InvalidRequestError, match="there are: default"):
        await keeper.create("shop", region="mars")
    assert await keeper.store.sandboxes.find_by_owner(Owner.project("shop")) is None
