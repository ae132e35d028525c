"""A sandbox that hangs delays no wake and no pause without end, and what was not saved is said."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sandkeeper.domain.activity import ActivityClass
from sandkeeper.domain.decisions.wake import WakeStatus
from sandkeeper.domain.errors import FilesUnavailableError, ProviderUnavailableError
from sandkeeper.domain.policy import FilesOnResume, IdleAction, Policy
from sandkeeper.domain.receipt import FILES_NOT_SAVED
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import State
from sandkeeper.providers.base import InstanceState
from sandkeeper.services.files.agent import client
from sandkeeper.services.files.agent.client import locate_fence
from sandkeeper.services.lifecycle.before_stop import CAPTURES_MAX
from sandkeeper.testing.providers import SimulatedProvider, UnpausableProvider
from support.deps import MovableClock
from support.local_sandbox import LocalProvider
from support.sweep_replica import QUICK, Replica

Keeping = Callable[..., Awaitable[Replica]]


class HangingProvider(LocalProvider):
    """Hangs in the next `hangs` commands inside."""

    hangs = 0

    async def before(self, what: str) -> None:
        await super().before(what)
        if what == "run" and self.hangs:
            self.hangs -= 1
            await asyncio.Event().wait()


async def test_an_idle_sandbox_is_paused_without_a_capture_after_some_failures(
    keeping: Keeping, tmp_path: Path
) -> None:
    async def fail(_sandbox: Sandbox) -> None:
        raise FilesUnavailableError("The bucket is away.")

    clock = MovableClock()
    provider = LocalProvider(tmp_path / "inside")
    keeper = await keeping(provider, clock=clock, before_pause=fail)
    sandbox = await keeper.create("shop", QUICK, workdir=str(provider.folder))
    clock.advance(seconds=61)
    for _ in range(CAPTURES_MAX - 1):
        await keeper.sweep.run()
        assert (await keeper.get(sandbox)).state is State.RUNNING
        clock.advance(seconds=20)
    await keeper.sweep.run()
    asleep = await keeper.get(sandbox)
    assert asleep.state is State.PAUSED
    assert asleep.reason.endswith(f"{FILES_NOT_SAVED}: The bucket is away.")
    said = await keeper.explanations.explain(sandbox.id)
    assert FILES_NOT_SAVED in said.why
    begun = await keeper.wakes.start(sandbox.id, actor="test")
    ended = await keeper.wakes.wait(begun, within_s=30)
    assert ended.status is WakeStatus.SUCCEEDED
    assert ended.receipt is not None
    assert FILES_NOT_SAVED in ended.receipt.reason
    await keeper.wakes.close()


class HungGuest:
    """Fails every capture, as a sandbox does whose inside does not answer."""

    async def __call__(self, _sandbox: Sandbox) -> None:
        raise ProviderUnavailableError("The sandbox does not answer.")


LIFETIME = Policy(idle_timeout_s=None, lifetime_s=60, extend_while_active=False, newborn_grace_s=0)
END_WHEN_IDLE = replace(QUICK, on_idle=IdleAction.KILL)


@pytest.mark.parametrize("policy", [LIFETIME, END_WHEN_IDLE], ids=["lifetime", "idle"])
async def test_a_hung_sandbox_at_its_end_is_paused_which_keeps_its_disk(
    keeping: Keeping, policy: Policy
) -> None:
    clock = MovableClock()
    provider = SimulatedProvider()
    keeper = await keeping(provider, clock=clock, before_pause=HungGuest())
    sandbox = await keeper.create("shop", policy)
    clock.advance(seconds=61)
    for _ in range(CAPTURES_MAX - 1):
        await keeper.sweep.run()
        assert (await keeper.get(sandbox)).state is State.RUNNING
        clock.advance(seconds=20)
    await keeper.sweep.run()
    asleep = await keeper.get(sandbox)
    assert asleep.state is State.PAUSED
    assert provider.instances[sandbox.instance_id or ""].state is InstanceState.PAUSED
    said = await keeper.explanations.explain(sandbox.id)
    assert f"paused and not ended: {FILES_NOT_SAVED}: The sandbox does not answer." in said.why


async def test_a_hung_sandbox_ends_where_the_provider_cannot_pause(keeping: Keeping) -> None:
    clock = MovableClock()
    provider = UnpausableProvider(SimulatedProvider())
    keeper = await keeping(provider, clock=clock, before_pause=HungGuest())
    sandbox = await keeper.create("shop", LIFETIME)
    clock.advance(seconds=61)
    for _ in range(CAPTURES_MAX):
        await keeper.sweep.run()
        clock.advance(seconds=20)
    ended = await keeper.get(sandbox)
    assert ended.state is State.EXPIRED
    assert FILES_NOT_SAVED in ended.reason


async def test_a_file_store_that_is_away_ends_no_sandbox(keeping: Keeping) -> None:
    async def fail(_sandbox: Sandbox) -> None:
        raise FilesUnavailableError("The bucket is away.")

    clock = MovableClock()
    keeper = await keeping(UnpausableProvider(SimulatedProvider()), clock=clock, before_pause=fail)
    sandbox = await keeper.create("shop", LIFETIME)
    clock.advance(seconds=61)
    for _ in range(CAPTURES_MAX + 2):
        await keeper.sweep.run()
        clock.advance(seconds=20)
    assert (await keeper.get(sandbox)).state is State.RUNNING


async def test_a_sandbox_that_is_used_while_its_files_are_saved_does_not_end_for_being_idle(
    keeping: Keeping,
) -> None:
    clock = MovableClock()
    keeper: Replica

    async def use(sandbox: Sandbox) -> None:
        clock.advance(seconds=5)
        keeper.activities.record(sandbox.id, kind=ActivityClass.INTENT, source="test")

    keeper = await keeping(SimulatedProvider(), clock=clock, before_pause=use)
    sandbox = await keeper.create("shop", END_WHEN_IDLE)
    clock.advance(seconds=61)
    await keeper.sweep.run()
    kept = await keeper.get(sandbox)
    assert (kept.state, kept.claim) == (State.RUNNING, None)


async def test_a_command_inside_that_says_nothing_fails_the_attempt_only(
    keeping: Keeping, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = HangingProvider(tmp_path / "inside")
    keeper = await keeping(provider, settings={"wake_retry_s": 0.01})
    policy = Policy(idle_timeout_s=None, files_on_resume=FilesOnResume.BEFORE)
    sandbox = await keeper.create("shop", policy, workdir=str(provider.folder))
    (provider.folder / "page").write_text("kept")
    await keeper.files.capture(await keeper.get(sandbox))
    await keeper.lifecycle.pause(sandbox.id, actor="test")
    (provider.folder / "page").unlink()
    monkeypatch.setattr(client, "STALL_S", 2.0)
    provider.hangs = 1
    begun = await keeper.wakes.start(sandbox.id, actor="test")
    ended = await keeper.wakes.wait(begun, within_s=30)
    assert (ended.status, ended.attempt) == (WakeStatus.SUCCEEDED, 2)
    assert (provider.folder / "page").read_text() == "kept"
    await keeper.wakes.close()
    Path(locate_fence(sandbox.id)).unlink()


async def test_signs_of_life_keep_slow_work_going(
    keeping: Keeping, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = LocalProvider(tmp_path / "inside")
    keeper = await keeping(provider)
    sandbox = await keeper.create("shop", workdir=str(provider.folder))
    (provider.folder / "page").write_text("there")
    hasty = client.read_script().replace("SIGN_S = 10", "SIGN_S = 0.02")
    look = "self._now = time.time_ns()"
    slow = hasty.replace(look, f"time.sleep(0.1); {look}", 1)
    assert slow != hasty != client.read_script()
    monkeypatch.setattr(client, "read_script", lambda: slow)
    remote = await keeper.files.reach(sandbox)
    heard: list[str] = []
    monkeypatch.setattr(remote, "hear", heard.append)
    tree = await remote.list_tree()
    assert list(tree.seen) == ["page"]
    assert heard
