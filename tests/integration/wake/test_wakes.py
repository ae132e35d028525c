"""Wakes of real sandboxes: every method, with files, app and port."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from sandkeeper.domain.decisions.wake import WakeStatus
from sandkeeper.domain.receipt import StepName, WakeMethod
from sandkeeper.domain.sandbox import ClaimKind
from sandkeeper.domain.states import State
from support.engine_process import Engine
from support.wake_replica import WORKDIR, Waker, browse

Make = Callable[..., Awaitable[Waker]]

CYCLES = 30


async def test_a_new_sandbox_has_its_app_and_a_running_one_needs_nothing(
    waking: Make, engine: Engine
) -> None:
    waker = await waking()
    sandbox = await waker.create("shop")
    assert (sandbox.state, sandbox.run.ready) == (State.RUNNING, True)
    assert "Directory listing" in await browse(engine.url, sandbox)
    wake = await waker.wake(sandbox)
    assert (wake.status, wake.method) == (WakeStatus.SUCCEEDED, WakeMethod.NOTHING)
    assert await waker.instances(sandbox) == [sandbox.instance_id]


async def test_what_was_killed_behind_our_back_comes_back_with_the_edited_files(
    waking: Make, engine: Engine
) -> None:
    waker = await waking()
    sandbox = await waker.create("shop")
    await waker.write(sandbox, "index.html", "edited inside")
    await waker.capture(sandbox)
    assert sandbox.instance_id is not None
    await waker.provider.kill(sandbox.instance_id)
    wake = await waker.wake(sandbox)
    assert (wake.status, wake.method, wake.error) == (
        WakeStatus.SUCCEEDED,
        WakeMethod.RECREATE,
        None,
    )
    assert [step.name for step in wake.steps] == [
        StepName.RECREATING,
        StepName.RESTORING_FILES,
        StepName.STARTING_APP,
        StepName.WAITING_FOR_PORT,
    ]
    assert wake.receipt is not None
    assert (wake.receipt.restored, wake.receipt.lost, wake.receipt.memory_kept) == (1, (), False)
    back = await waker.get(sandbox)
    assert (back.state, back.run.ready, back.last_end.recreated) == (State.RUNNING, True, True)
    assert back.instance_id != sandbox.instance_id
    assert await browse(engine.url, back) == "edited inside"
    assert "sandbox.wake_progressed" in await waker.replica.list_types(sandbox)


async def test_sleep_and_wake_again_and_again_lose_nothing(waking: Make, engine: Engine) -> None:
    waker = await waking()
    sandbox = await waker.create("shop")
    for cycle in range(CYCLES):
        await waker.write(sandbox, "index.html", f"cycle {cycle}")
        await waker.write(sandbox, f"page-{cycle}.html", f"page {cycle}")
        paused = await waker.replica.lifecycle.pause(sandbox.id, actor="test")
        assert (paused.state, paused.run.ready) == (State.PAUSED, False)
        wake = await waker.wake(sandbox)
        assert (wake.status, wake.method) == (WakeStatus.SUCCEEDED, WakeMethod.RESUME)
        assert wake.receipt is not None
        assert (wake.receipt.memory_kept, wake.receipt.restored) == (True, 0)
        back = await waker.get(sandbox)
        assert await browse(engine.url, back) == f"cycle {cycle}"
        assert await browse(engine.url, back, "page-0.html") == "page 0"
    assert await waker.instances(sandbox) == [sandbox.instance_id]
    native = await waker.enter(sandbox)
    servers = await native.commands.run("pgrep -xc python3 || true")
    assert servers.stdout.strip() == "1"
    listed = await native.files.list(WORKDIR)
    assert len(listed) == CYCLES + 1


async def test_a_wake_waits_for_an_operation_that_was_faster(waking: Make) -> None:
    waker = await waking()
    sandbox = await waker.create("shop", command=None, port=None)
    await waker.replica.lifecycle.pause(sandbox.id, actor="test")
    async with waker.replica.claims.hold(sandbox.id, ClaimKind.PAUSE):
        begun = await waker.wakes.start(sandbox.id, actor="test")
        waiting = await waker.wakes.wait(begun, within_s=0.3)
        assert (waiting.status, waiting.steps) == (WakeStatus.RUNNING, ())
    woken = await waker.wakes.wait(begun, within_s=60)
    assert (woken.status, woken.method, woken.attempt) == (
        WakeStatus.SUCCEEDED,
        WakeMethod.RESUME,
        1,
    )
    assert [step.name for step in woken.steps] == [StepName.RESUMING]
    back = await waker.get(sandbox)
    assert (back.state, back.claim) == (State.RUNNING, None)


async def test_a_sleeper_is_woken_with_few_writes(waking: Make) -> None:
    """Beside its own row, a wake writes the record three times: claim, step, it runs and is over.

    The comparison of its files adds one.
    """
    waker = await waking()
    sandbox = await waker.create("shop", command=None, port=None)
    await waker.write(sandbox, "index.html", "kept")
    asleep = await waker.replica.lifecycle.pause(sandbox.id, actor="test")
    begun = await waker.wakes.start(sandbox.id, actor="test")
    assert (await waker.wakes.wait(begun, within_s=60)).status is WakeStatus.SUCCEEDED
    back = await waker.get(sandbox)
    assert (back.state, back.run.ready, back.claim) == (State.RUNNING, True, None)
    assert back.version == asleep.version + 3
    await waker.replica.after_resume.wait()
    assert (await waker.get(sandbox)).version == asleep.version + 4


async def test_what_cannot_be_read_inside_is_named_in_the_receipt(waking: Make) -> None:
    waker = await waking()
    sandbox = await waker.create("shop", command=None, port=None)
    await waker.write(sandbox, "secret", "kept while it could be read")
    await waker.capture(sandbox)
    native = await waker.enter(sandbox)
    await native.commands.run(f"chmod 000 {WORKDIR}/secret")
    await waker.replica.lifecycle.pause(sandbox.id, actor="test")
    wake = await waker.wake(sandbox)
    assert (wake.status, wake.method) == (WakeStatus.SUCCEEDED, WakeMethod.RESUME)
    assert wake.receipt is not None
    assert [one.path for one in wake.receipt.unread] == ["secret"]
    assert (wake.receipt.lost, wake.receipt.restored) == ((), 0)


async def test_a_capture_is_one_line_of_the_history_if_something_changed(waking: Make) -> None:
    waker = await waking()
    sandbox = await waker.create("shop", command=None, port=None)

    async def list_told() -> list[tuple[int, int, int]]:
        events = reversed(await waker.replica.store.events.of(sandbox.id))
        found = (one.data for one in events if one.type == "sandbox.files_captured")
        return [(one["files_version"], one["changed"], one["removed"]) for one in found]

    await waker.write(sandbox, "a", "one")
    await waker.write(sandbox, "b", "two")
    await waker.capture(sandbox)
    await waker.capture(sandbox)
    assert await list_told() == [(1, 2, 0)]
    await (await waker.enter(sandbox)).commands.run(f"cd {WORKDIR} && rm a && echo more >> b")
    await waker.replica.lifecycle.pause(sandbox.id, actor="test")
    assert await list_told() == [(1, 2, 0), (2, 1, 1)]
