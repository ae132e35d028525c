"""A sandbox that hangs delays no wake and no pause without end, and what was not saved is said."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from sandkeeper.domain.decisions.wake import WakeStatus
from sandkeeper.domain.errors import FilesUnavailableError
from sandkeeper.domain.policy import Policy
from sandkeeper.domain.receipt import FILES_NOT_SAVED
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import State
from sandkeeper.services.files.agent import client
from sandkeeper.services.files.agent.client import locate_fence
from sandkeeper.services.lifecycle.lifecycle import CAPTURES_MAX
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


async def test_a_command_inside_that_says_nothing_fails_the_attempt_only(
    keeping: Keeping, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = HangingProvider(tmp_path / "inside")
    keeper = await keeping(provider, settings={"wake_retry_s": 0.01})
    sandbox = await keeper.create("shop", Policy(idle_timeout_s=None), workdir=str(provider.folder))
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
    slow = hasty.replace("now = time.time_ns()", "time.sleep(0.1); now = time.time_ns()", 1)
    assert slow != hasty != client.read_script()
    monkeypatch.setattr(client, "read_script", lambda: slow)
    remote = await keeper.files.reach(sandbox)
    heard: list[str] = []
    monkeypatch.setattr(remote, "hear", heard.append)
    tree = await remote.list_tree()
    assert list(tree.seen) == ["page"]
    assert heard
