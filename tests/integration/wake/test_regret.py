"""What a pause was worth: the idle time before it, and whether it came too early."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from sandkeeper.domain.owner import Owner
from sandkeeper.domain.policy import Launch, Policy
from sandkeeper.domain.states import State
from support.eventually import eventually
from support.wake_replica import Waker

Make = Callable[..., Awaitable[Waker]]


async def test_a_pause_counts_its_idle_tail_and_a_prompt_wake_counts_it_as_too_early(
    waking: Make,
) -> None:
    waker = await waking()
    replica = waker.replica
    made = await replica.creation.create(
        Owner.project("shop"),
        launch=Launch(template="base"),
        policy=Policy(idle_timeout_s=0.5, newborn_grace_s=0, woken_grace_s=0),
        actor="test",
    )
    sandbox = made.sandbox

    async def is_asleep() -> bool:
        await replica.sweep.run()
        return (await waker.get(sandbox)).state is State.PAUSED

    await eventually(is_asleep)
    asleep = await waker.get(sandbox)
    assert (asleep.idle_stats.idle_pauses, asleep.idle_stats.early_pauses) == (1, 0)
    assert 500 <= asleep.idle_stats.idle_tail_ms < 30_000
    assert (await waker.wake(sandbox)).error is None
    woken = await waker.get(sandbox)
    assert (woken.idle_stats.idle_pauses, woken.idle_stats.early_pauses) == (1, 1)
    said = await replica.explanations.explain(sandbox.id)
    assert (said.idle_pauses, said.early_pauses) == (1, 1)
    assert said.idle_tail_s == woken.idle_stats.idle_tail_ms / 1000
    page = replica.metrics.render().decode()
    assert "sandkeeper_idle_pauses_early_total 1.0" in page
    assert "sandkeeper_idle_tail_seconds_count 1.0" in page


async def test_a_manual_pause_never_counts_as_too_early(waking: Make) -> None:
    waker = await waking()
    sandbox = await waker.create("shop", command=None, port=None)
    await waker.replica.lifecycle.pause(sandbox.id, actor="operator")
    await waker.wake(sandbox)
    woken = await waker.get(sandbox)
    assert (
        woken.idle_stats.idle_pauses,
        woken.idle_stats.early_pauses,
        woken.idle_stats.idle_tail_ms,
    ) == (0, 0, 0)
