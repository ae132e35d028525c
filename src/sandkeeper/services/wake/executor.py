"""Execute a wake by the least costly method that fits: nothing, resume, reboot, recreate.

Then come the files, the app and its port. Every step reads the current state and does what is
missing, so a wake that was interrupted at any point is completed by running the steps again. A new
instance is created only when the provider itself confirmed that the old one is gone: a get does not
find it, and the list has no instance of this sandbox, whatever its generation. An instance that the
list does have is looked for again, or takes the place of the one that ended.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import replace

import structlog

from sandkeeper.domain.decisions.generation import begin_generation, reattach_instance
from sandkeeper.domain.decisions.prewarm import PREWARM_ACTOR
from sandkeeper.domain.decisions.wake import (
    ATTEMPTS_MAX,
    AlreadyRunning,
    JoinCreation,
    Recreate,
    RefuseWake,
    Resume,
    decide_wake,
    may_reboot,
)
from sandkeeper.domain.errors import (
    AppNotReadyError,
    InstanceGoneError,
    ProviderAmbiguousError,
    ProviderUnavailableError,
    SandboxExpiredError,
    SandboxUnreachableError,
    SandkeeperError,
    VersionConflictError,
    WrongStateError,
)
from sandkeeper.domain.events import Event, SandboxReady
from sandkeeper.domain.observe.observation import Observation, ObservedStatus, Source
from sandkeeper.domain.receipt import Receipt, StepName, WakeMethod, WakeSummary
from sandkeeper.domain.sandbox import ClaimKind, Sandbox
from sandkeeper.domain.states import KilledReason, State
from sandkeeper.domain.texts.presentation import JOB_TEXTS
from sandkeeper.providers.base import Instance, InstanceState
from sandkeeper.providers.observations import observe_instance
from sandkeeper.services.capacity.slots import Slots
from sandkeeper.services.deps import Deps
from sandkeeper.services.lifecycle.claims import Claims
from sandkeeper.services.lifecycle.instances import DEFINITIVE, InstanceFactory
from sandkeeper.services.lifecycle.lifecycle import compute_timeout_s
from sandkeeper.services.lifecycle.lost_creations import (
    is_listed,
    list_own_instances,
    mark_creation_failed,
)
from sandkeeper.services.observe.observations import Observations
from sandkeeper.services.wake.app import AppRunner
from sandkeeper.services.wake.file_restore import WakeFileRestorer
from sandkeeper.services.wake.port_wait import PortWait
from sandkeeper.services.wake.progress import WakeProgress, begin_receipt

log = structlog.get_logger(__name__)

# How often one attempt may decide again. A wake needs three at most (resume, gone, recreate); more
# means that the record and the provider contradict each other.
ROUNDS_MAX = 4
RACES_MAX = 20


class WakeExecutor:
    """Bring one sandbox to RUNNING with its files and its app."""

    def __init__(
        self,
        deps: Deps,
        claims: Claims,
        observations: Observations,
        instances: InstanceFactory,
        slots: Slots,
        receipts: WakeFileRestorer,
        apps: AppRunner,
    ) -> None:
        self._store = deps.store
        self._providers = deps.providers
        self._claims = claims
        self._observations = observations
        self._instances = instances
        self._slots = slots
        self._receipts = receipts
        self._apps = apps
        self._clock = deps.clock
        self._port_wait = PortWait(deps, apps)

    async def bring_up(self, run: WakeProgress, held: Sandbox) -> Sandbox:
        """Return the running sandbox with files restored and app started. The row is claimed."""
        sandbox = await self._bring_up(run, held)
        if run.wake.is_over:
            return sandbox
        needs_files = run.method is not WakeMethod.NOTHING or not _has_files(held.wake, sandbox)
        is_outdated = held.has_outdated_app
        if not needs_files and not is_outdated and await self._apps.answers(sandbox):
            run.record_receipt(Receipt(WakeMethod.NOTHING, memory_kept=True, disk_kept=True))
            return sandbox
        assert sandbox.instance_id is not None
        native = await self._providers.get(sandbox).open_sdk_sandbox(sandbox.instance_id)
        receipt = begin_receipt(run, held, sandbox)
        if needs_files:
            async with run.step(StepName.RESTORING_FILES, run.method):
                receipt = await self._receipts.restore(sandbox, native, receipt)
            run.record_receipt(receipt)
        if sandbox.launch.start_command is None:
            return sandbox
        if not is_outdated and await self._apps.may_be_kept(sandbox, native, receipt):
            run.record_receipt(replace(receipt, app_kept=True))
            return sandbox
        async with run.step(StepName.STARTING_APP, run.method):
            await self._apps.start(sandbox, native)
        run.record_receipt(replace(receipt, app_started=True))
        return sandbox

    async def wait_for_app(self, run: WakeProgress, sandbox: Sandbox) -> Sandbox:
        """Wait for the app and return the sandbox, which may be paused or ended during the wait."""
        if run.wake.is_over:
            return sandbox
        if sandbox.launch.port is not None and not run.receipt.app_kept:
            async with run.step(StepName.WAITING_FOR_PORT, run.method):
                if not await self._port_wait.run(run, sandbox):
                    return sandbox
        await self._finish_ready(run, sandbox)
        return sandbox

    async def record_unreachable(self, run: WakeProgress) -> bool:
        """Check the instance once more after the last attempt; record UNKNOWN without an answer.

        Return True when nothing is left that could be reached.
        """
        sandbox = await self._store.sandboxes.get(run.wake.sandbox_id)
        if sandbox.instance_id is None or sandbox.state.is_ended:
            return sandbox.state.is_ended
        asked_at = self._clock()
        try:
            try:
                instance = await self._providers.get(sandbox).get(
                    sandbox.instance_id, port=sandbox.launch.port
                )
            except InstanceGoneError:
                return (await self._record_gone(sandbox)).state.is_ended
        except SandkeeperError as error:
            await self._observations.record(
                Observation(
                    instance_id=sandbox.instance_id,
                    seen=ObservedStatus.UNREACHABLE,
                    at=asked_at,
                    source=Source.GET,
                    reason=error.message,
                )
            )
        else:
            await self._observations.record(observe_instance(instance, source=Source.GET))
        return False

    async def give_up_recreation(self, run: WakeProgress, error: SandkeeperError) -> None:
        """End the new instance of a failed recreation: it may lack files that the owner has.

        The next wake creates another one. End only the instance that this wake created, under a
        claim, and never one that was leased since: a lease holder keeps what it has.
        """
        sandbox = await self._store.sandboxes.get(run.wake.sandbox_id)
        reason = f"the wake failed: {error.message}"
        if sandbox.state is State.STARTING and sandbox.instance_id is None:
            # A create call without an answer may still succeed: the sweep looks for its instance.
            if isinstance(error, DEFINITIVE):
                await mark_creation_failed(
                    self._store, sandbox, now=self._clock(), actor=run.wake.actor, reason=reason
                )
            return
        async with self._claims.hold(sandbox.id, ClaimKind.KILL) as held:
            if held.instance_id is None or not self._may_give_up(run, held):
                return
            provider = self._providers.get(held)
            ended = await self._claims.run_within_lease(held, provider.kill(held.instance_id))
            if not ended and await is_listed(provider, held):
                raise _contradicted(held)
            await self._observations.record(
                Observation(
                    instance_id=held.instance_id,
                    seen=ObservedStatus.KILLED,
                    at=self._clock(),
                    source=Source.REPLY,
                    actor=run.wake.actor,
                    reason=reason,
                )
            )

    def _may_give_up(self, run: WakeProgress, held: Sandbox) -> bool:
        """Return whether the record's instance is the one that this wake created, and is unused."""
        summary = held.wake
        is_mine = (
            summary is not None
            and summary.wake_id == run.wake.id
            and summary.method is WakeMethod.RECREATE
            and summary.generation == held.generation
            and summary.finished_at is None
        )
        is_leased = (
            held.activity.leased_until is not None and held.activity.leased_until > self._clock()
        )
        return is_mine and not is_leased and not held.state.is_ended

    async def _bring_up(self, run: WakeProgress, sandbox: Sandbox) -> Sandbox:
        if sandbox.state is State.RUNNING or sandbox.may_be_alive:
            # The record may be out of date: what runs is not resumed, and what an event ended by
            # mistake is not replaced.
            sandbox = await self._get_instance(run, sandbox)
        for _ in range(ROUNDS_MAX):
            match decide_wake(sandbox):
                case AlreadyRunning():
                    return sandbox
                case JoinCreation():
                    sandbox = await self._recreate(run, sandbox)
                case Resume():
                    sandbox = await self._resume(run, sandbox)
                case Recreate(reason=reason):
                    if not await run.may_recreate():
                        was_killed = sandbox.last_end.killed_reason is KilledReason.MANUAL
                        message = JOB_TEXTS.killed if was_killed else None
                        raise SandboxExpiredError(message, state=sandbox.state.value, reason=reason)
                    found = await list_own_instances(self._providers.get(sandbox), sandbox)
                    if found:
                        sandbox = await self._reattach(run, sandbox, found)
                    else:
                        sandbox = await self._recreate(run, sandbox)
                case RefuseWake(reason=reason):
                    raise WrongStateError(reason, state=sandbox.state.value)
        raise SandboxUnreachableError("The sandbox does not stay up.", state=sandbox.state.value)

    async def _get_instance(self, run: WakeProgress, sandbox: Sandbox) -> Sandbox:
        assert sandbox.instance_id is not None
        try:
            instance = await self._providers.get(sandbox).get(
                sandbox.instance_id, port=sandbox.launch.port
            )
        except InstanceGoneError:
            return await self._record_gone(sandbox)
        seen = observe_instance(instance, source=Source.GET)
        seen = replace(seen, asked_version=sandbox.version)
        recorded = await self._observations.record(seen, known=sandbox)
        run.record.remember(recorded.sandbox or sandbox)
        return recorded.sandbox or sandbox

    async def _resume(self, run: WakeProgress, sandbox: Sandbox) -> Sandbox:
        """Connect to the sleeping instance; if that cannot succeed, boot from its disk alone.

        A reboot loses what was in memory. So it is the last resort: no first attempt leads to it,
        `may_reboot` must accept the failure, and the provider must say that the instance is asleep.
        A warm-up that no caller joined never costs a user's memory.
        """
        try:
            return await self._connect(run, sandbox, reboot=False)
        except (ProviderUnavailableError, ProviderAmbiguousError) as error:
            if run.wake.actor == PREWARM_ACTOR and not await run.may_recreate():
                raise
            waited_s = (self._clock() - run.wake.started_at).total_seconds()
            if run.wake.attempt < ATTEMPTS_MAX or not may_reboot(error, waited_s=waited_s):
                raise
            if not await self._is_asleep(sandbox):
                raise
        return await self._connect(run, sandbox, reboot=True)

    async def _is_asleep(self, sandbox: Sandbox) -> bool:
        assert sandbox.instance_id is not None
        seen = await self._providers.get(sandbox).get(sandbox.instance_id)
        return seen.state is InstanceState.PAUSED

    async def _connect(self, run: WakeProgress, sandbox: Sandbox, *, reboot: bool) -> Sandbox:
        assert sandbox.instance_id is not None
        provider = self._providers.get(sandbox)
        timeout_s = compute_timeout_s(sandbox)
        step = StepName.REBOOTING if reboot else StepName.RESUMING
        method = WakeMethod.REBOOT if reboot else WakeMethod.RESUME
        async with self._slots.hold(sandbox), run.step(step, method):
            try:
                instance = await provider.connect(
                    sandbox.instance_id,
                    timeout_s=timeout_s,
                    port=sandbox.launch.port,
                    reboot=reboot,
                )
            except InstanceGoneError:
                return await self._confirm_gone(sandbox)
        seen = observe_instance(instance, source=Source.REPLY)
        seen = replace(seen, actor=run.wake.actor, reason="woken")
        if not reboot and await self._is_ready_at_once(sandbox):
            return await self._record_ready(run, sandbox, seen)
        return await self._record_up(run, sandbox, seen, method)

    async def _is_ready_at_once(self, asleep: Sandbox) -> bool:
        """Return whether a sandbox that was just resumed can be used before its files are compared.

        Where an app has to be started, they come first.
        """
        if asleep.state is not State.PAUSED or asleep.has_outdated_app:
            return False
        is_first, is_back = await asyncio.gather(
            self._receipts.is_first(asleep), self._apps.is_back(asleep)
        )
        return is_back and not is_first

    async def _record_ready(
        self, run: WakeProgress, sandbox: Sandbox, seen: Observation
    ) -> Sandbox:
        """Write that it runs and is ready, and that the wake is over, in one transaction.

        Its files are compared beside its use (`after_resume.py`).
        """
        assert sandbox.instance_id is not None
        url = self._find_url(sandbox, sandbox.instance_id)
        receipt = begin_receipt(run, sandbox, sandbox)
        has_app = sandbox.launch.start_command is not None
        run.record_receipt(replace(receipt, app_kept=has_app, files_pending=True))
        with run.finish_with(sandbox) as pending:

            def set_ready(record: Sandbox) -> Sandbox:
                _check_running(record, sandbox)
                up = record.evolve(ready=True, url=url, app_down_at=None, app_exit_code=None)
                return pending.mark(up)

            recorded = await self._observations.record(
                seen,
                known=run.record.pop_known(),
                finish=set_ready,
                events=[self._make_ready_event(run, sandbox, url), pending.event],
                wake=pending.wake,
            )
        return recorded.sandbox or await self._store.sandboxes.get(sandbox.id)

    async def _record_up(
        self, run: WakeProgress, sandbox: Sandbox, seen: Observation, method: WakeMethod
    ) -> Sandbox:
        """Write that it runs, and that its files come next, in one transaction."""
        pending = await run.announce(StepName.RESTORING_FILES, method, sandbox)
        recorded = await self._observations.record(
            seen,
            known=run.record.pop_known(),
            finish=pending.mark,
            events=[pending.event],
            wake=pending.wake,
        )
        up = recorded.sandbox or await self._store.sandboxes.get(sandbox.id)
        run.record.remember(up)
        return up

    async def _confirm_gone(self, sandbox: Sandbox) -> Sandbox:
        """Return the record as ended if a get finds nothing either; raise if it is unreachable."""
        assert sandbox.instance_id is not None
        try:
            await self._providers.get(sandbox).get(sandbox.instance_id)
        except InstanceGoneError:
            return await self._record_gone(sandbox)
        raise SandboxUnreachableError(
            "The provider did not find the sandbox that it has.", instance_id=sandbox.instance_id
        )

    async def _record_gone(self, sandbox: Sandbox) -> Sandbox:
        """Record that a get found nothing; raise if the list still has the instance."""
        assert sandbox.instance_id is not None
        if await is_listed(self._providers.get(sandbox), sandbox):
            raise _contradicted(sandbox)
        recorded = await self._observations.record(
            Observation(
                instance_id=sandbox.instance_id,
                seen=ObservedStatus.GONE,
                at=self._clock(),
                source=Source.GET,
                reason="the provider no longer has it",
            )
        )
        return recorded.sandbox or await self._store.sandboxes.get(sandbox.id)

    async def _recreate(self, run: WakeProgress, sandbox: Sandbox) -> Sandbox:
        """Create an instance in place of one that ended, or of one whose creation got no answer."""
        is_begun = sandbox.state is State.STARTING
        await self._slots.reserve(sandbox, generation=sandbox.generation + (not is_begun))
        is_first = is_begun and not sandbox.last_end.recreated
        method = WakeMethod.NOTHING if is_first else WakeMethod.RECREATE
        async with run.step(StepName.RECREATING, method):
            if sandbox.state is not State.STARTING:
                sandbox = await self._begin_generation(run)
            if sandbox.state is not State.STARTING:
                await self._slots.give_back(sandbox.id, sandbox.generation + 1)
                return sandbox
            run.record.remember(sandbox)
            instance = await self._instances.obtain(sandbox)
        seen = replace(
            observe_instance(instance, source=Source.REPLY),
            sandbox_id=sandbox.id,
            generation=sandbox.generation,
            actor=run.wake.actor,
            reason="woken with a new instance" if method is WakeMethod.RECREATE else sandbox.reason,
            url=self._find_url(sandbox, instance.instance_id),
        )
        return await self._record_up(run, sandbox, seen, method)

    async def _reattach(
        self, run: WakeProgress, sandbox: Sandbox, found: Sequence[Instance]
    ) -> Sandbox:
        """Return the record with a living instance that the provider lists for this sandbox."""
        if any(one.instance_id == sandbox.instance_id for one in found):
            raise _contradicted(sandbox)
        seen = replace(observe_instance(found[0], source=Source.LIST), actor=run.wake.actor)
        taken = reattach_instance(sandbox, seen)
        saved = await self._store.sandboxes.save(
            taken.sandbox, taken.events, expect_version=sandbox.version, now=self._clock()
        )
        run.record.remember(saved)
        return saved

    async def _begin_generation(self, run: WakeProgress) -> Sandbox:
        """Return the record one generation later. Never replace what is alive after all."""
        for _ in range(RACES_MAX):
            sandbox = await self._store.sandboxes.get(run.wake.sandbox_id)
            if not sandbox.state.is_ended:
                return sandbox
            reason = (
                sandbox.last_end.killed_reason.value if sandbox.last_end.killed_reason else "ended"
            )
            now = self._clock()
            change = begin_generation(sandbox, reason=reason, actor=run.wake.actor, now=now)
            with contextlib.suppress(VersionConflictError):
                return await self._store.sandboxes.save(
                    change.sandbox, change.events, expect_version=sandbox.version, now=now
                )
        raise VersionConflictError(sandbox_id=run.wake.sandbox_id)

    def _find_url(self, sandbox: Sandbox, instance_id: str) -> str | None:
        port = sandbox.launch.port
        return None if port is None else self._providers.get(sandbox).preview_url(instance_id, port)

    async def _finish_ready(self, run: WakeProgress, sandbox: Sandbox) -> None:
        """Write that it is ready and that the wake is over, in one transaction."""

        def set_ready(record: Sandbox) -> tuple[Sandbox, Sequence[Event]]:
            url = self._find_url(record, _check_running(record, sandbox))
            if record.run.ready and record.run.url == url:
                return record, ()
            up = record.evolve(ready=True, url=url, app_down_at=None, app_exit_code=None)
            return up, [self._make_ready_event(run, record, url)]

        await run.finish(change=set_ready)

    def _make_ready_event(
        self, run: WakeProgress, record: Sandbox, url: str | None
    ) -> SandboxReady:
        return SandboxReady(
            sandbox_id=record.id,
            owner=record.owner,
            at=self._clock(),
            actor=run.wake.actor,
            reason="the app answers" if url else "it needs no port",
            ready=True,
            url=url,
        )


def _contradicted(sandbox: Sandbox) -> SandboxUnreachableError:
    return SandboxUnreachableError(
        "The provider lists the sandbox and does not find it.", instance_id=sandbox.instance_id
    )


def _check_running(record: Sandbox, woken: Sandbox) -> str:
    """Return the instance that runs; raise if the record does not have it, or not as running."""
    instance_id = record.instance_id
    is_same = instance_id == woken.instance_id
    if record.state is not State.RUNNING or instance_id is None or not is_same:
        raise WrongStateError(
            f"It became {record.state.value} while it was woken.", state=record.state.value
        )
    return instance_id


def _has_files(last: WakeSummary | None, sandbox: Sandbox) -> bool:
    """Return whether the files of a running sandbox were restored in this generation.

    A wake that was interrupted, or failed before it reached the app, may have left them incomplete.
    """
    if last is None or last.generation != sandbox.generation or last.finished_at is None:
        return False
    return last.error_code in (None, AppNotReadyError.code)
