"""Jobs: builds that become ready, sleep at once, and come back when a user opens them.

The job's own status and its sandbox's state are separate. A ready job stays ready while its sandbox
sleeps; `sandbox_paused` is read from the sandbox's record and never assumed. A resume brings back
the instance that sleeps. If that is gone, the job is rebuilt from its saved files, which costs a
credit and therefore takes two calls.

A rebuild is a row, like a wake: confirmed, charged, done. Each transition is written before the
next action begins, the charge carries the row's id as its key, and a rebuild that a crash
interrupted is continued.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import structlog

from sandkeeper.domain.clock import to_ms
from sandkeeper.domain.errors import (
    CreditRefusedError,
    CreditUnavailableError,
    InvalidRequestError,
    JobNotFoundError,
    JobNotReadyError,
    ProviderUnsupportedError,
    SandboxBusyError,
    SandboxUnreachableError,
    SandkeeperError,
    WrongStateError,
)
from sandkeeper.domain.job import STAGES, Job, JobStatus, Rebuild, RebuildStatus
from sandkeeper.domain.policy import Launch, Policy
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import State
from sandkeeper.services.deps import Deps
from sandkeeper.services.files import WorkingFiles
from sandkeeper.services.jobs.credits import Charge, CreditHook
from sandkeeper.services.lifecycle.creation import Creation
from sandkeeper.services.lifecycle.lifecycle import Lifecycle
from sandkeeper.services.wake.wakes import Wakes, get_failure

log = structlog.get_logger(__name__)

CONFIRM_WITHIN_S = 600
SECRET = "jobs.confirmation"  # noqa: S105  The name under which it is kept, not the secret.

# A rebuild's driver renews this lease; a crash delays the rebuild by at most this much.
LEASE_S = 30.0
# A credit hook that does not answer is asked again after this.
ASK_AGAIN_S = 5.0
# How long a rebuild waits for its wake, which has its own, shorter limits.
WAKE_WITHIN_S = 600.0


@dataclass(frozen=True, slots=True)
class JobView:
    """A job with its sandbox as it is now; None before there is one."""

    job: Job
    sandbox: Sandbox | None

    @property
    def is_paused(self) -> bool:
        """Return True only when the pause really happened."""
        return self.sandbox is not None and self.sandbox.state is State.PAUSED


@dataclass(frozen=True, slots=True)
class RebuildQuote:
    """The cost of a rebuild, and the token that confirms it."""

    confirmation: str
    credits: int
    expires_at: datetime


class Jobs:
    """Create, change, pause, resume and rebuild jobs."""

    def __init__(
        self,
        deps: Deps,
        creation: Creation,
        lifecycle: Lifecycle,
        wakes: Wakes,
        files: WorkingFiles,
        credit: CreditHook,
    ) -> None:
        self._store = deps.store
        self._creation = creation
        self._lifecycle = lifecycle
        self._wakes = wakes
        self._files = files
        self._credit = credit
        self._clock = deps.clock
        self._replica = deps.replica
        self._driven: dict[str, asyncio.Task[Rebuild]] = {}

    async def create(
        self, job_id: str | None, *, launch: Launch, policy: Policy, actor: str, **given: Any
    ) -> tuple[JobView, bool]:
        """Return the job with its sandbox, created if missing, and whether the job is new."""
        now = to_ms(self._clock())
        drafted = Job(
            id=job_id or f"job-{secrets.token_hex(8)}", created_at=now, updated_at=now
        ).evolve(**given)
        drafted.owner.check_name()
        job, is_new = await self._store.jobs.insert_new(drafted)
        made = await self._creation.create(job.owner, launch=launch, policy=policy, actor=actor)
        return JobView(job, made.sandbox), is_new

    async def get(self, job_id: str) -> JobView:
        """Return the job and its sandbox."""
        job = await self._store.jobs.get(job_id)
        return JobView(job, await self._store.sandboxes.find_by_owner(job.owner))

    async def list_newest(
        self, *, limit: int, after: tuple[datetime, str] | None = None
    ) -> Sequence[JobView]:
        """Return a page of jobs, newest first."""
        jobs = await self._store.jobs.list_newest(limit=limit, after=after)
        found = await self._store.sandboxes.list_by_owner([job.owner for job in jobs])
        sandboxes = {sandbox.owner: sandbox for sandbox in found}
        return [JobView(job, sandboxes.get(job.owner)) for job in jobs]

    async def change(self, job_id: str, **changes: Any) -> JobView:
        """Record what the builder reports about the job: its stage, its version, its failure."""
        if changes.get("error_message"):
            changes["status"] = JobStatus.FAILED
            changes.setdefault("stage_label", STAGES[JobStatus.FAILED])
        job = await self._store.jobs.change(job_id, **changes, updated_at=self._clock())
        return JobView(job, await self._store.sandboxes.find_by_owner(job.owner))

    async def mark_ready(self, job_id: str, *, actor: str, **changes: Any) -> JobView:
        """Mark the build as done: capture its files and pause its sandbox at once.

        A second call finds the work done. If the sandbox cannot be paused, the job is ready
        nevertheless, its files are saved, and `pause_note` says why it does not sleep.
        """
        view = await self.get(job_id)
        if view.job.status is JobStatus.FAILED:
            raise WrongStateError("A job that failed does not become ready.", job_id=job_id)
        ready = await self._store.jobs.change(
            job_id,
            **changes,
            status=JobStatus.READY,
            stage_label=STAGES[JobStatus.READY],
            updated_at=self._clock(),
        )
        return await self._pause(JobView(ready, view.sandbox), actor=actor)

    async def snapshot(self, job_id: str, *, actor: str) -> JobView:
        """Capture and pause the sandbox; leave one that already sleeps as it is."""
        view = await self._get_ready(job_id, verb="snapshot")
        return await self._pause(view, actor=actor)

    async def resume(self, job_id: str, *, actor: str, within_s: float) -> JobView:
        """Bring the sleeping preview back. Do not replace what is gone: that is a rebuild."""
        view = await self._get_ready(job_id, verb="resume")
        assert view.sandbox is not None
        wake = await self._wakes.start(
            view.sandbox.id, actor=actor, may_recreate=False, wait_s=within_s
        )
        wake = await self._wakes.wait(wake, within_s=within_s)
        failure = get_failure(wake)
        if failure is not None:
            raise failure
        if not wake.is_over:
            raise SandboxUnreachableError(
                f"The preview did not come back within {within_s:g} s; it is still being tried."
            )
        return await self.get(job_id)

    async def ask_rebuild(self, job_id: str) -> RebuildQuote:
        """Return the cost, and a token to confirm it with. Nothing is done yet."""
        await self._get_ready(job_id, verb="rebuild")
        ends_at = self._clock() + timedelta(seconds=CONFIRM_WITHIN_S)
        body = f"rb-{secrets.token_hex(8)}.{int(ends_at.timestamp())}"
        token = f"{body}.{await self._sign(job_id, body)}"
        return RebuildQuote(token, 1, ends_at)

    async def rebuild(
        self, job_id: str, *, confirmation: str, actor: str, within_s: float
    ) -> tuple[JobView, Rebuild]:
        """Rebuild from the saved files, once per confirmation, however often it is sent."""
        await self._get_ready(job_id, verb="rebuild")
        rebuild_id = await self._check(job_id, confirmation)
        now = to_ms(self._clock())
        rebuild, is_new = await self._store.jobs.begin_rebuild(
            Rebuild(
                id=rebuild_id,
                job_id=job_id,
                actor=actor,
                created_at=now,
                updated_at=now,
                due_at=self._lease_end(),
            ),
            driver=self._replica,
        )
        if rebuild.id != rebuild_id:
            raise SandboxBusyError("A rebuild of this job is under way.", retry_after_s=5)
        if is_new:
            self._drive_soon(rebuild)
        rebuild = await self._wait(rebuild, within_s)
        _raise_failure(rebuild)
        return await self.get(job_id), rebuild

    async def resume_interrupted(self, *, limit: int = 50) -> int:
        """Drive the rebuilds whose driver has stopped; return how many there were."""
        now = self._clock()
        taken = 0
        for found in await self._store.jobs.list_due(now=now, limit=limit):
            rebuild = await self._store.jobs.claim_rebuild(
                found.id, driver=self._replica, now=now, until=self._lease_end()
            )
            if rebuild is not None and rebuild.id not in self._driven:
                self._drive_soon(rebuild)
                taken += 1
        return taken

    async def close(self) -> None:
        """Leave what is under way to the next process."""
        driven = list(self._driven.values())
        for task in driven:
            task.cancel()
        await asyncio.gather(*driven, return_exceptions=True)

    async def _get_ready(self, job_id: str, *, verb: str) -> JobView:
        view = await self.get(job_id)
        if view.job.status is not JobStatus.READY:
            raise JobNotReadyError(f"Can only {verb} a READY job", status=view.job.status.value)
        if view.sandbox is None:
            raise JobNotFoundError("No sandbox associated with this job", job_id=job_id)
        return view

    async def _pause(self, view: JobView, *, actor: str) -> JobView:
        note = None
        if view.sandbox is not None and not view.sandbox.state.is_ended:
            try:
                await self._lifecycle.pause(view.sandbox.id, actor=actor, reason="the job is ready")
            except ProviderUnsupportedError as error:
                note = f"pause_unsupported: {error.message}"
            except WrongStateError as error:
                note = f"{error.code}: {error.message}"
        if note != view.job.pause_note:
            await self._store.jobs.change(view.job.id, pause_note=note)
        return await self.get(view.job.id)

    def _drive_soon(self, rebuild: Rebuild) -> None:
        task = asyncio.create_task(self._drive(rebuild))
        self._driven[rebuild.id] = task
        task.add_done_callback(lambda done: self._leave(rebuild.id, done))

    def _leave(self, rebuild_id: str, task: asyncio.Task[Rebuild]) -> None:
        self._driven.pop(rebuild_id, None)
        if not task.cancelled() and task.exception() is not None:
            log.error("rebuild_interrupted", rebuild_id=rebuild_id, error=repr(task.exception()))

    async def _drive(self, rebuild: Rebuild) -> Rebuild:
        renewal = asyncio.create_task(self._renew(rebuild.id))
        try:
            if rebuild.status is RebuildStatus.CONFIRMED:
                rebuild = await self._charge(rebuild)
            if rebuild.status is RebuildStatus.CHARGED:
                rebuild = await self._recreate(rebuild)
        finally:
            renewal.cancel()
        log.info("rebuild", rebuild_id=rebuild.id, job_id=rebuild.job_id, status=rebuild.status)
        return rebuild

    async def _renew(self, rebuild_id: str) -> None:
        while True:
            await asyncio.sleep(LEASE_S / 3)
            with contextlib.suppress(SandkeeperError):
                await self._store.jobs.prolong_rebuild(rebuild_id, until=self._lease_end())

    async def _charge(self, rebuild: Rebuild) -> Rebuild:
        """Ask for the credit until there is an answer; a refusal ends the rebuild untouched."""
        charge = Charge(key=rebuild.id, job_id=rebuild.job_id, actor=rebuild.actor)
        try:
            await self._credit(charge)
        except CreditRefusedError as error:
            return await self._move(rebuild, RebuildStatus.REFUSED, error)
        except CreditUnavailableError as error:
            again_at = self._clock() + timedelta(seconds=ASK_AGAIN_S)
            await self._store.jobs.prolong_rebuild(rebuild.id, until=again_at)
            later = rebuild.evolve(error_code=error.code, error=error.message)
            return await self._store.jobs.save_rebuild(later)
        return await self._move(rebuild, RebuildStatus.CHARGED)

    async def _recreate(self, rebuild: Rebuild) -> Rebuild:
        """End the old instance and wake the sandbox again; do not repeat what was done before."""
        job = await self._store.jobs.get(rebuild.job_id)
        sandbox = await self._store.sandboxes.get_by_owner(job.owner)
        wake_id = f"wk-{rebuild.id}"
        try:
            if await self._store.wakes.find(wake_id) is None:
                await self._end(sandbox, rebuild)
            wake = await self._wakes.start(sandbox.id, actor=rebuild.actor, wake_id=wake_id)
            wake = await self._wakes.wait(wake, within_s=WAKE_WITHIN_S)
        except SandkeeperError as error:
            return await self._move(rebuild, RebuildStatus.FAILED, error)
        failure = get_failure(wake)
        if failure is None and wake.is_over:
            return await self._move(rebuild.evolve(wake_id=wake.id), RebuildStatus.DONE)
        failure = failure or SandboxUnreachableError()
        return await self._move(rebuild.evolve(wake_id=wake.id), RebuildStatus.FAILED, failure)

    async def _end(self, sandbox: Sandbox, rebuild: Rebuild) -> None:
        if sandbox.state.is_ended:
            return
        if sandbox.state is State.RUNNING:
            # Edits since the last capture are worth a try; otherwise the old version stands.
            with contextlib.suppress(SandkeeperError):
                await self._files.capture(sandbox, actor=rebuild.actor, reason="before a rebuild")
        await self._lifecycle.kill(sandbox.id, actor=rebuild.actor, reason="rebuilt")

    async def _move(
        self, rebuild: Rebuild, status: RebuildStatus, error: SandkeeperError | None = None
    ) -> Rebuild:
        moved = rebuild.evolve(
            status=status,
            updated_at=self._clock(),
            error_code=error.code if error else None,
            error=error.message if error else None,
        )
        return await self._store.jobs.save_rebuild(moved)

    async def _wait(self, rebuild: Rebuild, within_s: float) -> Rebuild:
        ends = time.monotonic() + within_s
        while not rebuild.status.is_over and (left_s := ends - time.monotonic()) > 0:
            task = self._driven.get(rebuild.id)
            if task is not None:
                await asyncio.wait({task}, timeout=left_s)
            else:
                await asyncio.sleep(min(0.2, left_s))
            rebuild = await self._store.jobs.find_rebuild(rebuild.id) or rebuild
            if rebuild.error_code == CreditUnavailableError.code:
                break
        return rebuild

    async def _sign(self, job_id: str, body: str) -> str:
        secret = await self._store.key_values.put_new(
            SECRET, secrets.token_hex(32), now=self._clock()
        )
        message = f"{job_id}\n{body}".encode()
        return hmac.new(str(secret).encode(), message, hashlib.sha256).hexdigest()[:32]

    async def _check(self, job_id: str, confirmation: str) -> str:
        """Return the rebuild that this token confirms; refuse a token that is forged or expired."""
        body, _, signature = confirmation.rpartition(".")
        rebuild_id, _, ends = body.partition(".")
        right = await self._sign(job_id, body)
        if not hmac.compare_digest(signature.encode(), right.encode()):
            raise InvalidRequestError("The confirmation is not one of ours for this job.")
        is_over = int(ends) < self._clock().timestamp()
        if is_over and await self._store.jobs.find_rebuild(rebuild_id) is None:
            raise InvalidRequestError("The confirmation has expired: ask again.")
        return rebuild_id

    def _lease_end(self) -> datetime:
        return self._clock() + timedelta(seconds=LEASE_S)


def _raise_failure(rebuild: Rebuild) -> None:
    """Raise the error that explains to the caller why a rebuild failed."""
    message = rebuild.error
    if rebuild.status is RebuildStatus.REFUSED:
        raise CreditRefusedError(message)
    if rebuild.error_code == CreditUnavailableError.code:
        raise CreditUnavailableError(message, retry_after_s=ASK_AGAIN_S)
    if rebuild.status is RebuildStatus.FAILED:
        raise SandboxUnreachableError(message, error_type=SandboxUnreachableError.code)
