"""A replica that stood still carries out nothing stale: no step, no file, no start, no end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete

from sandkeeper.background.checkpoint import DueCaptures
from sandkeeper.domain.decisions.wake import Wake, WakeStatus
from sandkeeper.domain.errors import SandboxBusyError
from sandkeeper.domain.policy import Policy
from sandkeeper.domain.receipt import StepName, WakeMethod
from sandkeeper.domain.sandbox import ClaimKind, Sandbox
from sandkeeper.domain.states import State
from sandkeeper.providers import acting_claim
from sandkeeper.providers.acting_claim import ActingClaim, acting_under, check_deadline
from sandkeeper.providers.base import Instance, InstanceState
from sandkeeper.services.files import unclaimed
from sandkeeper.services.files.agent.client import FencedError, locate_fence
from sandkeeper.services.files.folder_watches import FolderWatches
from sandkeeper.services.lifecycle import claims
from sandkeeper.services.observe.leaks import LeakHandler
from sandkeeper.store.tables.sandboxes import SANDBOXES
from sandkeeper.testing.providers import SimulatedProvider
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
        for module in (acting_claim, claims, unclaimed):
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
    if wake is not None:  # On a busy machine it has finished before we look.
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
    assert [verb for verb, _ in seen] == ["connect"], "the first sent nothing"
    await one.wakes.close()


async def send(text: str) -> AsyncIterator[bytes]:
    yield text.encode()


@pytest.mark.parametrize("stop_at", ["run", "write"])
async def test_edits_survive_a_replica_that_stood_still_while_it_put_a_file(
    keeping: Keeping,
    provider: StoppableProvider,
    clock: MovableClock,
    monkeypatch: pytest.MonkeyPatch,
    stop_at: str,
) -> None:
    one = await make(keeping, provider, clock, "one")
    two = await make(keeping, provider, clock, "two")
    sandbox = await begin(one, provider)
    frozen = Frozen(monkeypatch, clock)
    provider.stop_at, provider.frozen = stop_at, frozen
    putting = asyncio.create_task(one.file_api.put(sandbox.owner, "page", send("old")))
    await frozen.is_reached.wait()

    frozen.pass_time()
    await two.file_api.put(sandbox.owner, "page", send("new"))
    page = provider.folder / "page"
    assert page.read_text() == "new"
    page.write_text("edited")

    frozen.is_thawed.set()
    with pytest.raises(SandboxBusyError):
        await putting
    assert page.read_text() == "edited"
    kept = await two.file_api.find(sandbox.owner, "page")
    assert b"".join([piece async for piece in two.file_api.stream(kept)]) == b"new"
    await one.wakes.close()


async def lose_a_file(one: Replica, sandbox: Sandbox, provider: StoppableProvider) -> None:
    """Let the run look like one that no wake began, and that came up without its file."""
    fresh = await one.get(sandbox)
    later = one.clock() + timedelta(seconds=1)
    await one.store.sandboxes.save(
        fresh.evolve(run_started_at=later, wake=None), expect_version=fresh.version, now=later
    )
    (provider.folder / "page").unlink()


@pytest.mark.parametrize("is_long", [True, False], ids=["long", "short"])
async def test_edits_survive_a_replica_that_stood_still_in_a_background_capture(
    keeping: Keeping,
    provider: StoppableProvider,
    clock: MovableClock,
    monkeypatch: pytest.MonkeyPatch,
    is_long: bool,
) -> None:
    """After a long standstill its own deadline stops it; after a short one the newer claim does."""
    one = await make(keeping, provider, clock, "one")
    two = await make(keeping, provider, clock, "two")
    sandbox = await begin(one, provider)
    await lose_a_file(one, sandbox, provider)
    frozen = Frozen(monkeypatch, clock)
    provider.stop_at, provider.frozen = "write", frozen
    captures = DueCaptures(one.deps, one.files, FolderWatches(one.deps))
    capturing = asyncio.create_task(captures.capture(sandbox.id, fresh_s=-60))
    await frozen.is_reached.wait()

    if is_long:
        frozen.pass_time()
    await two.lifecycle.pause(sandbox.id, actor="test")
    ended = await two.wakes.wait(await two.wakes.start(sandbox.id, actor="test"), within_s=30)
    assert ended.status is WakeStatus.SUCCEEDED
    await two.after_resume.wait()
    page = provider.folder / "page"
    assert page.read_text() == "kept"
    page.write_text("edited")

    frozen.is_thawed.set()
    assert await capturing == "busy"
    assert page.read_text() == "edited"
    for replica in (one, two):
        await replica.wakes.close()


class LateProvider(SimulatedProvider):
    """Answers the first `get` of one instance only when a test says so."""

    frozen: Frozen | None = None
    late_id = ""

    async def get(self, instance_id: str, *, port: int | None = None) -> Instance:
        found = await super().get(instance_id, port=port)
        if self.frozen is not None and instance_id == self.late_id:
            frozen, self.frozen = self.frozen, None
            await frozen.wait()
        return found


async def test_a_leak_that_was_adopted_since_is_not_paused_by_a_replica_that_stood_still(
    keeping: Keeping, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = LateProvider()
    one = await keeping(provider, replica="one", clock=clock)
    made = await one.create("shop", STAY)
    instance = await provider.get(made.instance_id or "")
    async with one.store.database.writing() as connection:
        await connection.execute(delete(SANDBOXES))
    handler = LeakHandler(one.deps, grace_s=0)
    await handler.record(provider, instance, kind="unowned", reason="test")
    clock.advance(minutes=5)
    again = replace(instance, seen_at=clock())
    leak = await handler.record(provider, again, kind="unowned", reason="test")
    assert leak.sightings == 2
    provider.frozen = frozen = Frozen(monkeypatch, clock)
    provider.late_id = instance.instance_id
    pausing = asyncio.create_task(handler.pause(provider, leak, instance))
    await frozen.is_reached.wait()
    frozen.pass_time()
    assert await one.adoption.adopt_marked(provider, instance) is not None
    frozen.is_thawed.set()
    assert await pausing is False
    assert provider.instances[instance.instance_id].state is InstanceState.RUNNING


def test_a_task_without_a_claim_has_no_deadline() -> None:
    check_deadline()

    async def confirm() -> bool:
        return True

    over = ActingClaim(number=1, until_s=acting_claim.now_s() - 1, confirm=confirm)
    with acting_under(over), pytest.raises(SandboxBusyError):
        check_deadline()
