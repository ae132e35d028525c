"""With a wrong clock nothing in use is paused, and no record stays wrong."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from sandkeeper.background.scheduler import TaskRun
from sandkeeper.domain.errors import ProviderUnavailableError, SandboxBusyError
from sandkeeper.domain.owner import Owner
from sandkeeper.domain.sandbox import ClaimKind, Sandbox
from sandkeeper.domain.states import State
from sandkeeper.domain.tasks import TaskName
from sandkeeper.providers.base import CreateSpec, Instance, InstanceState
from sandkeeper.services.clock import ProcessClock
from sandkeeper.testing.providers import SimulatedProvider
from support.deps import MovableClock
from support.sweep_replica import Replica


class LostFirstCreate(SimulatedProvider):
    """Fails the first creation."""

    has_failed = False

    async def create(self, spec: CreateSpec) -> Instance:
        if not self.has_failed:
            self.has_failed = True
            raise ProviderUnavailableError
        return await super().create(spec)


Keeping = Callable[..., Awaitable[Replica]]
HOUR = timedelta(hours=1)
BEHIND = timedelta(seconds=-5)
STATES = {InstanceState.RUNNING: State.RUNNING, InstanceState.PAUSED: State.PAUSED}


def make_wrong_clock(ahead: timedelta) -> ProcessClock:
    """Return the clock of a process on a machine whose time is wrong from the start."""
    return ProcessClock(wall=lambda: datetime.now(UTC) + ahead)


async def sweep(replica: Replica) -> TaskRun:
    return await replica.scheduler.run_now(TaskName.IDLE_SWEEP)


async def check_truth(replica: Replica, provider: SimulatedProvider, sandbox: Sandbox) -> None:
    known = await replica.get(sandbox)
    assert known.state is STATES[provider.instances[str(known.instance_id)].state]


@pytest.mark.parametrize("ahead", [HOUR, -HOUR, BEHIND], ids=str)
async def test_a_replica_with_a_wrong_clock_works_by_the_databases_time_and_does_not_sweep(
    postgres_database: str, keeping_on: Keeping, ahead: timedelta
) -> None:
    provider = SimulatedProvider()
    right = await keeping_on(postgres_database, provider, replica="right", clock=ProcessClock())
    wrong = await keeping_on(
        postgres_database, provider, replica="wrong", clock=make_wrong_clock(ahead)
    )
    for replica in (right, wrong):
        await replica.clock_monitor.check()
    assert abs(wrong.clock() - right.clock()) < timedelta(seconds=1)
    in_use = await wrong.create("shop")
    async with wrong.claims.hold(in_use.id, ClaimKind.PAUSE) as held:
        assert held.claim is not None
        left = held.claim.until - right.clock()
        assert timedelta(seconds=55) < left < timedelta(seconds=62)
        with pytest.raises(SandboxBusyError):
            async with right.claims.hold(in_use.id, ClaimKind.PAUSE, wait_s=0):
                pass
    swept = await sweep(wrong)
    assert not swept.succeeded
    assert "This machine's clock" in str(swept.error)
    assert (await sweep(right)).succeeded
    assert (await right.get(in_use)).state is State.RUNNING
    assert provider.acts == [("create", in_use.instance_id)]


@pytest.mark.parametrize("ahead", [HOUR, -HOUR, -BEHIND, BEHIND], ids=str)
async def test_with_a_provider_whose_clock_differs_every_answer_is_true(
    database_url: str, keeping_on: Keeping, ahead: timedelta
) -> None:
    provider = SimulatedProvider()
    provider.clock_ahead = ahead
    replica = await keeping_on(database_url, provider)
    await replica.clock_monitor.check()
    sandbox = await replica.create("shop")
    for _ in range(3):
        paused = await replica.lifecycle.pause(sandbox.id, actor="user:1", reason="by hand")
        assert paused.state is State.PAUSED
        await replica.event_polling.run()
        await check_truth(replica, provider, sandbox)
        await provider.connect(str(sandbox.instance_id), timeout_s=60)
        await replica.event_polling.run()
        assert (await replica.get(sandbox)).state is State.RUNNING
        assert (await replica.verification.verify(sandbox.id)).state is State.RUNNING
    await provider.pause(str(sandbox.instance_id))
    await replica.reconciliation.run()
    assert (await replica.get(sandbox)).state is State.PAUSED


async def test_a_record_from_an_hour_ahead_is_corrected_by_the_first_look(
    database_url: str, keeping_on: Keeping
) -> None:
    provider, clock = SimulatedProvider(), MovableClock()
    replica = await keeping_on(database_url, provider, clock=clock)
    sandbox = await replica.create("shop")
    clock.advance(hours=1)
    await replica.lifecycle.pause(sandbox.id, actor="user:1", reason="by hand")
    clock.advance(hours=-1)
    await provider.connect(str(sandbox.instance_id), timeout_s=60)
    await replica.reconciliation.run()
    fixed = await replica.get(sandbox)
    assert fixed.state is State.RUNNING
    assert fixed.state_since <= clock()


async def test_a_keeper_on_sqlite_does_not_sweep_while_the_provider_has_another_hour(
    sqlite_template: Path, tmp_path: Path, keeping_on: Keeping
) -> None:
    provider = SimulatedProvider()
    database = shutil.copy(sqlite_template, tmp_path / "keeper.db")
    replica = await keeping_on(f"sqlite:///{database}", provider)
    provider.clock_ahead = -HOUR
    await replica.clock_monitor.check()
    assert not (await sweep(replica)).succeeded
    assert len(replica.clock_monitor.describe()) == 2
    [reading] = [r for r in (await replica.health.report()).readings if r.name == "clock_skew"]
    assert (reading.red, reading.value) == (True, 3600)
    provider.clock_ahead = timedelta(seconds=3)
    await replica.clock_monitor.check()
    assert (await sweep(replica)).succeeded
    assert len(replica.clock_monitor.describe()) == 1


async def test_a_keeper_on_sqlite_that_knows_no_second_clock_asks_for_one_before_it_sweeps(
    sqlite_template: Path, tmp_path: Path, keeping_on: Keeping
) -> None:
    provider = SimulatedProvider()
    database = shutil.copy(sqlite_template, tmp_path / "keeper.db")
    replica = await keeping_on(f"sqlite:///{database}", provider, clock=make_wrong_clock(HOUR))
    # At the start nothing answered; by now the provider does, and it shows that our clock is wrong.
    provider.clock_ahead = -HOUR
    assert not (await sweep(replica)).succeeded


async def test_a_creation_is_finished_although_the_clocks_differ(
    sqlite_template: Path, tmp_path: Path, keeping_on: Keeping
) -> None:
    provider, clock = LostFirstCreate(), MovableClock()
    database = shutil.copy(sqlite_template, tmp_path / "keeper.db")
    replica = await keeping_on(f"sqlite:///{database}", provider, clock=clock)
    with pytest.raises(ProviderUnavailableError):
        await replica.create("shop")
    idle = await replica.create("idle")
    provider.clock_ahead = -HOUR
    clock.advance(minutes=10)
    assert not (await sweep(replica)).succeeded
    made = await replica.store.sandboxes.get_by_owner(Owner.project("shop"))
    assert (made.state, (await replica.get(idle)).state) == (State.RUNNING, State.RUNNING)
