"""Wakes at providers that lose files, deny what they have, bear the dead, or cannot be reached."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from sandkeeper.domain.decisions.wake import WakeStatus
from sandkeeper.domain.errors import ProviderUnavailableError
from sandkeeper.domain.receipt import WakeMethod
from sandkeeper.domain.states import State
from sandkeeper.providers.base import CreateSpec, Instance, OwnershipMetadata
from sandkeeper.services.files import VerifyReport
from sandkeeper.testing.providers import (
    BlindProvider,
    DenyingProvider,
    DownProvider,
    ForgetfulProvider,
    StillbornProvider,
    UnrestorableProvider,
)
from support.engine_process import Engine
from support.wake_replica import WORKDIR, Waker, browse

Make = Callable[..., Awaitable[Waker]]


async def test_files_that_the_provider_lost_or_took_back_are_put_back(
    waking: Make, engine: Engine
) -> None:
    """The second resume drops a file and brings an older state of another one."""
    waker = await waking(ForgetfulProvider)
    provider = cast("ForgetfulProvider", waker.provider)
    sandbox = await waker.create("shop")
    await waker.write(sandbox, "index.html", "the newest")
    await waker.write(sandbox, "lost.html", "kept by us")
    await waker.replica.lifecycle.pause(sandbox.id, actor="test")
    assert (await waker.wake(sandbox)).receipt.restored == 0  # type: ignore[union-attr]  # Checked.
    await waker.replica.lifecycle.pause(sandbox.id, actor="test")
    provider.forgotten = (
        f"cd {WORKDIR} && rm lost.html && echo older > index.html"
        " && touch -d '2020-01-01' index.html && echo mine > newer.html"
    )
    wake = await waker.wake(sandbox)
    assert (wake.status, wake.method) == (WakeStatus.SUCCEEDED, WakeMethod.RESUME)
    assert wake.receipt is not None
    assert sorted(wake.receipt.restored_paths) == ["index.html", "lost.html"]
    back = await waker.get(sandbox)
    assert await browse(engine.url, back) == "the newest"
    assert await browse(engine.url, back, "lost.html") == "kept by us"
    assert await browse(engine.url, back, "newer.html") == "mine\n"


async def test_what_is_edited_while_the_files_are_compared_stays_as_it_was_edited(
    waking: Make, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparison saw three losses; two of the paths are written before they are restored."""
    waker = await waking(ForgetfulProvider)
    provider = cast("ForgetfulProvider", waker.provider)
    sandbox = await waker.create("shop")
    for name in ("older.html", "missing.html", "untouched.html"):
        await waker.write(sandbox, name, "as it was kept")
    await waker.replica.lifecycle.pause(sandbox.id, actor="test")
    provider.forgotten = (
        f"cd {WORKDIR} && rm missing.html && echo older | tee older.html untouched.html"
        " && touch -d '2020-01-01' older.html untouched.html"
    )
    verify = waker.files.verify

    async def verify_before_an_edit(*args: Any, **options: Any) -> VerifyReport:
        await asyncio.sleep(0.2)  # So that the files count as settled.
        found = await verify(*args, **options)
        for name in ("older.html", "missing.html"):
            await waker.write(sandbox, name, "edited in use")
        return found

    monkeypatch.setattr(waker.files, "verify", verify_before_an_edit)
    wake = await waker.wake(sandbox)
    back = await waker.get(sandbox)
    assert await browse(engine.url, back, "older.html") == "edited in use"
    assert await browse(engine.url, back, "missing.html") == "edited in use"
    assert await browse(engine.url, back, "untouched.html") == "as it was kept"
    assert wake.receipt is not None
    assert (wake.receipt.restored_paths, wake.receipt.newer) == (("untouched.html",), 2)
    assert back.wake is not None
    assert back.wake.receipt is not None
    assert (back.run.ready, back.wake.receipt.app_kept, back.wake.receipt.app_started) == (
        *(True, False, True),
    )


async def test_files_that_no_wake_compared_are_put_back_before_the_next_capture(
    waking: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process died between the end of the wake and the comparison."""
    waker = await waking(ForgetfulProvider)
    sandbox = await waker.create("shop", command=None, port=None)
    await waker.write(sandbox, "lost.html", "kept by us")
    await waker.replica.lifecycle.pause(sandbox.id, actor="test")
    cast("ForgetfulProvider", waker.provider).forgotten = f"rm {WORKDIR}/lost.html"
    monkeypatch.setattr(waker.replica.after_resume, "begin", lambda *_args, **_options: None)
    wake = await waker.wake(sandbox)
    assert wake.receipt is not None
    assert wake.receipt.files_pending
    await waker.capture(sandbox)
    found = await waker.replica.store.wakes.find(wake.id)
    assert found is not None
    assert found.receipt is not None
    assert (found.receipt.files_pending, found.receipt.restored_paths) == (False, ("lost.html",))
    assert found.receipt == ((await waker.get(sandbox)).wake or wake).receipt
    native = await waker.enter(sandbox)
    assert await native.files.read(f"{WORKDIR}/lost.html") == "kept by us"


async def test_a_denied_instance_is_looked_for_and_never_replaced(waking: Make) -> None:
    waker = await waking(DenyingProvider)
    sandbox = await waker.create("shop")
    await waker.replica.lifecycle.pause(sandbox.id, actor="test")
    wake = await waker.wake(sandbox)
    assert (wake.status, wake.attempt) == (WakeStatus.SUCCEEDED, 2)
    assert await waker.instances(sandbox) == [sandbox.instance_id]


@pytest.mark.parametrize("asleep", [True, False])
async def test_a_wrong_not_found_never_costs_a_healthy_instance(
    waking: Make, engine: Engine, *, asleep: bool
) -> None:
    waker = await waking(BlindProvider)
    provider = cast("BlindProvider", waker.provider)
    sandbox = await waker.create("shop")
    await waker.write(sandbox, "index.html", "not captured yet")
    if asleep:
        await waker.replica.lifecycle.pause(sandbox.id, actor="test")
    provider.denials = 2 if asleep else 1
    wake = await waker.wake(sandbox)
    assert (wake.status, wake.attempt) == (WakeStatus.SUCCEEDED, 2)
    assert await waker.instances(sandbox) == [sandbox.instance_id]
    assert await browse(engine.url, await waker.get(sandbox)) == "not captured yet"

    provider.denials = 100
    lost = await waker.wake(sandbox)
    assert (lost.status, lost.error_code) == (WakeStatus.FAILED, "sandbox_unreachable")
    assert await waker.instances(sandbox) == [sandbox.instance_id]
    assert (await waker.get(sandbox)).state is State.UNKNOWN


async def test_a_wake_takes_up_the_instance_whose_creation_was_answered_too_late(
    waking: Make, engine: Engine
) -> None:
    """The record was ended by hand; then an instance of an unknown generation appears."""
    waker = await waking()
    sandbox = await waker.create("shop")
    await waker.write(sandbox, "index.html", "older")
    await waker.replica.lifecycle.kill(sandbox.id, actor="test")
    late = await waker.provider.create(
        CreateSpec(
            tag=OwnershipMetadata(waker.provider.keeper, sandbox.id, "project", "shop", 5),
            template="base",
            timeout_s=600,
        )
    )
    native = await waker.provider.open_sdk_sandbox(late.instance_id)
    await native.files.write(f"{WORKDIR}/index.html", "newer")
    wake = await waker.wake(sandbox)
    assert (wake.status, wake.method) == (WakeStatus.SUCCEEDED, WakeMethod.NOTHING)
    assert await waker.instances(sandbox) == [late.instance_id]
    taken = await waker.get(sandbox)
    assert (taken.instance_id, taken.generation) == (late.instance_id, 5)
    assert await browse(engine.url, taken) == "newer"


async def test_a_recreation_without_an_answer_is_not_given_up(waking: Make) -> None:
    waker = await waking(lambda it: DownProvider(it, "create"))
    provider = cast("DownProvider", waker.provider)
    provider.is_down = False
    sandbox = await waker.create("shop")
    await waker.replica.lifecycle.kill(sandbox.id, actor="test")
    provider.is_down = True
    assert (await waker.wake(sandbox)).error_code == "sandbox_unreachable"
    waiting = await waker.get(sandbox)
    assert (waiting.state, waiting.generation) == (State.STARTING, 2)
    provider.is_down = False
    assert (await waker.wake(sandbox)).status is WakeStatus.SUCCEEDED
    assert (await waker.get(sandbox)).generation == 2
    assert len(await waker.instances(sandbox)) == 1


class BlindToNewbornsProvider(BlindProvider):
    """Refuse to create once; then answer "not found" to all about the new one but the list."""

    is_refusing = False

    async def create(self, spec: CreateSpec) -> Instance:
        if self.is_refusing:
            self.is_refusing = False
            raise ProviderUnavailableError("The connection was refused.")
        born = await self._provider.create(spec)
        self.denials = 100
        return born

    async def open_sdk_sandbox(self, instance_id: str) -> Any:
        self._deny(instance_id)
        return await self._provider.open_sdk_sandbox(instance_id)

    async def kill(self, instance_id: str) -> bool:
        return not self.denials and await self._provider.kill(instance_id)


async def test_a_failed_recreation_is_not_written_off_while_its_instance_is_listed(
    waking: Make, engine: Engine
) -> None:
    waker = await waking(BlindToNewbornsProvider)
    provider = cast("BlindToNewbornsProvider", waker.provider)
    sandbox = await waker.create("shop")
    provider.denials = 0
    await waker.write(sandbox, "index.html", "still here")
    await waker.capture(sandbox)
    await waker.replica.lifecycle.kill(sandbox.id, actor="test")
    provider.is_refusing = True
    failed = await waker.wake(sandbox)
    assert (failed.status, failed.attempt) == (WakeStatus.FAILED, 2)
    newborn = await waker.instances(sandbox)
    assert len(newborn) == 1
    doubtful = await waker.get(sandbox)
    assert (doubtful.state, doubtful.instance_id) == (State.UNKNOWN, newborn[0])
    provider.denials = 0
    assert (await waker.wake(sandbox)).status is WakeStatus.SUCCEEDED
    assert await waker.instances(sandbox) == newborn
    assert await browse(engine.url, await waker.get(sandbox)) == "still here"


async def test_what_dies_after_its_creation_is_created_again(waking: Make, engine: Engine) -> None:
    waker = await waking(StillbornProvider)
    provider = cast("StillbornProvider", waker.provider)
    provider.stillborn = 0
    sandbox = await waker.create("shop")
    await waker.write(sandbox, "index.html", "still here")
    await waker.capture(sandbox)
    assert sandbox.instance_id is not None
    await waker.provider.kill(sandbox.instance_id)
    provider.stillborn = 1
    wake = await waker.wake(sandbox)
    assert (wake.status, wake.method, wake.attempt) == (
        WakeStatus.SUCCEEDED,
        WakeMethod.RECREATE,
        2,
    )
    assert await browse(engine.url, await waker.get(sandbox)) == "still here"
    assert len(await waker.instances(sandbox)) == 1

    await waker.provider.kill((await waker.get(sandbox)).instance_id or "")
    provider.stillborn = 2
    lost = await waker.wake(sandbox)
    assert (lost.status, lost.error_code) == (WakeStatus.FAILED, "sandbox_expired")
    assert (await waker.wake(sandbox)).status is WakeStatus.SUCCEEDED
    assert await browse(engine.url, await waker.get(sandbox)) == "still here"


async def test_what_cannot_be_reached_is_unknown_and_comes_back_with_the_provider(
    waking: Make,
) -> None:
    waker = await waking(lambda it: DownProvider(it, "connect", "get"))
    provider = cast("DownProvider", waker.provider)
    provider.is_down = False
    sandbox = await waker.create("shop")
    await waker.replica.lifecycle.pause(sandbox.id, actor="test")
    provider.is_down = True
    wake = await waker.wake(sandbox)
    assert (wake.status, wake.error_code) == (WakeStatus.FAILED, "sandbox_unreachable")
    assert (await waker.get(sandbox)).state is State.UNKNOWN
    provider.is_down = False
    assert (await waker.wake(sandbox)).status is WakeStatus.SUCCEEDED
    assert await waker.instances(sandbox) == [sandbox.instance_id]


async def test_a_memory_that_cannot_be_restored_costs_the_memory_only(
    waking: Make, engine: Engine
) -> None:
    waker = await waking(UnrestorableProvider)
    sandbox = await waker.create("shop")
    await waker.write(sandbox, "index.html", "on the disk")
    await waker.replica.lifecycle.pause(sandbox.id, actor="test")
    wake = await waker.wake(sandbox)
    assert (wake.status, wake.method) == (WakeStatus.SUCCEEDED, WakeMethod.REBOOT)
    assert wake.receipt is not None
    assert (wake.receipt.memory_kept, wake.receipt.disk_kept) == (False, True)
    assert await browse(engine.url, await waker.get(sandbox)) == "on the disk"
    assert await waker.instances(sandbox) == [sandbox.instance_id]
