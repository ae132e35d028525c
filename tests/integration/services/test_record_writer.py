"""The writes of a wake: from the last record, under the claim, and never after the wake's end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta

import pytest

from sandkeeper.domain.decisions.wake import Wake, WakeStatus
from sandkeeper.domain.errors import SandboxBusyError
from sandkeeper.domain.events import Event
from sandkeeper.domain.sandbox import ClaimKind, Sandbox
from sandkeeper.services.wake.record_writer import RecordWriter, WakeTakenOverError
from sandkeeper.testing.providers import SimulatedProvider
from support.sweep_replica import Replica

Keeping = Callable[..., Awaitable[Replica]]


def say(reason: str) -> Callable[[Sandbox], tuple[Sandbox, Sequence[Event]]]:
    return lambda record: (record.evolve(reason=reason), ())


class Writing:
    """One sandbox, its wake and the writer under test."""

    def __init__(self, keeper: Replica, sandbox: Sandbox, wake: Wake) -> None:
        self.keeper = keeper
        self.sandbox = sandbox
        self.wake = wake
        self.writer = RecordWriter(keeper.store, sandbox.id)

    async def write(self, reason: str) -> Sandbox:
        now = self.keeper.clock()
        return await self.writer.write(say(reason), wake=self.wake, now=now)

    async def hold(self) -> Sandbox:
        now = self.keeper.clock()
        held = await self.keeper.store.sandboxes.claim(
            self.sandbox.id,
            kind=ClaimKind.WAKE,
            holder="me",
            until=now + timedelta(minutes=1),
            now=now,
        )
        assert held is not None
        self.writer.hold(held)
        return held

    async def disturb(self, **changes: object) -> None:
        record = await self.keeper.get(self.sandbox)
        await self.keeper.store.sandboxes.save(
            record.evolve(**changes), expect_version=record.version, now=self.keeper.clock()
        )


@pytest.fixture
async def writing(keeping: Keeping) -> Writing:
    keeper = await keeping(SimulatedProvider())
    sandbox = await keeper.create("shop")
    now = keeper.clock()
    asked = Wake("wk-1", sandbox.id, "test", started_at=now, updated_at=now, due_at=now)
    wake, _ = await keeper.store.wakes.begin(asked, driver="one")
    return Writing(keeper, sandbox, wake)


async def test_each_write_starts_from_the_one_before(writing: Writing) -> None:
    held = await writing.hold()
    first = await writing.write("first")
    second = await writing.write("second")
    assert (first.version, second.version) == (held.version + 1, held.version + 2)
    assert await writing.keeper.get(writing.sandbox) == second


async def test_what_another_writer_changed_meets_the_write(writing: Writing) -> None:
    await writing.hold()
    await writing.disturb(actor="someone")
    written = await writing.write("mine")
    assert (written.reason, written.actor) == ("mine", "someone")


async def test_nothing_is_written_without_the_claim(writing: Writing) -> None:
    await writing.hold()
    await writing.disturb(claim=None)
    with pytest.raises(SandboxBusyError):
        await writing.write("stale")
    assert (await writing.keeper.get(writing.sandbox)).reason != "stale"


async def test_the_next_write_releases_the_claim_and_the_one_after_needs_none(
    writing: Writing,
) -> None:
    await writing.hold()
    assert (await writing.write("held")).claim is not None
    writing.writer.release_with_next()
    assert (await writing.write("left")).claim is None
    await writing.disturb(actor="someone")
    assert (await writing.write("after")).claim is None


async def test_a_wake_that_another_ended_is_not_written(writing: Writing) -> None:
    writing.writer.remember(await writing.keeper.get(writing.sandbox))
    over = writing.wake.evolve(status=WakeStatus.SUCCEEDED, finished_at=writing.keeper.clock())
    await writing.keeper.store.wakes.save(over)
    await writing.disturb(reason="ended by another")
    with pytest.raises(WakeTakenOverError):
        await writing.write("stale")
    assert (await writing.keeper.get(writing.sandbox)).reason == "ended by another"
