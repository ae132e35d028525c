"""Claim, act, record: change a sandbox that exists. (`creation.py` creates new ones.)

*Claim* the row with a lease, *act* on the provider, *record* the result as an observation, like
every other one. A crash before the act leaves a claim that expires. A crash between act and record
leaves a correct provider and a stale record: the provider's event, the reconciler or the next sweep
updates it. Repeating the act is harmless: pausing a paused sandbox and killing a gone one succeed.

- `pause` by the scheduler stops when activity arrives before it completes; a manual `pause` does
  not. The kept files are captured first (`before_stop.py`).
- `kill` leaves an ended record, even if the instance was gone. The same capture runs before a
  running sandbox ends. If the scheduler cannot make it, a pause ends the run: it keeps the disk.
- `extend` moves the end of a running sandbox, within its policy's cap.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta

import structlog

from sandkeeper.domain.decisions.idle import (
    Extend,
    Kill,
    Pause,
    find_idle_since,
    find_next_check_at,
)
from sandkeeper.domain.errors import (
    InstanceGoneError,
    InvalidRequestError,
    OutcomeUnknownError,
    PolicyRefusedError,
    ProviderAmbiguousError,
    ProviderError,
    ProviderUnavailableError,
    ProviderUnsupportedError,
    SandkeeperError,
    WrongStateError,
)
from sandkeeper.domain.events import Event, PauseAbandoned, SandboxExtended
from sandkeeper.domain.observe.observation import Observation, ObservedStatus, Source
from sandkeeper.domain.owner import SCHEDULER_ACTOR
from sandkeeper.domain.sandbox import ClaimKind, Sandbox
from sandkeeper.domain.states import KilledReason, State
from sandkeeper.providers.base import Instance, InstanceState
from sandkeeper.providers.observations import observe_instance
from sandkeeper.services.activity.buffer import ActivityBuffer
from sandkeeper.services.capacity.slots import Slots
from sandkeeper.services.deps import Deps
from sandkeeper.services.lifecycle.before_stop import (
    BeforePause,
    BeforeStop,
    describe_unsaved,
    nothing_before_pause,
)
from sandkeeper.services.lifecycle.claims import Claims, without_claim
from sandkeeper.services.lifecycle.lost_creations import (
    find_instances,
    is_listed,
    mark_creation_failed,
)
from sandkeeper.services.lifecycle.work_check import WorkCheck
from sandkeeper.services.monitoring.health import HealthMonitor
from sandkeeper.services.observe.batched_records import BatchedRecords
from sandkeeper.services.observe.observations import Observations

log = structlog.get_logger(__name__)

SEEN_OF_END = {
    State.KILLED: ObservedStatus.KILLED,
    State.EXPIRED: ObservedStatus.EXPIRED,
    State.TERMINATED: ObservedStatus.TERMINATED,
}

# How long a caller waits for the check after a lost reply.
VERIFY_S = 5.0

# Failures after which the provider may or may not have done what it was asked.
UNCLEAR = (ProviderUnavailableError, ProviderAmbiguousError)

# The provider's own timeout for a run that our policy does not limit, and the minimum we request:
# it only matters when no keeper is alive to pause idle sandboxes.
PROVIDER_TIMEOUT_S = 3600


def compute_timeout_s(sandbox: Sandbox) -> int:
    """Return how long the provider lets a new run live: our lifetime limit, or longer."""
    lifetime_s = sandbox.policy.lifetime_s or PROVIDER_TIMEOUT_S
    longest_s = max(PROVIDER_TIMEOUT_S, sandbox.policy.lifetime_max_s)
    return math.ceil(min(max(lifetime_s, PROVIDER_TIMEOUT_S), longest_s))


class Lifecycle:
    """Pause, kill and extend sandboxes that exist."""

    def __init__(
        self,
        deps: Deps,
        claims: Claims,
        observations: Observations,
        activities: ActivityBuffer,
        health: HealthMonitor,
        slots: Slots,
        *,
        before_pause: BeforePause = nothing_before_pause,
    ) -> None:
        self._store = deps.store
        self._claims = claims
        self._providers = deps.providers
        self._observations = observations
        self._batched = BatchedRecords(observations)
        self._activities = activities
        self._health = health
        self._slots = slots
        self._metrics = deps.metrics
        self._clock = deps.clock
        self._before_stop = BeforeStop(deps, claims, before_pause)
        self._work_check = WorkCheck(deps)

    async def pause(
        self, sandbox_id: str, *, actor: str, reason: str = "paused by hand"
    ) -> Sandbox:
        """Put the sandbox to sleep, or leave it asleep. A second caller waits for the first."""
        async with self._claims.hold(sandbox_id, ClaimKind.PAUSE) as held:
            if held.state is State.PAUSED:
                return held
            _require(held, State.RUNNING, State.UNKNOWN, verb="paused")
            async with self._timed("pause"):
                ready = await self._before_stop.save(held)
                return await self._pause(ready, actor=actor, reason=reason)

    async def check_work(self, held: Sandbox) -> Sandbox:
        """Return the row with what runs inside now, or as it is if that cannot be found out."""
        found = await self._work_check.find(held)
        return held if found is None else held.evolve(work=found)

    async def pause_idle(self, held: Sandbox, decision: Pause) -> Sandbox | None:
        """Carry out the sweep's decision on a row it holds; return None if activity arrived.

        If the instance was gone, record the sandbox as ended and return that record.

        Check for activity after the hook, before the call, and once more after it: a user who
        acted while the provider was pausing gets the sandbox back running.
        """
        async with self._timed("pause"):
            ready, failure = await self._before_stop.save_if_possible(held)
            if self._is_used_since(held, ready):
                await self._abandon(ready, "activity arrived before the pause")
                return None
            unsaved = "" if failure is None else f"; {describe_unsaved(failure)}"
            paused = await self._pause(
                ready.evolve(work=held.work),
                actor=SCHEDULER_ACTOR,
                reason=decision.reason + unsaved,
                due_at=decision.due_at,
            )
            if paused.state is State.PAUSED and self._is_used_since(held, paused):
                return await self._undo_pause(paused)
        if paused.state is not State.PAUSED:
            return paused  # It was gone: there is no pause to measure.
        lag_s = max(0.0, (paused.state_since - decision.due_at).total_seconds())
        self._metrics.idle_tail.observe(_compute_remaining_s(held, paused))
        self._metrics.idle_lag.observe(lag_s)
        self._health.record_idle_lag(lag_s)
        log.info("sandbox_paused", sandbox_id=held.id, lag_s=lag_s, reason=decision.reason)
        return paused

    async def kill(
        self,
        sandbox_id: str,
        *,
        actor: str,
        reason: str = "killed by hand",
        seen: ObservedStatus = ObservedStatus.KILLED,
        unless: Callable[[Sandbox], bool] = lambda _held: False,
    ) -> Sandbox:
        """End the sandbox for good. Leave an ended one, and one for which `unless` is true.

        If only an event reported the end, ask the provider to end the sandbox as well, to be sure.
        `unless` is called while the row is held, so its result cannot change before the end.
        """
        async with self._claims.hold(sandbox_id, ClaimKind.KILL) as held:
            was_only_told = (
                held.may_be_alive and held.last_end.killed_reason is not KilledReason.NOT_FOUND
            )
            if unless(held) or (held.state.is_ended and not was_only_told):
                return held
            ready = await self._before_stop.save_quickly(held)
            return await self._kill(ready, seen=seen, actor=actor, reason=reason)

    async def kill_due(self, held: Sandbox, decision: Kill) -> Sandbox | None:
        """Carry out the sweep's decision on a row it holds; return None if activity arrived.

        Activity saves a sandbox that ends for being idle, not one whose lifetime is over. If the
        files cannot be saved, pause the sandbox instead. Where the provider cannot pause, end it if
        it is the sandbox that does not answer, and raise if our own file store is away.
        """
        ready, failure = await self._before_stop.save_if_possible(held)
        if decision.state is State.TERMINATED and self._is_used_since(held, ready):
            await self._abandon(ready, "activity arrived before the end")
            return None
        reason = decision.reason
        if failure is not None:
            try:
                return await self._pause(
                    ready,
                    actor=SCHEDULER_ACTOR,
                    reason=f"{reason}; paused and not ended: {describe_unsaved(failure)}",
                    due_at=decision.due_at,
                )
            except ProviderUnsupportedError:
                if not isinstance(failure, ProviderError):
                    raise failure from None
                reason = f"{reason}; {describe_unsaved(failure)}"
        return await self._kill(
            ready,
            seen=SEEN_OF_END[decision.state],
            actor=SCHEDULER_ACTOR,
            reason=reason,
            due_at=decision.due_at,
        )

    async def extend(self, sandbox_id: str, *, by_s: float, actor: str) -> Sandbox:
        """Let a running sandbox live `by_s` from now, or longer if it would anyway."""
        if by_s <= 0:
            raise InvalidRequestError("An extension needs a positive time.", by_s=by_s)
        async with self._claims.hold(sandbox_id, ClaimKind.EXTEND) as held:
            _require(held, State.RUNNING, verb="extended")
            to = self._clock() + timedelta(seconds=by_s)
            started_at = held.run.run_started_at or held.state_since
            cap = started_at + timedelta(seconds=held.policy.lifetime_max_s)
            if to > cap:
                raise PolicyRefusedError(
                    "The end would be past the longest lifetime.", latest=cap.isoformat()
                )
            if held.run.expires_at is not None and held.run.expires_at >= to:
                return held
            return await self._extend(held, to, actor=actor, reason="extended by request")

    async def extend_due(self, held: Sandbox, decision: Extend) -> Sandbox:
        """Carry out the sweep's decision to move the end of a sandbox in use."""
        return await self._extend(held, decision.to, actor=SCHEDULER_ACTOR, reason=decision.reason)

    async def _pause(
        self, held: Sandbox, *, actor: str, reason: str, due_at: datetime | None = None
    ) -> Sandbox:
        assert held.instance_id is not None
        provider = self._providers.get(held)
        try:
            instance = await self._claims.run_within_lease(held, provider.pause(held.instance_id))
        except InstanceGoneError:
            return await self._record_gone(held, actor=actor)
        except UNCLEAR as error:
            found = await self._verify_after(held, error)
            if found is None:
                return await self._record_gone(held, actor=actor)
            if found.state is not InstanceState.PAUSED:
                raise
            instance = found
        seen = observe_instance(instance, source=Source.REPLY)
        seen = replace(seen, actor=actor, reason=reason, due_at=due_at)
        return await self._record(held, seen, known=held, is_batched=actor == SCHEDULER_ACTOR)

    async def _verify_after(self, held: Sandbox, error: ProviderError) -> Instance | None:
        """Ask what came of a call whose reply was lost; return None if the instance is gone.

        A caller who is told of a failure must be able to trust it: without an answer to this
        question either, the error says that the outcome is unknown.
        """
        assert held.instance_id is not None
        try:
            async with asyncio.timeout(VERIFY_S):
                return await self._providers.get(held).get(held.instance_id)
        except InstanceGoneError:
            return None
        except (ProviderError, TimeoutError):
            raise OutcomeUnknownError(cause=error.code, detail=error.message) from error

    async def _undo_pause(self, paused: Sandbox) -> Sandbox | None:
        """Resume a sandbox whose user acted during the pause; return None if that was done.

        If the resume fails, the sandbox stays paused, as recorded, and a wake resumes it.
        """
        assert paused.instance_id is not None
        provider = self._providers.get(paused)
        reason = "activity arrived during the pause"
        try:
            async with self._claims.hold(paused.id, ClaimKind.WAKE) as held, self._slots.hold(held):
                if held.state is not State.PAUSED:
                    return None
                connecting = provider.connect(
                    paused.instance_id, timeout_s=compute_timeout_s(held), port=held.launch.port
                )
                instance = await self._claims.run_within_lease(held, connecting)
                # Written first, so that the record's next deadline counts from it.
                await self._activities.flush(passive=False)
                seen = observe_instance(instance, source=Source.REPLY)
                event = _abandoned(held, self._clock(), reason)
                await self._record(
                    held, replace(seen, actor=SCHEDULER_ACTOR, reason=reason), events=[event]
                )
        except SandkeeperError as error:
            log.warning("pause_not_undone", sandbox_id=paused.id, code=error.code)
            return paused
        return None

    def _is_used_since(self, held: Sandbox, fresh: Sandbox) -> bool:
        """Return whether activity arrived after `held` was read, here or at another replica."""
        here = self._activities.find_active_at(held.id) or held.active_at
        return max(fresh.active_at, here) > held.active_at

    async def _abandon(self, held: Sandbox, reason: str) -> None:
        """Release the row with the deadline that follows from the new activity."""
        await self._activities.flush(passive=False)
        now = self._clock()
        fresh = await self._store.sandboxes.get(held.id)
        await self._claims.release(fresh, next_check_at=find_next_check_at(fresh))
        await self._store.sandboxes.append_events(fresh, [_abandoned(fresh, now, reason)], now=now)

    async def _kill(
        self,
        held: Sandbox,
        *,
        seen: ObservedStatus,
        actor: str,
        reason: str,
        due_at: datetime | None = None,
    ) -> Sandbox:
        async with self._timed("kill"):
            provider = self._providers.get(held)
            if held.instance_id is None:
                for instance in await find_instances(provider, held):
                    await self._claims.run_within_lease(held, provider.kill(instance.instance_id))
                if await find_instances(provider, held):
                    raise OutcomeUnknownError("The provider still lists what it was told to end.")
                return await mark_creation_failed(
                    self._store, held, now=self._clock(), actor=actor, reason=reason
                )
            try:
                ended = await self._claims.run_within_lease(held, provider.kill(held.instance_id))
            except UNCLEAR as error:
                if await self._verify_after(held, error) is not None:
                    raise
                ended = False
            if not ended and await is_listed(provider, held):
                raise OutcomeUnknownError("The provider says that it does not have what it lists.")
            observation = Observation(
                instance_id=held.instance_id,
                seen=seen,
                at=self._clock(),
                source=Source.REPLY,
                actor=actor,
                reason=reason,
                due_at=due_at,
            )
            return await self._record(held, observation)

    async def _extend(self, held: Sandbox, to: datetime, *, actor: str, reason: str) -> Sandbox:
        async with self._timed("extend"):
            assert held.instance_id is not None
            provider = self._providers.get(held)
            now = self._clock()
            timeout_s = max(1, math.ceil((to - now).total_seconds()))
            try:
                await self._claims.run_within_lease(
                    held, provider.set_timeout(held.instance_id, timeout_s=timeout_s)
                )
            except InstanceGoneError:
                # E2B answers the same for a paused sandbox; a get distinguishes the two.
                return await self._get_again(held, actor=actor)
            seen = Observation(
                instance_id=held.instance_id,
                seen=ObservedStatus.UPDATED,
                at=self._clock(),
                source=Source.REPLY,
                end_at=now + timedelta(seconds=timeout_s),
                actor=actor,
                reason=reason,
            )
            event = SandboxExtended(
                sandbox_id=held.id,
                owner=held.owner,
                at=seen.at,
                actor=actor,
                reason=reason,
                expires_at=to,
            )
            return await self._record(held, seen, expires_at=to, events=[event])

    async def _get_again(self, held: Sandbox, *, actor: str) -> Sandbox:
        assert held.instance_id is not None
        try:
            instance = await self._claims.run_within_lease(
                held, self._providers.get(held).get(held.instance_id)
            )
        except InstanceGoneError:
            return await self._record_gone(held, actor=actor)
        return await self._record(held, observe_instance(instance, source=Source.GET))

    async def _record_gone(self, held: Sandbox, *, actor: str) -> Sandbox:
        """Record that a get found nothing; raise if the list still has the instance."""
        assert held.instance_id is not None
        if await is_listed(self._providers.get(held), held):
            raise ProviderAmbiguousError(instance_id=held.instance_id)
        return await self._record(
            held,
            Observation(
                instance_id=held.instance_id,
                seen=ObservedStatus.GONE,
                at=self._clock(),
                source=Source.REPLY,
                actor=actor,
                reason="the provider no longer has it",
            ),
        )

    async def _record(
        self,
        held: Sandbox,
        seen: Observation,
        *,
        events: Sequence[Event] = (),
        expires_at: datetime | None = None,
        known: Sandbox | None = None,
        is_batched: bool = False,
    ) -> Sandbox:
        """Record the result, and release the claim in the same transaction.

        With `is_batched` it may be that of several sandboxes.
        """

        def finish(sandbox: Sandbox) -> Sandbox:
            if expires_at is not None:
                sandbox = sandbox.evolve(expires_at=expires_at)
            if sandbox.state is State.PAUSED and seen.actor == SCHEDULER_ACTOR:
                tail_ms = round(_compute_remaining_s(held, sandbox) * 1000)
                sandbox = sandbox.evolve(
                    idle_pauses=sandbox.idle_stats.idle_pauses + 1,
                    idle_tail_ms=sandbox.idle_stats.idle_tail_ms + tail_ms,
                )
            if held.work is not None and held.generation == sandbox.generation:
                sandbox = sandbox.evolve(work=held.work)
            # The sweep's lease had moved the deadline; the record has the true one.
            sandbox = sandbox.evolve(next_check_at=find_next_check_at(sandbox))
            return without_claim(sandbox, held)

        if is_batched and known is not None:
            recorded = await self._batched.record(seen, known=known, finish=finish)
        else:
            recorded = await self._observations.record(
                seen, finish=finish, events=events, known=known
            )
        if recorded.sandbox is not None and recorded.sandbox.claim is None:
            self._claims.mark_released(held)
        return recorded.sandbox or held

    @asynccontextmanager
    async def _timed(self, operation: str) -> AsyncIterator[None]:
        started = time.monotonic()
        outcome = "failed"
        try:
            yield
            outcome = "ok"
        except SandkeeperError as error:
            outcome = error.code
            raise
        finally:
            self._metrics.operation_duration.labels(operation, outcome).observe(
                time.monotonic() - started
            )


def _require(sandbox: Sandbox, *states: State, verb: str) -> None:
    if sandbox.state not in states or sandbox.instance_id is None:
        raise WrongStateError(
            f"A sandbox that is {sandbox.state.value} cannot be {verb}.",
            state=sandbox.state.value,
        )


def _compute_remaining_s(held: Sandbox, paused: Sandbox) -> float:
    """Return how long the sandbox ran unused: from the last act or work to the pause."""
    return max(0.0, (paused.state_since - find_idle_since(held)).total_seconds())


def _abandoned(sandbox: Sandbox, at: datetime, reason: str) -> PauseAbandoned:
    return PauseAbandoned(
        sandbox_id=sandbox.id,
        owner=sandbox.owner,
        at=at,
        actor=SCHEDULER_ACTOR,
        reason=reason,
    )
