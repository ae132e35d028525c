"""Verification: compare a record with the provider, which is the source of truth.

The provider's answer wins over every event that arrived before the request, whatever the event's
date, and over an end that only an event reported: the record ends in what the provider says now.

An answer of "not found" is definitive if the provider's list agrees: the record becomes KILLED. A
transient failure is retried after 1, 2 and 4 s; if that does not help, the record becomes UNKNOWN.
UNKNOWN means that the provider could not be asked, not that anything is gone. While the provider's
breaker is open there is no retry: the answer is UNKNOWN at once. A check wakes nothing and does not
count as activity.

Concurrent requests for the same sandbox share one check.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import structlog

from sandkeeper.domain.decisions.idle import UNKNOWN_CHECK_S, find_next_check_at
from sandkeeper.domain.errors import (
    InstanceGoneError,
    ProviderAmbiguousError,
    ProviderError,
    ProviderRateLimitedError,
    ProviderUnavailableError,
    SandkeeperError,
)
from sandkeeper.domain.observe.observation import Observation, ObservedStatus, Source
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import State
from sandkeeper.providers.observations import observe_instance
from sandkeeper.services.deps import Deps
from sandkeeper.services.lifecycle.claims import without_claim
from sandkeeper.services.lifecycle.lost_creations import is_listed
from sandkeeper.services.observe.observations import Observations

log = structlog.get_logger(__name__)

RETRIES_S = (1.0, 2.0, 4.0)

# A caller of `verify` gets an answer after this time; the check goes on. Higher keeps a person
# waiting for a provider that hangs; lower calls a slow provider unreachable.
ANSWER_WITHIN_S = 5.0

# How often a verification repeats when an event arrives during the request. More never finishes on
# a sandbox that changes all the time; fewer may end in an outdated state.
READS_MAX = 3

# Background refreshes of stale records: the number under way at once, and the time between two
# starts. More, or sooner, crowd out what users requested: with the breaker open a refresh ends at
# once, and the whole fleet would be recorded as unknown within a moment. Fewer leave records stale
# for longer. At the limits a refresh is skipped: the next read of the record asks again.
REFRESHES_MAX = 32
REFRESH_EVERY_S = 0.05

# Reads verify a sandbox at most once in this time. Shorter asks again before the client that shows
# the record has the answer, or in vain; longer leaves the record stale after a failed check.
ASK_AGAIN_S = 30.0


class Verification:
    """Compare records with the provider."""

    def __init__(
        self,
        deps: Deps,
        observations: Observations,
        *,
        retries_s: Sequence[float] = RETRIES_S,
        answer_within_s: float = ANSWER_WITHIN_S,
    ) -> None:
        self._store = deps.store
        self._providers = deps.providers
        self._observations = observations
        self._clock = deps.clock
        self._retries_s = tuple(retries_s)
        self._answer_within_s = answer_within_s
        self._stale_after_s = deps.settings.stale_after_s
        self._looks: dict[str, asyncio.Task[Sandbox]] = {}
        self._refreshes: set[asyncio.Task[Sandbox]] = set()
        self._asked: set[str] = set()
        self._asked_since = self._begun_at = datetime.min.replace(tzinfo=UTC)

    async def verify(self, sandbox_id: str) -> Sandbox:
        """Ask the provider and return the record; UNKNOWN, not an error, if it cannot be asked.

        A provider that has not answered within seconds counts as unreachable for now: the check
        goes on behind the answer and records what it finds.
        """
        task = self._join(sandbox_id)
        done, _ = await asyncio.wait({task}, timeout=self._answer_within_s)
        return task.result() if done else await self._record_slow(sandbox_id)

    async def verify_held(self, held: Sandbox) -> Sandbox:
        """Verify like `verify`, for the sweep, which holds the row; release the claim."""
        seen = await self._find_out(held)
        if seen is None:
            return held
        recorded = await self._observations.record(
            seen, finish=lambda fresh: self._release(fresh, held)
        )
        return recorded.sandbox or held

    def refresh(self, sandbox: Sandbox) -> bool:
        """Verify in the background if the record is stale; return whether that was started.

        For status reads: they answer at once with what is known, and a later read knows more. Reads
        of a recently checked sandbox start nothing, whatever the result was.
        """
        now = self._clock()
        if sandbox.instance_id is None or not sandbox.is_stale(now, self._stale_after_s):
            return False
        if now - self._asked_since > timedelta(seconds=ASK_AGAIN_S):
            self._asked.clear()
            self._asked_since = now
        if sandbox.id in self._asked or len(self._refreshes) >= REFRESHES_MAX:
            return False
        if now - self._begun_at < timedelta(seconds=REFRESH_EVERY_S):
            return False
        self._begun_at = now
        self._asked.add(sandbox.id)
        task = self._join(sandbox.id)
        self._refreshes.add(task)
        task.add_done_callback(self._refreshes.discard)
        return True

    async def close(self) -> None:
        """Cancel the checks that are under way; a check changes nothing."""
        tasks = list(self._looks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _join(self, sandbox_id: str) -> asyncio.Task[Sandbox]:
        task = self._looks.get(sandbox_id)
        if task is None:
            task = asyncio.create_task(self._get_and_verify(sandbox_id))
            self._looks[sandbox_id] = task
            task.add_done_callback(lambda done: self._leave(sandbox_id, done))
        return task

    def _leave(self, sandbox_id: str, task: asyncio.Task[Sandbox]) -> None:
        del self._looks[sandbox_id]
        if not task.cancelled() and task.exception() is not None:
            log.warning("verification_failed", sandbox_id=sandbox_id, error=str(task.exception()))

    async def _get_and_verify(self, sandbox_id: str) -> Sandbox:
        """Ask until the record agrees with the provider; an event that arrives between is newer."""
        sandbox = await self._store.sandboxes.get(sandbox_id)
        for _ in range(READS_MAX):
            seen = await self._find_out(sandbox)
            if seen is None:
                return sandbox
            sandbox = (await self._observations.record(seen)).sandbox or sandbox
            if not _differs(sandbox, seen):
                return sandbox
        log.warning("verification_overtaken", sandbox_id=sandbox_id, reads=READS_MAX)
        return sandbox

    async def _find_out(self, sandbox: Sandbox) -> Observation | None:
        """Return what the provider says now; None if there is nothing to ask about."""
        is_over = sandbox.state.is_ended and not sandbox.may_be_alive
        if sandbox.instance_id is None or is_over:
            return None
        seen = await self._get_instance(sandbox, sandbox.instance_id)
        return replace(seen, asked_version=sandbox.version)

    async def _record_slow(self, sandbox_id: str) -> Sandbox:
        sandbox = await self._store.sandboxes.get(sandbox_id)
        if sandbox.instance_id is None or sandbox.state.is_ended:
            return sandbox
        reason = f"the provider has not answered for {self._answer_within_s:g} s"
        seen = _unseen(sandbox.instance_id, ObservedStatus.UNREACHABLE, self._clock(), reason)
        return (await self._observations.record(seen)).sandbox or sandbox

    def _release(self, fresh: Sandbox, held: Sandbox) -> Sandbox:
        """Return the record without the claim; check an uncertain one again, but not at once."""
        fresh = without_claim(fresh, held)
        if fresh.state is State.UNKNOWN:
            again_at = self._clock() + timedelta(seconds=UNKNOWN_CHECK_S)
            return fresh.evolve(next_check_at=again_at)
        return fresh.evolve(next_check_at=find_next_check_at(fresh))

    async def _get_instance(self, sandbox: Sandbox, instance_id: str) -> Observation:
        """Return what the provider says, or that it could not be asked."""
        asked_at = self._clock()
        provider = self._providers.get(sandbox)
        for pause_s in (*self._retries_s, None):
            asked_at = self._clock()
            try:
                instance = await provider.get(instance_id, port=sandbox.launch.port)
                return observe_instance(instance, source=Source.GET)
            except InstanceGoneError:
                return await self._confirm_gone(sandbox, instance_id, asked_at)
            except (ProviderUnavailableError, ProviderRateLimitedError) as error:
                wait_s = error.retry_after_s or 0.0
                if pause_s is None or wait_s > pause_s:
                    return self._record_unverified(sandbox, instance_id, asked_at, error)
                await asyncio.sleep(pause_s)
            except ProviderError as error:
                return self._record_unverified(sandbox, instance_id, asked_at, error)
        raise AssertionError("the last attempt returns")

    async def _confirm_gone(
        self, sandbox: Sandbox, instance_id: str, asked_at: datetime
    ) -> Observation:
        """Return that the instance is gone if the list agrees, or that it is not known."""
        try:
            if await is_listed(self._providers.get(sandbox), sandbox):
                raise ProviderAmbiguousError("The provider lists an instance that it cannot find.")
        except ProviderError as error:
            return self._record_unverified(sandbox, instance_id, asked_at, error)
        return _unseen(instance_id, ObservedStatus.GONE, asked_at, "the provider no longer has it")

    def _record_unverified(
        self, sandbox: Sandbox, instance_id: str, asked_at: datetime, error: SandkeeperError
    ) -> Observation:
        log.warning("verification_failed", sandbox_id=sandbox.id, code=error.code, error=str(error))
        return _unseen(instance_id, ObservedStatus.UNREACHABLE, asked_at, error.message)


def _differs(sandbox: Sandbox, seen: Observation) -> bool:
    """Return whether the record differs from an answer about its instance."""
    if seen.state is None or seen.state is State.UNKNOWN or sandbox.is_end_ours:
        return False
    if sandbox.instance_id != seen.instance_id:
        return False
    both_ended = sandbox.state.is_ended and seen.state.is_ended
    return sandbox.state is not seen.state and not both_ended


def _unseen(instance_id: str, seen: ObservedStatus, at: datetime, reason: str) -> Observation:
    observation = Observation(instance_id=instance_id, seen=seen, at=at, source=Source.GET)
    return replace(observation, reason=reason)
