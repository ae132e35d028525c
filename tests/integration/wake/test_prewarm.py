"""A warm-up on a provider that misbehaves, and one that a user joins."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from sandkeeper.domain.breaker import Breaker
from sandkeeper.domain.decisions.prewarm import PrewarmOutcome
from sandkeeper.domain.decisions.wake import Wake, WakeStatus
from sandkeeper.domain.receipt import StepName, WakeMethod
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import State
from sandkeeper.providers.registry import ProviderRegistry
from sandkeeper.services.wake.prewarm import PrewarmAnswer, PrewarmService
from sandkeeper.services.wake.wakes import Wakes
from sandkeeper.testing.providers import UnrestorableProvider
from support.deps import make_deps
from support.wake_replica import Waker

Make = Callable[..., Awaitable[Waker]]


class DyingWakes(Wakes):
    """The process ends as a wake is about to begin."""

    def __init__(self) -> None:
        """Needs nothing."""

    async def start(self, *_arguments: object, **_options: object) -> Wake:
        raise ConnectionAbortedError


def warm_with(waker: Waker, *, rests: bool = False, wakes: Wakes | None = None) -> PrewarmService:
    deps = make_deps(
        waker.replica.store,
        waker.provider,
        clock=waker.replica.clock,
        warm_ups_at_once=10,
        warm_ups_per_hour=10,
        warm_ups_per_owner_hour=10,
    )
    if rests:
        breaker = Breaker(failures_max=1)
        breaker.fail(datetime.now(UTC))
        open_registry = ProviderRegistry([waker.provider], {waker.provider.region: breaker})
        deps = replace(deps, providers=open_registry)
    return PrewarmService(deps, wakes or waker.wakes)


async def put_to_sleep(waker: Waker) -> Sandbox:
    sandbox = await waker.create("shop", command=None, port=None)
    await waker.replica.lifecycle.pause(sandbox.id, actor="test")
    return await waker.get(sandbox)


async def test_a_warm_up_that_cannot_resume_fails_and_leaves_the_sandbox_paused(
    waking: Make,
) -> None:
    """A wake reboots what cannot be resumed; a warm-up leaves it asleep and says that it failed."""
    waker = await waking(lambda provider: UnrestorableProvider(provider, "connect"))
    warming = warm_with(waker)
    sandbox = await put_to_sleep(waker)
    warmed = await warming.start(sandbox, actor="page")
    assert warmed.answer is PrewarmAnswer.STARTED
    await waker.settle(sandbox)
    last = await waker.replica.store.wakes.find_last(sandbox.id)
    assert last is not None
    assert (last.status, last.method) == (WakeStatus.FAILED, WakeMethod.RESUME)
    assert (await waker.get(sandbox)).state is State.PAUSED
    assert sum((await warming.finish_due()).values()) == 0, "it is too early to say"
    waker.replica.clock.advance(seconds=31)
    assert (await warming.finish_due())[PrewarmOutcome.FAILED] == 1
    assert (await waker.wake(sandbox)).method is WakeMethod.REBOOT


async def test_a_user_who_joins_a_warm_up_gets_a_new_sandbox_if_the_old_one_is_gone(
    waking: Make,
) -> None:
    has_joined = asyncio.Event()

    async def wait_for_the_user(_wake: Wake, _step: StepName) -> None:
        await has_joined.wait()

    waker = await waking()
    sandbox = await put_to_sleep(waker)
    assert sandbox.instance_id is not None
    await waker.provider.kill(sandbox.instance_id)
    slow = await waking(name="slow", on_step=wait_for_the_user)
    assert (await warm_with(slow).start(sandbox, actor="page")).answer is PrewarmAnswer.STARTED
    wake = await slow.wakes.start(sandbox.id, actor="user")
    has_joined.set()
    ended = await slow.wakes.wait(wake, within_s=60)
    assert (ended.status, ended.method) == (WakeStatus.SUCCEEDED, WakeMethod.RECREATE)


async def test_a_provider_that_is_left_alone_is_not_asked_for_a_warm_up(waking: Make) -> None:
    waker = await waking()
    sandbox = await put_to_sleep(waker)
    warmed = await warm_with(waker, rests=True).start(sandbox, actor="page")
    assert warmed.answer is PrewarmAnswer.REFUSED
    assert "left alone" in warmed.reason
    assert await waker.replica.store.wakes.find_open(sandbox.id) is None


async def test_a_crash_before_the_wake_frees_the_budget_again(waking: Make) -> None:
    waker = await waking()
    sandbox = await put_to_sleep(waker)
    with pytest.raises(ConnectionAbortedError):
        await warm_with(waker, wakes=DyingWakes()).start(sandbox, actor="page")
    assert len(await waker.replica.store.prewarms.list_open(limit=10)) == 1
    waker.replica.clock.advance(seconds=31)
    warming = warm_with(waker)
    assert (await warming.finish_due())[PrewarmOutcome.FAILED] == 1
    assert (
        await warming.start(await waker.get(sandbox), actor="page")
    ).answer is PrewarmAnswer.STARTED
    assert (await waker.settle(sandbox)).state is State.RUNNING
