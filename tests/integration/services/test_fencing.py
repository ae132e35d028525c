"""A replica that stood still carries out nothing stale: no step, no file, no start, no end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sandkeeper.domain.decisions.wake import Wake, WakeStatus
from sandkeeper.domain.errors import SandboxBusyError
from sandkeeper.domain.policy import Policy
from sandkeeper.domain.receipt import StepName, WakeMethod
from sandkeeper.domain.sandbox import ClaimKind, Sandbox
from sandkeeper.domain.states import State
from sandkeeper.providers import acting_claim
from sandkeeper.providers.acting_claim import ActingClaim, acting_under, check_deadline
from sandkeeper.services.files.agent.client import FencedError, locate_fence
from sandkeeper.services.lifecycle import claims
from support.deps import MovableClock
from support.local_sandbox import LocalProvider
from support.sweep_replica import Replica

STAY = Policy(idle_timeout_s=None)
Keeping = Callable[..., Awaitable[Replica]]


class Frozen:
    """Stops one replica inside the `at`-th act on the inside of a sandbox, until it is thawed.

    The other replica works in this time. The clocks of both have moved past the lease by then, as
    they do for a process that was stopped.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, clock: MovableClock) -> None:
        self.is_reached = asyncio.Event()
        self.is_thawed = asyncio.Event()
        self._monkeypatch = monkeypatch
        self._clock = clock

    async def wait(self) -> None:
        self.is_reached.set()
        await self.is_thawed.wait()

    def pass_time(self) -> None:
        real = acting_claim.now_s
        self._clock.advance(minutes=2)
        for module in (acting_claim, claims):
            self._monkeypatch.setattr(module, "now_s", lambda: real() + 120)


class StoppableProvider(LocalProvider):
    """Waits for a test before the first act of one kind."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.stop_at = ""
        self.frozen: Frozen | None = None

    async def before(self, what: str) -> None:
        await super().before(what)
        if self.frozen is not None and what == self.stop_at:
            frozen, self.frozen = self.frozen, None
            await frozen.wait()


async def make(
    keeping: Keeping, provider: StoppableProvider, clock: MovableClock, name: str, **options: Any
) -> Replica:
    settings = {"wake_retry_s": 0.01, "files_url": f"file://{provider.folder.parent}/kept"}
    return await keeping(provider, replica=name, clock=clock, settings=settings, **options)


async def begin(one: Replica, provider: StoppableProvider) -> Sandbox:
    """Return a running sandbox with a kept file."""
    sandbox = await one.create(
        "shop", STAY, port=80, start_command="serve", workdir=str(provider.folder)
    )
    wake = await one.store.wakes.find_open(sandbox.id)
    assert wake is not None
    await one.wakes.wait(wake, within_s=30)
    (provider.folder / "page").write_text("kept")
    await one.files.capture(await one.get(sandbox))
    return await one.get(sandbox)


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[StoppableProvider]:
    (tmp_path / "kept").mkdir()
    one = StoppableProvider(tmp_path / "inside")
    yield one
    for sandbox_id in one.sandbox_ids:
        Path(locate_fence(sandbox_id)).unlink(missing_ok=True)


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


@pytest.mark.parametrize("stop_at", ["run", "write"])
async def test_edits_after_a_wake_survive_a_replica_that_stood_still_in_it(
    keeping: Keeping,
    provider: StoppableProvider,
    clock: MovableClock,
    monkeypatch: pytest.MonkeyPatch,
    stop_at: str,
) -> None:
    one = await make(keeping, provider, clock, "one")
    two = await make(keeping, provider, clock, "two")
    sandbox = await begin(one, provider)
    provider.end(sandbox.instance_id or "", reason="request")
    frozen = Frozen(monkeypatch, clock)
    provider.stop_at, provider.frozen = stop_at, frozen
    begun = await one.wakes.start(sandbox.id, actor="test")
    await frozen.is_reached.wait()

    frozen.pass_time()
    assert await two.wakes.resume_interrupted() == 1
    ended = await two.wakes.wait(begun, within_s=30)
    assert (ended.status, ended.method) == (WakeStatus.SUCCEEDED, WakeMethod.RECREATE)
    page = provider.folder / "page"
    assert page.read_text() == "kept"
    page.write_text("edited")
    done, starts = await two.get(sandbox), len(provider.starts)

    frozen.is_thawed.set()
    left = await one.wakes.wait(begun, within_s=30)
    assert left == await two.store.wakes.find(begun.id), (
        "the driver that was replaced has changed nothing"
    )
    assert page.read_text() == "edited"
    now = await two.get(sandbox)
    assert (now.state, now.instance_id, now.wake) == (State.RUNNING, done.instance_id, done.wake)
    assert len(provider.starts) == starts
    assert (left.status, left.error) == (WakeStatus.SUCCEEDED, None)
    assert list(provider.instances) == [done.instance_id]
    for replica in (one, two):
        await replica.wakes.close()


async def test_the_inside_refuses_an_older_claim_until_the_database_confirms_it(
    keeping: Keeping, provider: StoppableProvider, clock: MovableClock
) -> None:
    one = await make(keeping, provider, clock, "one")
    sandbox = await begin(one, provider)
    fence = Path(locate_fence(sandbox.id))
    is_confirmed = False

    async def confirm() -> bool:
        return is_confirmed

    fence.write_text("1000")
    old = ActingClaim(number=7, until_s=acting_claim.now_s() + 60, confirm=confirm)
    remote = await one.files.reach(sandbox)
    with acting_under(old):
        with pytest.raises(FencedError):
            await remote.list_tree()
        assert fence.read_text() == "1000"
        is_confirmed = True
        await remote.list_tree()
    assert fence.read_text() == "7"
    await one.wakes.close()


async def test_a_shell_without_python_refuses_an_older_claim_as_well(
    keeping: Keeping, provider: StoppableProvider, clock: MovableClock
) -> None:
    one = await make(keeping, provider, clock, "one")
    sandbox = await begin(one, provider)
    fence = Path(locate_fence(sandbox.id))

    async def confirm() -> bool:
        return False

    remote = await one.files.reach(sandbox)
    remote.is_plain = True
    for number, expected in ((20, "20"), (21, "21")):
        with acting_under(
            ActingClaim(number=number, until_s=acting_claim.now_s() + 60, confirm=confirm)
        ):
            await remote.list_tree()
        assert fence.read_text().strip() == expected
    with (
        acting_under(ActingClaim(number=20, until_s=acting_claim.now_s() + 60, confirm=confirm)),
        pytest.raises(FencedError),
    ):
        await remote.list_tree()
    await one.wakes.close()


async def test_a_claim_that_another_had_since_is_not_renewed(
    keeping: Keeping, provider: StoppableProvider, clock: MovableClock
) -> None:
    one = await make(keeping, provider, clock, "one", lease_s=10)
    two = await make(keeping, provider, clock, "two", lease_s=10)
    sandbox = await begin(one, provider)
    async with one.claims.hold(sandbox.id, ClaimKind.PAUSE) as held:
        clock.advance(seconds=11)
        assert (await one.claims.renew(held)).claim is not None, "no other one has had it"
        clock.advance(seconds=11)
        async with two.claims.hold(sandbox.id, ClaimKind.PAUSE):
            pass
        with pytest.raises(SandboxBusyError):
            await one.claims.renew(held)
    await one.wakes.close()


async def test_no_step_begins_after_the_holders_own_deadline(
    keeping: Keeping,
    provider: StoppableProvider,
    clock: MovableClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stood_still: list[StepName] = []

    async def stand_still(_wake: Wake, step: StepName) -> None:
        if step is StepName.RESUMING and not stood_still:
            stood_still.append(step)
            Frozen(monkeypatch, clock).pass_time()

    one = await make(keeping, provider, clock, "one", on_step=stand_still)
    sandbox = await begin(one, provider)
    await one.lifecycle.pause(sandbox.id, actor="test")
    acts = len(provider.acts)
    ended = await one.wakes.wait(await one.wakes.start(sandbox.id, actor="test"), within_s=30)
    seen = provider.acts[acts:]
    assert (ended.status, ended.attempt) == (WakeStatus.SUCCEEDED, 2)
    assert [verb for verb, _ in seen] == ["connect", "set_timeout"], "the first sent nothing"
    await one.wakes.close()


def test_a_task_without_a_claim_has_no_deadline() -> None:
    check_deadline()

    async def confirm() -> bool:
        return True

    over = ActingClaim(number=1, until_s=acting_claim.now_s() - 1, confirm=confirm)
    with acting_under(over), pytest.raises(SandboxBusyError):
        check_deadline()
