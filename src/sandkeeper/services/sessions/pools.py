"""Warm pools: sandboxes that run before they are requested, handed over by one update of their row.

Level-triggered: `fill` reads which members live, retires those that are old, unhealthy or too many,
and creates those that are missing. One replica at a time fills a pool. A template that fails is
retried at growing intervals, and at the limit not at all, until the pool is set again.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import structlog

from sandkeeper.domain.clock import to_ms
from sandkeeper.domain.decisions.pool import (
    MEMBER_POLICY,
    TARGET_MAX,
    Backoff,
    Pool,
    check_template,
    decide_fill,
    find_retry_at,
    make_member,
)
from sandkeeper.domain.errors import (
    InvalidRequestError,
    ProviderAmbiguousError,
    SandboxExistsError,
    SandkeeperError,
)
from sandkeeper.domain.observe.observation import ObservedStatus
from sandkeeper.domain.owner import Owner, OwnerKind
from sandkeeper.domain.policy import Launch, Policy
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.sessions.session import SessionKind
from sandkeeper.domain.states import State
from sandkeeper.domain.tenant import find_tenant
from sandkeeper.services.activity.feed import Feed, Signal
from sandkeeper.services.capacity.line import NO_ROOM
from sandkeeper.services.deps import Deps
from sandkeeper.services.lifecycle.creation import Creation
from sandkeeper.services.lifecycle.lifecycle import Lifecycle
from sandkeeper.services.sessions.health_checks import HealthChecker
from sandkeeper.services.sessions.profiles import make_profiles

log = structlog.get_logger(__name__)

# Creations and checks of one pool under way at a time. Higher fills faster after a burst and
# crowds out what people wait for; the provider's own creation rate limit applies on top.
CONCURRENCY = 4
FILL_LEASE_S = 120.0
CHECK_EVERY_S = 60.0
TOP_UP_AFTER_S = 0.3
ANOTHER_FILLS_S = 1.0
ACTOR = "pool"


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """A pool as an operator sees it."""

    pool: Pool
    ready: int
    starting: int
    is_stopped: bool


@dataclass(frozen=True, slots=True)
class FillReport:
    """Counts of what one pass over a pool did."""

    created: int = 0
    retired: int = 0
    failed: int = 0


class Pools:
    """Keep the pools at their size and hand members over."""

    def __init__(
        self,
        deps: Deps,
        creation: Creation,
        lifecycle: Lifecycle,
        checks: HealthChecker,
        feed: Feed,
    ) -> None:
        self._store = deps.store
        self._creation = creation
        self._lifecycle = lifecycle
        self._checks = checks
        self._metrics = deps.metrics
        self._clock = deps.clock
        self._replica = deps.replica
        self._age_max_s = deps.settings.pool_age_max_s
        self._failures_max = deps.settings.pool_failures_max
        self._targets = dict(deps.settings.pools)
        self._tenant_key = deps.settings.tenant_metadata
        self._profiles = {
            profile.template: profile for profile in make_profiles(deps.settings).values()
        }
        self._checked_at: dict[str, datetime] = {}
        self._feed = feed

    async def set(self, template: str, *, target: int) -> PoolStatus:
        """Set how many warm sandboxes of a template to keep; 0 empties the pool."""
        if not 0 <= target <= TARGET_MAX:
            raise InvalidRequestError(f"A pool has from 0 to {TARGET_MAX} members.")
        now = to_ms(self._clock())
        await self._store.pools.put(check_template(template), target=target, now=now)
        self._feed.send(Signal.POOL_NEEDS_FILL)
        pool = await self._store.pools.find(template)
        assert pool is not None
        return await self._describe(pool)

    async def list(self) -> list[PoolStatus]:
        return [await self._describe(pool) for pool in await self._store.pools.list()]

    async def claim(
        self, template: str, *, owner: Owner, launch: Launch, policy: Policy
    ) -> Sandbox | None:
        """Return a warm sandbox that now belongs to `owner`; None if there is none.

        An owner that has a sandbox already keeps it, and the pool keeps its member.
        """
        pool = await self._store.pools.find(template)
        if pool is None or pool.target == 0:
            return None
        launch = replace(launch, tenant=find_tenant(launch, metadata_key=self._tenant_key))
        try:
            taken = await self._store.pools.claim(
                template, owner=owner, launch=launch, policy=policy, now=to_ms(self._clock())
            )
        except SandboxExistsError:
            return None
        self._metrics.pool_claims.labels("hit" if taken else "miss").inc()
        # Not at once: the caller that was just served has not begun to work yet.
        self._check_again(TOP_UP_AFTER_S)
        return taken

    async def fill(self) -> FillReport:
        """Run one pass over every pool that no other replica is filling."""
        now = to_ms(self._clock())
        for template, target in self._targets.items():
            await self._store.pools.put_new(check_template(template), target=target, now=now)
        filled = [await self._fill_one(pool.template) for pool in await self._store.pools.list()]
        return FillReport(
            created=sum(one.created for one in filled),
            retired=sum(one.retired for one in filled),
            failed=sum(one.failed for one in filled),
        )

    async def _fill_one(self, template: str) -> FillReport:
        # A name for this pass alone: two passes of one process must not share a turn either.
        pools, holder = self._store.pools, f"{self._replica}:{secrets.token_hex(8)}"
        now = to_ms(self._clock())
        if not await pools.hold(template, holder=holder, lease_s=FILL_LEASE_S, now=now):
            # The replica that fills it may have counted before the change that caused this pass.
            self._check_again(ANOTHER_FILLS_S)
            return FillReport()
        try:
            pool = await pools.find(template)
            assert pool is not None
            members = await pools.list_members(template, limit=TARGET_MAX * 2)
            self._forget_checks()
            retired = await self._retire_the_unfit(pool, members)
            decision = decide_fill(
                pool, members=len(members) - retired, failures_max=self._failures_max, now=now
            )
            if isinstance(decision, Backoff):
                return FillReport(retired=retired)
            created, failed = await self._fill_up(pool, decision.count, holder=holder)
            return FillReport(created=created, retired=retired, failed=failed)
        finally:
            await pools.release(template, holder=holder)

    async def _retire_the_unfit(self, pool: Pool, members: Sequence[Sandbox]) -> int:
        """End members that are too old, too many or do not work; return how many there were."""
        old = self._clock() - timedelta(seconds=self._age_max_s)
        places = asyncio.Semaphore(CONCURRENCY)

        async def retire_if_unfit(number: int, member: Sandbox) -> bool:
            reason = ""
            if number < len(members) - pool.target:
                reason = "the pool has too many"
            elif member.created_at < old:
                reason = "it waited for too long"
            elif member.state in (State.PAUSED, State.UNKNOWN):
                reason = f"it is {member.state.value} and not warm"
            elif member.state is State.RUNNING:
                async with places:
                    if not await self._is_healthy(member):
                        reason = "the health check failed"
            return bool(reason) and await self.retire(member, reason)

        return sum(
            await asyncio.gather(
                *(retire_if_unfit(place, one) for place, one in enumerate(members))
            )
        )

    async def _is_healthy(self, member: Sandbox) -> bool:
        """Return whether it works, by a check that is not older than a minute."""
        now = self._clock()
        known = self._checked_at.get(member.id)
        if known is not None and now - known < timedelta(seconds=CHECK_EVERY_S):
            return True
        profile = self._profiles.get(member.launch.template or "")
        kind = SessionKind.EXECUTION if profile is None else profile.kind
        if not await self._checks.check(member, kind):
            return False
        self._checked_at[member.id] = now
        return True

    async def retire(self, member: Sandbox, reason: str) -> bool:
        """End a member unless it has been handed over; return True if it left the pool."""
        try:
            after = await self._lifecycle.kill(
                member.id,
                actor=ACTOR,
                reason=reason,
                seen=ObservedStatus.TERMINATED,
                unless=lambda held: held.owner.kind is not OwnerKind.POOL,
            )
        except SandkeeperError as error:
            log.warning("pool_member_not_retired", sandbox_id=member.id, code=error.code)
            return False
        return after.state.is_ended or after.owner.kind is not OwnerKind.POOL

    def _forget_checks(self) -> None:
        """Drop checks that are too old to count, so that ended members take no memory."""
        old = self._clock() - timedelta(seconds=CHECK_EVERY_S)
        self._checked_at = {one: at for one, at in self._checked_at.items() if at > old}

    async def _fill_up(self, pool: Pool, count: int, *, holder: str) -> tuple[int, int]:
        """Create members, a few at a time; the first failure ends the pass."""
        created = 0
        while created < count:
            batch = min(CONCURRENCY, count - created)
            results = await asyncio.gather(
                *(self._create(pool.template) for _ in range(batch)), return_exceptions=True
            )
            errors = [result for result in results if isinstance(result, BaseException)]
            created += batch - len(errors)
            for error in errors:
                if not isinstance(error, SandkeeperError):
                    raise error
            if any(isinstance(error, NO_ROOM) for error in errors):
                return created, 0  # Nothing is wrong with it; a later pass finds room.
            if errors:
                await self._record_failure(pool, errors[0])
                return created, len(errors)
            now = to_ms(self._clock())
            await self._store.pools.hold(
                pool.template, holder=holder, lease_s=FILL_LEASE_S, now=now
            )
        await self._store.pools.record_success(pool.template)
        return created, 0

    async def _create(self, template: str) -> Sandbox:
        profile = self._profiles.get(template)
        made = await self._creation.create(
            make_member(template),
            launch=Launch(
                template=template,
                env={} if profile is None else profile.env,
                metadata={"sandkeeper_pool": template},
            ),
            policy=MEMBER_POLICY,
            actor=ACTOR,
        )
        # The first check also learns how to reach it, so its user need not wait for that.
        if not await self._is_healthy(made.sandbox):
            await self.retire(made.sandbox, "the health check failed")
            raise ProviderAmbiguousError("A new sandbox did not pass its health check.")
        return made.sandbox

    async def _record_failure(self, pool: Pool, error: BaseException) -> None:
        failures, now = pool.failures + 1, to_ms(self._clock())
        retry_at = find_retry_at(failures, now)
        await self._store.pools.record_failure(
            pool.template, failures=failures, retry_at=retry_at, error=str(error)[:500]
        )
        self._check_again((retry_at - now).total_seconds())
        log.warning("pool_not_filled", template=pool.template, failures=failures, error=str(error))

    def _check_again(self, after_s: float) -> None:
        asyncio.get_running_loop().call_later(after_s, self._feed.send, Signal.POOL_NEEDS_FILL)

    async def _describe(self, pool: Pool) -> PoolStatus:
        members = await self._store.pools.list_members(pool.template, limit=TARGET_MAX * 2)
        states = [member.state for member in members]
        return PoolStatus(
            pool=pool,
            ready=states.count(State.RUNNING),
            starting=states.count(State.STARTING),
            is_stopped=pool.target > 0 and pool.failures >= self._failures_max,
        )
