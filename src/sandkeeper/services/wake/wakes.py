"""Wake: one verb that brings a sandbox back, from any state, with every file.

A wake is a row. A caller that asks while one is under way joins it, in this replica or another. The
process that started it drives it under a lease that it renews. If that process dies, the lease ends
and the background continues the wake from the current state. A wake is tried twice with a pause
between, and for as long as a caller waits for it. Then it has failed: `sandbox_expired` means that
the instance is gone, `sandbox_unreachable` that it may exist and does not come up. In either case,
another wake may be requested.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import structlog

from sandkeeper.domain import errors
from sandkeeper.domain.clock import to_ms
from sandkeeper.domain.decisions.priority import Overflow, Priority
from sandkeeper.domain.decisions.wake import ATTEMPTS_MAX, Wake, WakeStatus
from sandkeeper.domain.events import Event
from sandkeeper.domain.receipt import WakeMethod
from sandkeeper.domain.sandbox import ClaimKind, Sandbox
from sandkeeper.domain.states import State
from sandkeeper.services.capacity.line import NO_ROOM, Line
from sandkeeper.services.deps import Deps
from sandkeeper.services.files.contract import FILES_ACTOR
from sandkeeper.services.lifecycle.claims import Claims
from sandkeeper.services.wake.after_resume import AfterResume
from sandkeeper.services.wake.executor import WakeExecutor
from sandkeeper.services.wake.file_restore import WakeFileRestorer
from sandkeeper.services.wake.progress import OnStep, WakeProgress, change_nothing, nothing_on_step
from sandkeeper.services.wake.record_writer import WakeTakenOverError
from sandkeeper.services.wake.slot_wait import wait_for_slot
from sandkeeper.store import Store
from sandkeeper.telemetry import name_owner

log = structlog.get_logger(__name__)

# The least pause before an attempt that is made only because a caller still waits.
LAST_PAUSE_MIN_S = 0.5

# How long a wake waits for other work on the sandbox (a pause, a creation).
CLAIM_WAIT_S = 100.0

# Wakes that one process drives at a time. Higher lets them crowd each other out at the provider; at
# the bound a wake waits for its place, and shows that it is under way.
CONCURRENT_MAX = 64

# How often callers here poll a wake that another replica drives.
POLL_INTERVAL_S = 0.2

# How long the usual duration of a wake method is cached. Higher learns late that a provider became
# slow; lower costs each wake a read for a figure that hardly changes.
USUAL_CACHE_S = 60.0

# How often a caller may find that the wake which it wants to join has just ended.
RACES_MAX = 10

# Claims under which a running sandbox may stop.
STOPPING = (ClaimKind.PAUSE, ClaimKind.SWEEP, ClaimKind.KILL)

# Another attempt would only fail in the same way.
NOT_RETRIED = (
    errors.AppNotReadyError,
    errors.SandboxExpiredError,
    errors.SandboxDiskFullError,
    errors.WrongStateError,
    errors.ProviderUnauthorizedError,
    errors.ProviderRefusedError,
    errors.InvalidSettingsError,
    errors.SandboxNotFoundError,
    *NO_ROOM,
)
# Nothing was done to the sandbox, or it runs.
HARMLESS = (errors.AppNotReadyError, errors.WrongStateError, *NO_ROOM)
UNREACHABLE = (
    errors.ProviderUnavailableError,
    errors.ProviderRateLimitedError,
    errors.ProviderAmbiguousError,
    errors.SandboxBusyError,
    errors.VersionConflictError,
)
# Worth more attempts than two, if a caller waits.
PROVIDER_AWAY = "The provider does not answer, so the sandbox could not be woken. Nothing is lost."
TRANSIENT = (*UNREACHABLE, errors.SandboxUnreachableError, errors.FilesUnavailableError)


class DriverLease:
    """The right to drive one wake. Another process that takes the wake up ends it.

    The end of the lease, as this driver wrote it last, identifies the driver.
    """

    def __init__(self, wake: Wake, store: Store, find_end: Callable[[], datetime]) -> None:
        self.is_lost = False
        self._wake_id = wake.id
        self._due_at = wake.due_at
        self._store = store
        self._find_end = find_end
        self._turn = asyncio.Lock()

    async def extend(self) -> None:
        """Renew the lease; raise WakeTakenOverError if it is another's, or the wake is over."""
        await self._set_end(self._find_end())
        if self.is_lost:
            raise WakeTakenOverError

    async def leave(self, now: datetime) -> None:
        """Let any process continue the wake at once."""
        await self._set_end(to_ms(now))

    async def _set_end(self, until: datetime) -> None:
        async with self._turn:
            is_mine = await self._store.wakes.prolong(
                self._wake_id, due_at=self._due_at, until=until
            )
            self.is_lost = self.is_lost or not is_mine
            self._due_at = until


class Wakes:
    """Start, join, drive and continue wakes."""

    def __init__(
        self,
        deps: Deps,
        claims: Claims,
        executor: WakeExecutor,
        receipts: WakeFileRestorer,
        after_resume: AfterResume,
        line: Line,
        *,
        on_step: OnStep = nothing_on_step,
    ) -> None:
        self._store = deps.store
        self._claims = claims
        self._executor = executor
        self._receipts = receipts
        self._after_resume = after_resume
        after_resume.on_outdated_app(self._restart_app)
        self._metrics = deps.metrics
        self._clock = deps.clock
        self._line = line
        self._pause_s = deps.settings.wake_retry_s
        self._lease_s = deps.settings.wake_lease_s
        self._on_step = on_step
        self._driven: dict[str, asyncio.Task[Wake]] = {}
        self._places = asyncio.Semaphore(CONCURRENT_MAX)
        self._usual: dict[WakeMethod, tuple[float, int | None]] = {}

    async def start(
        self,
        sandbox_id: str,
        *,
        actor: str,
        may_recreate: bool = True,
        wake_id: str | None = None,
        wait_s: float = 0,
        priority: Priority | None = None,
        overflow: Overflow | None = None,
    ) -> Wake:
        """Return the sandbox's wake, started now or before; for a known `wake_id`, that wake.

        A wake that can still succeed does not fail before `wait_s` are over.
        """
        if wake_id is not None:
            found = await self._store.wakes.find(wake_id)
            if found is not None:
                return found
        now = to_ms(self._clock())
        asked = Wake(
            id=wake_id or f"wk-{secrets.token_hex(8)}",
            sandbox_id=sandbox_id,
            actor=actor,
            started_at=now,
            updated_at=now,
            due_at=self._lease_end(),
            may_recreate=may_recreate,
            wanted_until=now + timedelta(seconds=wait_s) if wait_s else None,
            priority=priority,
            overflow=overflow,
        )
        for _ in range(RACES_MAX):
            wake, is_new = await self._store.wakes.begin(asked, driver=self._claims.replica)
            if is_new:
                self._drive_soon(wake)
            if is_new or await self._join(wake):
                return wake
        raise errors.VersionConflictError(sandbox_id=sandbox_id)

    async def _join(self, wake: Wake) -> bool:
        """Return whether the wake, which an earlier caller started, also serves this one.

        One that only waits for the app gives up when the sandbox stops running. If that has
        happened, or is about to, it is asked to start over. False if it is over by now.
        """
        if not wake.is_waiting_for_port:
            return True
        sandbox = await self._store.sandboxes.get(wake.sandbox_id)
        claim = sandbox.claim if sandbox.is_claimed(self._clock()) else None
        if sandbox.state is State.RUNNING and (claim is None or claim.kind not in STOPPING):
            return True
        return await self._store.wakes.set_starts_over(wake.id, value=True)

    async def start_new(self, sandbox: Sandbox) -> None:
        """Restore the owner's files and start the app of a sandbox that was just created."""
        has_app = sandbox.launch.start_command is not None
        if has_app or await self._store.files.find_latest(sandbox.owner) is not None:
            await self.start(sandbox.id, actor=sandbox.actor, may_recreate=False)

    async def _restart_app(self, sandbox_id: str) -> None:
        """Start the app again after files were restored under it."""
        await self.start(sandbox_id, actor=FILES_ACTOR, may_recreate=False)

    async def wait(self, wake: Wake, *, within_s: float) -> Wake:
        """Return the wake when it is over, or as it is after `within_s`."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + within_s
        while not wake.is_over and (left_s := ends - loop.time()) > 0:
            task = self._driven.get(wake.id)
            if task is not None:
                done, _ = await asyncio.wait({task}, timeout=left_s)
                if done and not task.cancelled() and task.exception() is None:
                    return task.result()
            else:
                await asyncio.sleep(min(POLL_INTERVAL_S, left_s))
            wake = await self._store.wakes.find(wake.id) or wake
        return wake

    async def resume_interrupted(self, *, limit: int = 50) -> int:
        """Drive the wakes whose driver has stopped; return how many there were."""
        now = self._clock()
        taken = 0
        for found in await self._store.wakes.list_due(now=now, limit=limit):
            wake = await self._store.wakes.claim(
                found.id, driver=self._claims.replica, now=now, until=self._lease_end()
            )
            if wake is not None and wake.id not in self._driven:
                log.info("wake_taken_up", wake_id=wake.id, sandbox_id=wake.sandbox_id)
                self._drive_soon(wake)
                taken += 1
        return taken

    async def close(self) -> None:
        """Leave what is under way to the next process, which may continue it at once."""
        await self._after_resume.close()
        driven = list(self._driven.values())
        for task in driven:
            task.cancel()
        await asyncio.gather(*driven, return_exceptions=True)

    def _drive_soon(self, wake: Wake) -> None:
        task = asyncio.create_task(self._drive(wake))
        self._driven[wake.id] = task
        task.add_done_callback(lambda done: self._leave(wake.id, done))

    def _leave(self, wake_id: str, task: asyncio.Task[Wake]) -> None:
        self._driven.pop(wake_id, None)
        if not task.cancelled() and task.exception() is not None:
            # The row is still open: its lease ends, and the background continues it.
            log.error("wake_interrupted", wake_id=wake_id, error=repr(task.exception()))

    async def _drive(self, wake: Wake) -> Wake:
        started = time.monotonic()
        run = WakeProgress(
            wake,
            store=self._store,
            clock=self._clock,
            find_usual_ms=self._get_usual_ms,
            on_step=self._on_step,
        )
        lease = DriverLease(wake, self._store, self._lease_end)
        renewal = asyncio.create_task(self._renew(lease, asyncio.current_task()))
        try:
            error = await self._run_in_turn(run, lease)
            ended = (
                run.wake
                if run.wake.is_over
                else await run.finish(error, change=_mark_app_down(error, self._clock()))
            )
        except WakeTakenOverError:
            log.warning("wake_left_to_another", wake_id=wake.id, sandbox_id=wake.sandbox_id)
            return await self._store.wakes.find(wake.id) or run.wake
        except asyncio.CancelledError:
            if not lease.is_lost:
                with contextlib.suppress(errors.SandkeeperError):
                    await asyncio.shield(lease.leave(self._clock()))
            raise
        finally:
            renewal.cancel()
        outcome = error.code if error else "ok"
        took_s = time.monotonic() - started
        self._metrics.operation_duration.labels("wake", outcome).observe(took_s)
        if error is None:
            self._metrics.ready_duration.labels(run.method.value).observe(took_s)
        self._receipts.count(run.receipt)
        if error is None:
            has_resumed = run.method in (WakeMethod.RESUME, WakeMethod.REBOOT)
            self._after_resume.begin(wake.sandbox_id, has_resumed=has_resumed)
        log.info(
            "wake_finished",
            sandbox_id=wake.sandbox_id,
            wake_id=wake.id,
            method=run.method.value,
            outcome=outcome,
            took_s=round(took_s, 3),
        )
        return ended

    async def _renew(self, lease: DriverLease, driver: asyncio.Task[Any] | None) -> None:
        """Extend the lease until cancelled; cancel the driver if another process drives now."""
        while True:
            await asyncio.sleep(self._lease_s / 3)
            try:
                await lease.extend()
            except errors.StoreUnavailableError:
                continue
            except WakeTakenOverError:
                if driver is not None:
                    driver.cancel()
                return

    async def _run_in_turn(
        self, run: WakeProgress, lease: DriverLease
    ) -> errors.SandkeeperError | None:
        """Do as `_run_attempts`. While it waits for a slot it holds neither place nor claim."""
        while True:
            async with self._places:
                error = await self._run_attempts_safely(run, lease)
            if not isinstance(error, errors.CapacityFullError):
                return error
            try:
                await wait_for_slot(run, self._line, self._store)
            except NO_ROOM as refused:
                return refused

    async def _run_attempts_safely(
        self, run: WakeProgress, lease: DriverLease
    ) -> errors.SandkeeperError | None:
        """Run `_run_attempts`; an unexpected error ends the wake, which else is retried forever."""
        try:
            return await self._run_attempts(run, lease)
        except (errors.SandkeeperError, WakeTakenOverError):
            raise
        except Exception as error:
            log.exception("wake_broke", wake_id=run.wake.id)
            return errors.SandboxUnreachableError(cause=type(error).__name__)

    async def _run_attempts(
        self, run: WakeProgress, lease: DriverLease
    ) -> errors.SandkeeperError | None:
        """Return None when the sandbox is up and ready, else the error that explains why not."""
        attempt = run.wake.attempt
        while True:
            await run.begin_attempt(attempt)
            try:
                await self._attempt(run)
            except errors.StoreUnavailableError:
                raise
            except errors.SandkeeperError as error:
                log.warning("wake_attempt_failed", wake_id=run.wake.id, error=str(error))
                if isinstance(error, errors.WrongStateError) and await run.start_over():
                    continue
                is_tried_again = await self._is_tried_again(run, error)
                # A driver that stood still must neither repeat the wake of another nor end it.
                await lease.extend()
                if not is_tried_again:
                    return await self._conclude(run, error)
            else:
                return None
            attempt += 1

    async def _is_tried_again(self, run: WakeProgress, error: errors.SandkeeperError) -> bool:
        """Return, after a pause, whether another attempt makes sense."""
        if isinstance(error, NOT_RETRIED):
            return False
        if run.wake.attempt < ATTEMPTS_MAX:
            is_gone = isinstance(error, errors.InstanceGoneError)
            if not is_gone or not await self._executor.record_unreachable(run):
                await asyncio.sleep(self._pause_s)
            return True
        if not isinstance(error, TRANSIENT):
            return False
        # At least a moment, or a pause of none would let it try without end.
        await asyncio.sleep(max(self._pause_s, LAST_PAUSE_MIN_S))
        return await run.is_wanted()

    async def _attempt(self, run: WakeProgress) -> None:
        sandbox = await self._bring_up(run)
        try:
            await self._executor.wait_for_app(run, sandbox)
        except errors.WrongStateError as error:
            if await self._is_to_be_replaced(run):
                raise errors.InstanceGoneError from error
            raise

    async def _bring_up(self, run: WakeProgress) -> Sandbox:
        """Return the sandbox as the executor leaves it; the next write releases the claim."""
        try:
            async with self._claims.hold_long(
                run.wake.sandbox_id, ClaimKind.WAKE, lease_s=self._lease_s, wait_s=CLAIM_WAIT_S
            ) as held:
                name_owner(held.owner)
                run.record.hold(held)
                sandbox = await self._executor.bring_up(run, held)
        except errors.WrongStateError as error:
            # It stopped running during the wake; the next attempt reads its new state.
            run.record.drop_claim()
            raise errors.SandboxUnreachableError(cause=error.code) from error
        except BaseException:
            run.record.drop_claim()
            raise
        if not run.wake.is_over:
            run.record.release_with_next()
        return sandbox

    async def _get_usual_ms(self, method: WakeMethod) -> int | None:
        """Return how long a wake by this method usually takes, from a short-lived cache."""
        read_at, usual_ms = self._usual.get(method, (0.0, None))
        if usual_ms is None or time.monotonic() - read_at > USUAL_CACHE_S:
            usual_ms = await self._store.wakes.find_usual_ms(method)
            self._usual[method] = (time.monotonic(), usual_ms)
        return usual_ms

    async def _is_to_be_replaced(self, run: WakeProgress) -> bool:
        """Return whether it ended during the wait for its app, and a caller still wants it to run.

        A creation starts its app by a wake that replaces nothing. A caller that requests a wake
        joins that one, and from then on it may replace.
        """
        sandbox = await self._store.sandboxes.get(run.wake.sandbox_id)
        return sandbox.state.is_ended and await run.may_recreate()

    async def _conclude(
        self, run: WakeProgress, error: errors.SandkeeperError
    ) -> errors.SandkeeperError:
        """Return the failure as callers see it; leave the record so that a wake works again."""
        raised = error
        if isinstance(error, errors.InstanceGoneError):
            raised = errors.SandboxExpiredError()
        elif isinstance(error, UNREACHABLE):
            message = PROVIDER_AWAY if _is_provider_away(error) else None
            raised = errors.SandboxUnreachableError(message, cause=error.code, detail=error.message)
        if isinstance(error, HARMLESS):
            return raised
        with contextlib.suppress(errors.SandkeeperError):
            is_gone = await self._executor.record_unreachable(run)
            if is_gone and isinstance(raised, errors.SandboxUnreachableError):
                raised = errors.SandboxExpiredError()
            if run.method is WakeMethod.RECREATE:
                await self._executor.give_up_recreation(run, error)
        return raised

    def _lease_end(self) -> datetime:
        return to_ms(self._clock() + timedelta(seconds=self._lease_s))


def _is_provider_away(error: errors.SandkeeperError) -> bool:
    """Return whether it says nothing about the sandbox: the provider could not be asked."""
    if isinstance(error, errors.ResumeFailedError):
        return False
    return isinstance(error, (errors.ProviderUnavailableError, errors.ProviderRateLimitedError))


def _mark_app_down(
    error: errors.SandkeeperError | None, now: datetime
) -> Callable[[Sandbox], tuple[Sandbox, Sequence[Event]]]:
    """Return what a wake that ends leaves in the record: an app that did not come up is down."""
    if not isinstance(error, errors.AppNotReadyError):
        return change_nothing
    exit_code = error.fields.get("exit_code")

    def mark(record: Sandbox) -> tuple[Sandbox, Sequence[Event]]:
        if record.state is not State.RUNNING or record.run.ready:
            return record, ()
        return record.evolve(app_down_at=now, app_exit_code=exit_code), ()

    return mark


def get_failure(wake: Wake) -> errors.SandkeeperError | None:
    """Return the error with which a wake ended, ready to raise to a caller."""
    if wake.status is not WakeStatus.FAILED:
        return None
    kinds: dict[str, type[errors.SandkeeperError]] = {
        one.code: one for one in errors.SandkeeperError.walk()
    }
    kind = kinds.get(wake.error_code or "", errors.WakeFailedError)
    fields: dict[str, Any] = {"wake_id": wake.id}
    return kind(wake.error, **fields)
