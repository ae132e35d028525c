"""How often a wake is tried, what it does when callers join it, and when it may cost memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from sandkeeper.domain.decisions.wake import Wake, WakeStatus
from sandkeeper.domain.errors import (
    ProviderAmbiguousError,
    ProviderRateLimitedError,
    ProviderUnavailableError,
    ResumeFailedError,
    SandkeeperError,
)
from sandkeeper.domain.policy import Policy
from sandkeeper.domain.receipt import WakeMethod
from sandkeeper.domain.sandbox import ClaimKind, Sandbox
from sandkeeper.domain.states import State
from sandkeeper.providers.base import Instance
from support.eventually import eventually
from support.local_sandbox import LocalProvider
from support.sweep_replica import Replica

STAY = Policy(idle_timeout_s=None)
PORT = 8000


class FailingProvider(LocalProvider):
    """Raises `failure` at each resume that is not a reboot, as long as there is one."""

    failure: SandkeeperError | None = None

    async def connect(self, instance_id: str, *, reboot: bool = False, **options: Any) -> Instance:
        if self.failure is not None and not reboot:
            self.acts.append(("failed", instance_id))
            raise self.failure
        if reboot:
            self.acts.append(("reboot", instance_id))
        return await super().connect(instance_id, reboot=reboot, **options)


class Waking:
    """A replica, its provider and one sandbox."""

    def __init__(self, replica: Replica, provider: FailingProvider, sandbox: Sandbox) -> None:
        self.replica = replica
        self.provider = provider
        self.sandbox = sandbox

    async def pause(self) -> None:
        await self.replica.lifecycle.pause(self.sandbox.id, actor="test")

    async def start(self, **options: Any) -> Wake:
        return await self.replica.wakes.start(self.sandbox.id, actor="test", **options)

    async def end(self, wake: Wake) -> Wake:
        return await self.replica.wakes.wait(wake, within_s=30)

    async def wake(self, **options: Any) -> Wake:
        return await self.end(await self.start(**options))

    async def wait_for_port(self, wake: Wake) -> None:
        async def is_waiting() -> bool:
            found = await self.replica.store.wakes.find(wake.id)
            return found is not None and found.is_waiting_for_port

        await eventually(is_waiting)

    async def get(self) -> Sandbox:
        return await self.replica.get(self.sandbox)


@pytest.fixture
async def waking(
    keeping: Callable[..., Awaitable[Replica]], tmp_path: Path
) -> AsyncIterator[Waking]:
    provider = FailingProvider(tmp_path / "inside")
    settings = {"wake_retry_s": 0.01, "app_start_timeout_s": 30}
    replica = await keeping(provider, settings=settings)
    sandbox = await replica.create(
        "shop", STAY, port=PORT, start_command="serve", workdir=str(provider.folder)
    )
    begun = await replica.store.wakes.find_open(sandbox.id)
    assert begun is not None
    await replica.wakes.wait(begun, within_s=30)
    yield Waking(replica, provider, sandbox)
    await replica.wakes.close()


async def test_a_caller_who_joins_a_wake_of_a_paused_sandbox_gets_it_running(
    waking: Waking,
) -> None:
    waking.provider.answers = False
    older = await waking.start()
    await waking.wait_for_port(older)
    await waking.pause()
    joined = await waking.start()
    assert joined.id == older.id, "it has not noticed yet that the sandbox sleeps"
    waking.provider.answers = True
    ended = await waking.end(joined)
    assert (ended.status, ended.method) == (WakeStatus.SUCCEEDED, WakeMethod.RESUME)
    assert (await waking.get()).state is State.RUNNING
    assert not ended.starts_over


async def test_a_caller_who_joins_during_a_pause_gets_it_running(waking: Waking) -> None:
    waking.provider.answers = False
    older = await waking.start()
    await waking.wait_for_port(older)
    async with waking.replica.claims.hold(waking.sandbox.id, ClaimKind.PAUSE) as held:
        joined = await waking.start()
        await waking.provider.pause(held.instance_id or "")
        await waking.replica.verification.verify_held(held)
    waking.provider.answers = True
    ended = await waking.end(joined)
    assert (ended.id, ended.status, ended.method) == (
        older.id,
        WakeStatus.SUCCEEDED,
        WakeMethod.RESUME,
    )


async def test_a_pause_after_the_last_caller_ends_the_wake(waking: Waking) -> None:
    waking.provider.answers = False
    older = await waking.start()
    await waking.wait_for_port(older)
    joined = await waking.start()
    await waking.pause()
    ended = await waking.end(joined)
    assert (ended.status, ended.error_code) == (WakeStatus.FAILED, "wrong_state")
    assert (await waking.get()).state is State.PAUSED


async def test_a_wake_is_tried_for_as_long_as_its_caller_waits(waking: Waking) -> None:
    await waking.pause()
    waking.provider.failure = ProviderUnavailableError(status=503)
    begun = await waking.start(wait_s=30)

    async def is_tried_often() -> bool:
        return waking.provider.acts.count(("failed", waking.sandbox.instance_id or "")) > 3

    await eventually(is_tried_often)
    waking.provider.failure = None
    ended = await waking.end(begun)
    assert (ended.status, ended.method) == (WakeStatus.SUCCEEDED, WakeMethod.RESUME)
    assert ended.attempt > 2


async def test_without_a_patient_caller_a_wake_is_tried_twice(waking: Waking) -> None:
    await waking.pause()
    waking.provider.failure = ProviderUnavailableError(status=503)
    ended = await waking.wake()
    assert (ended.status, ended.error_code, ended.attempt) == (
        WakeStatus.FAILED,
        "sandbox_unreachable",
        2,
    )


async def test_a_patient_caller_who_joins_is_waited_for(waking: Waking) -> None:
    waking.provider.answers = False
    older = await waking.start(wait_s=1)
    await asyncio.gather(*(waking.start(wait_s=wait_s) for wait_s in (5, 600, 60)))
    found = await waking.replica.store.wakes.find(older.id)
    assert found is not None
    assert found.wanted_until is not None
    assert (found.wanted_until - found.started_at).total_seconds() > 599


UNTRIED = [
    ProviderUnavailableError(status=502),
    ProviderUnavailableError(status=503),
    ProviderUnavailableError("refused"),
    ProviderRateLimitedError(status=429),
]
UNCLEAR = [
    ProviderUnavailableError(status=504),
    ProviderUnavailableError(timed_out=True),
    ProviderAmbiguousError(status=500),
]


@pytest.mark.parametrize("failure", [*UNTRIED, *UNCLEAR], ids=str)
async def test_transient_failures_never_cost_the_memory(
    waking: Waking, failure: SandkeeperError
) -> None:
    await waking.pause()
    waking.provider.failure = failure
    ended = await waking.wake()
    assert (ended.status, ended.error_code) == (WakeStatus.FAILED, "sandbox_unreachable")
    waking.provider.failure = None
    ended = await waking.wake()
    assert (ended.status, ended.method) == (WakeStatus.SUCCEEDED, WakeMethod.RESUME)
    assert ("reboot", waking.sandbox.instance_id) not in waking.provider.acts


async def test_a_resume_that_the_provider_says_failed_twice_is_followed_by_a_reboot(
    waking: Waking,
) -> None:
    await waking.pause()
    waking.provider.failure = ResumeFailedError()
    ended = await waking.wake()
    assert (ended.status, ended.method, ended.attempt) == (
        WakeStatus.SUCCEEDED,
        WakeMethod.REBOOT,
        2,
    )
    assert ended.receipt is not None
    assert (ended.receipt.memory_kept, ended.receipt.disk_kept) == (False, True)


@pytest.mark.parametrize("failure", [ProviderUnavailableError(), ProviderRateLimitedError()])
async def test_a_provider_that_is_away_says_nothing_about_the_sandbox(
    waking: Waking, failure: SandkeeperError
) -> None:
    await waking.pause()
    waking.provider.failure = failure
    wake = await waking.wake()
    assert (wake.status, wake.error_code) == (WakeStatus.FAILED, "sandbox_unreachable")
    assert "The provider does not answer" in str(wake.error)
