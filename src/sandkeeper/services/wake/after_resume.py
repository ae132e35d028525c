"""What follows the wake of a sandbox that was resumed, beside its use.

Its files are compared with the saved ones, and the result is added to the receipt of the wake. If
the process dies before, the first capture of the run does it, or the pause that ends the run. And
the provider is asked whether it took over the timeout; only if not, it is set again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime, timedelta

import structlog

from sandkeeper.domain.decisions.wake import StepOutcome, Wake
from sandkeeper.domain.errors import (
    CaptureUnsupportedError,
    FilesDamagedError,
    FilesUnavailableError,
    SandboxDiskFullError,
    SandkeeperError,
    VersionConflictError,
)
from sandkeeper.domain.events import Event, SandboxReady, WakeProgressed
from sandkeeper.domain.receipt import Receipt
from sandkeeper.domain.sandbox import ClaimKind, Sandbox
from sandkeeper.domain.states import State
from sandkeeper.services.deps import Deps
from sandkeeper.services.files import RunCheck
from sandkeeper.services.files.capture import FileCapture
from sandkeeper.services.files.contract import FILES_ACTOR
from sandkeeper.services.lifecycle.claims import Claims
from sandkeeper.services.lifecycle.lifecycle import compute_timeout_s
from sandkeeper.services.wake.app import AppRunner
from sandkeeper.services.wake.file_restore import add_check

log = structlog.get_logger(__name__)

FILES_COMPARED = "files_compared"
RACES_MAX = 20

# The answer to the caller of the wake goes out first: what follows takes a processor for a while.
BEGIN_AFTER_S = 0.05

# A run that ends this much earlier than requested did not get the timeout of its connect.
TIMEOUT_MARGIN = timedelta(seconds=60)


class AfterResume:
    """Finish the wakes of this process beside the use of their sandboxes."""

    def __init__(self, deps: Deps, claims: Claims, files: FileCapture, apps: AppRunner) -> None:
        self._store = deps.store
        self._providers = deps.providers
        self._metrics = deps.metrics
        self._clock = deps.clock
        self._claims = claims
        self._files = files
        self._apps = apps
        self._tasks: set[asyncio.Task[None]] = set()
        self._restart: Callable[[str], Awaitable[None]] | None = None
        files.listen(self._add_to_receipt)

    def on_outdated_app(self, restart: Callable[[str], Awaitable[None]]) -> None:
        """Call `restart` with a sandbox whose app was left alone, and files restored under it."""
        self._restart = restart

    def begin(self, sandbox_id: str, *, has_resumed: bool) -> None:
        """Begin for a sandbox that was woken, and return at once.

        After a wake that found it running, only files are compared that still wait for it.
        """
        task = asyncio.create_task(self._run(sandbox_id, has_resumed=has_resumed))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def wait(self) -> None:
        """Wait for all that is under way."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def close(self) -> None:
        """Leave the rest to the next capture of each sandbox."""
        for task in self._tasks:
            task.cancel()
        await self.wait()

    async def _run(self, sandbox_id: str, *, has_resumed: bool) -> None:
        await asyncio.sleep(BEGIN_AFTER_S)
        try:
            sandbox = await self._store.sandboxes.get(sandbox_id)
            if sandbox.state is not State.RUNNING or sandbox.instance_id is None:
                return
            receipt = None if sandbox.wake is None else sandbox.wake.receipt
            if receipt is not None and receipt.files_pending:
                await self._compare(sandbox)
                await self._restart_outdated_app(sandbox_id)
            if has_resumed:
                await self._ensure_timeout(sandbox, sandbox.instance_id)
        except SandkeeperError as error:
            log.info("not_finished_after_resume", sandbox_id=sandbox_id, error=str(error))

    async def _compare(self, sandbox: Sandbox) -> None:
        try:
            has_looked = await self._files.check_new_run(sandbox)
        except (CaptureUnsupportedError, FilesUnavailableError, FilesDamagedError) as error:
            log.warning("files_not_compared", sandbox_id=sandbox.id, error=str(error))
            reason = f"the files were not compared: {error.message}"
            await self._write(sandbox, lambda it: replace(it, files_pending=False, reason=reason))
            return
        except SandboxDiskFullError as error:
            reason = f"lost files could not be restored yet: {error.message}"
            await self._write(sandbox, lambda it: replace(it, reason=reason))
            raise
        if has_looked:
            return
        await self._write(sandbox, lambda it: replace(it, files_pending=False))
        if sandbox.launch.start_command is not None:
            async with self._files.unclaimed.enter(sandbox.id) as fresh:
                await self._apps.raise_fence(fresh)

    async def _ensure_timeout(self, sandbox: Sandbox, instance_id: str) -> None:
        """Set the timeout again if the provider did not take it from the connect."""
        provider = self._providers.get(sandbox)
        timeout_s = compute_timeout_s(sandbox)
        woken_at = sandbox.run.run_started_at or self._clock()
        seen = await provider.get(instance_id)
        wanted = woken_at + timedelta(seconds=timeout_s) - TIMEOUT_MARGIN
        if seen.end_at is None or seen.end_at >= wanted:
            return
        async with self._claims.hold(sandbox.id, ClaimKind.EXTEND) as held:
            if held.state is State.RUNNING and held.instance_id == instance_id:
                setting = provider.set_timeout(instance_id, timeout_s=timeout_s)
                await self._claims.run_within_lease(held, setting)

    async def _add_to_receipt(self, sandbox: Sandbox, checked: RunCheck) -> None:
        """Add the first comparison of a run to the receipt of the wake that began it."""
        written = await self._write(sandbox, lambda it: add_check(it, checked))
        if written is not None:
            self._metrics.files_restored.inc(written.restored)

    async def _restart_outdated_app(self, sandbox_id: str) -> None:
        """Start the app again if files were restored under it; if it is paused now, a wake does."""
        fresh = await self._store.sandboxes.get(sandbox_id)
        is_free = fresh.state is State.RUNNING and not fresh.is_claimed(self._clock())
        if fresh.has_outdated_app and is_free and self._restart is not None:
            await self._restart(sandbox_id)

    async def _write(
        self,
        sandbox: Sandbox,
        change: Callable[[Receipt], Receipt],
    ) -> Receipt | None:
        """Write the receipt of the run's wake and publish it; None if it does not wait for this."""
        for _ in range(RACES_MAX):
            record = await self._store.sandboxes.get(sandbox.id)
            mark = record.wake
            if mark is None or mark.receipt is None or not mark.receipt.files_pending:
                return None
            if record.instance_id != sandbox.instance_id:
                return None
            receipt = change(mark.receipt)
            wake = await self._store.wakes.find(mark.wake_id)
            now = self._clock()
            events: list[Event] = [_make_event(record, wake, receipt, now)]
            is_outdated = receipt.is_app_outdated and record.state is State.RUNNING
            if is_outdated:
                record = record.evolve(ready=False)
                events.append(_make_unready_event(record, now))
            try:
                await self._store.sandboxes.save(
                    record.evolve(wake=replace(mark, receipt=receipt)),
                    events,
                    expect_version=record.version,
                    now=now,
                    wake=wake and wake.evolve(receipt=receipt),
                )
            except VersionConflictError:
                continue
            return receipt
        raise VersionConflictError(sandbox_id=sandbox.id)


def _make_event(
    record: Sandbox, wake: Wake | None, receipt: Receipt, now: datetime
) -> WakeProgressed:
    assert record.wake is not None
    return WakeProgressed(
        sandbox_id=record.id,
        owner=record.owner,
        at=now,
        actor=wake.actor if wake else FILES_ACTOR,
        reason=receipt.reason or f"files compared: {receipt.checked}, restored: {receipt.restored}",
        wake_id=record.wake.wake_id,
        step=FILES_COMPARED,
        status=StepOutcome.RUNNING.value if receipt.files_pending else StepOutcome.DONE.value,
        elapsed_ms=round((now - record.wake.started_at).total_seconds() * 1000),
    )


def _make_unready_event(record: Sandbox, now: datetime) -> SandboxReady:
    return SandboxReady(
        sandbox_id=record.id,
        owner=record.owner,
        at=now,
        actor=FILES_ACTOR,
        reason="files were restored under the app: it is started again",
        ready=False,
        url=record.run.url,
    )
