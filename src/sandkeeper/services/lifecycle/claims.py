"""Claims: who may act on a sandbox, and for how long.

A claim is a lease in the row, and names its process. Its holder may act until the lease ends or
the process's heartbeat expires, and no longer: `run_within_lease` cancels a call before that, so
two holders never act at once. Whatever goes out under a claim is checked against the holder's own
clock once more (`providers.acting_claim`), for a process that stood still. The claims of a dead
process are freed by another one (`recovery.py`); at the latest they expire.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime, timedelta
from typing import Any, TypeVar

import structlog

from sandkeeper.common.elapsed import now_s
from sandkeeper.common.tracing import TRACING
from sandkeeper.domain.errors import (
    ProviderUnavailableError,
    ProviderUnsupportedError,
    SandboxBusyError,
    SandkeeperError,
    StoreUnavailableError,
    VersionConflictError,
)
from sandkeeper.domain.events import OperationFailed
from sandkeeper.domain.owner import SCHEDULER_ACTOR
from sandkeeper.domain.sandbox import Claim, ClaimKind, Sandbox
from sandkeeper.providers.acting_claim import ActingClaim, acting_under
from sandkeeper.services.deps import Deps
from sandkeeper.services.lifecycle.heartbeat import CLAIM_WAIT_S, Heartbeat

log = structlog.get_logger(__name__)

T = TypeVar("T")

# An act ends this long before its claim, so that its result is still recorded under the claim.
RECORD_MARGIN_S = 2.0

# A row whose act failed is due again after this time. Longer leaves an idle sandbox running;
# shorter overloads a struggling provider.
FAILED_RETRY_S = 15.0

# A row whose act can never succeed (the plan cannot pause) is checked again after this time.
UNSUPPORTED_RETRY_S = 600.0

# A claim more recent than this needs neither a renewal nor a second read. Lower costs a write for
# each of many sandboxes that are paused together; higher learns later of activity elsewhere, for
# which the pause is undone then.
RENEW_AFTER_S = 2.0

# The operation that a failure of the sweep is recorded as.
SWEEP_OPERATION = "sweep"

# How often to check a row that another holder has claimed.
CLAIM_POLL_S = 0.05


def without_claim(sandbox: Sandbox, held: Sandbox) -> Sandbox:
    """Return the record without the claim under which `held` was read, if it still has that one."""
    if sandbox.claim is None or held.claim is None or sandbox.claim.holder != held.claim.holder:
        return sandbox
    return sandbox.evolve(claim=None)


class Claims:
    """Acquire and release claims for one replica."""

    def __init__(self, deps: Deps, heartbeat: Heartbeat) -> None:
        self._store = deps.store
        self._clock = deps.clock
        self._heartbeat = heartbeat
        self.replica = deps.replica
        self._lease_s = deps.settings.lease_s
        self._unwritten: set[str] = set()
        self._unreleased: dict[tuple[str, str | None], datetime | None] = {}

    def new_claim(self, kind: ClaimKind) -> Claim:
        """Return a claim for a row that its holder is about to insert."""
        return Claim(kind=kind, holder=self._new_holder(), until=self._lease_end())

    @asynccontextmanager
    async def hold(
        self, sandbox_id: str, kind: ClaimKind, *, wait_s: float = CLAIM_WAIT_S
    ) -> AsyncIterator[Sandbox]:
        """Hold the row and yield it. Wait up to `wait_s`, then raise that the sandbox is busy.

        Leaving the context releases the claim, unless the record was written without it.
        """
        with TRACING.span("claim", sandkeeper__sandbox_id=sandbox_id, sandkeeper__claim=kind.value):
            held, _ = await self._acquire(sandbox_id, kind, wait_s)
        assert held.claim is not None
        self._unwritten.add(held.claim.holder)
        try:
            yield held
        finally:
            if held.claim.holder in self._unwritten:
                self._unwritten.discard(held.claim.holder)
                await asyncio.shield(self._release_quietly(held))

    def mark_released(self, held: Sandbox) -> None:
        """Note that the record was written without this claim, so that it needs no release."""
        if held.claim is not None:
            self._unwritten.discard(held.claim.holder)

    @asynccontextmanager
    async def keep_alive(self, held: Sandbox) -> AsyncIterator[None]:
        """Renew the claim repeatedly while the block runs, however long that is.

        If that fails for a whole lease, the block makes no outward call any more.
        """
        acting = self._make_acting(held, self._lease_s, now_s() + self._compute_left_s(held))
        prolonging = asyncio.create_task(self._prolong(held, acting))
        try:
            with acting_under(acting):
                yield
        finally:
            prolonging.cancel()
            await asyncio.gather(prolonging, return_exceptions=True)

    async def renew(self, held: Sandbox) -> Sandbox:
        """Return the current row, held for a full lease again; skip the renewal of a recent claim.

        Raise SandboxBusyError if the claim expired and another holder has had the row since.
        """
        if self.compute_age_s(held) < RENEW_AFTER_S:
            return held
        renewed = await self._extend(held, self._lease_s)
        if renewed is None:
            raise SandboxBusyError("The claim ran out.", sandbox_id=held.id)
        return renewed

    @asynccontextmanager
    async def hold_long(
        self,
        sandbox_id: str,
        kind: ClaimKind,
        *,
        lease_s: float,
        wait_s: float,
    ) -> AsyncIterator[Sandbox]:
        """Hold the row while the context is open, with a short lease that is renewed.

        For work of many steps. A crash frees the row after `lease_s`. If the claim is lost anyway
        (this process was suspended for longer), no outward call is made any more, and the work is
        cancelled: another process has it now.

        An error releases the claim; otherwise the caller's next write does (`without_claim`). If
        that write never comes, the lease expires.
        """
        held, acting = await self._acquire(sandbox_id, kind, wait_s, lease_s=lease_s)
        worker = asyncio.current_task()
        assert worker is not None
        renewal = asyncio.create_task(self._renew(held, acting, worker, lease_s))
        try:
            async with self._heartbeat.guard() as limit:
                try:
                    with acting_under(acting):
                        yield held
                except asyncio.CancelledError:
                    if not limit.expired():
                        raise
                    raise SandboxBusyError("The claim was lost.", sandbox_id=sandbox_id) from None
        except BaseException as error:
            is_lost = renewal.done() and not renewal.cancelled()
            renewal.cancel()
            await asyncio.shield(self._release_quietly(held))
            if isinstance(error, asyncio.CancelledError) and is_lost and worker.uncancel() == 0:
                raise SandboxBusyError("The claim was lost.", sandbox_id=sandbox_id) from None
            raise
        finally:
            renewal.cancel()

    async def _renew(
        self, held: Sandbox, acting: ActingClaim, worker: asyncio.Task[Any], lease_s: float
    ) -> None:
        """Renew the claim until cancelled; cancel the worker when another holder has the row."""
        while True:
            await asyncio.sleep(lease_s / 3)
            with contextlib.suppress(StoreUnavailableError):
                asked_s = now_s()
                if await self._extend(held, lease_s) is None:
                    worker.cancel()
                    return
                acting.until_s = asked_s + lease_s

    async def _extend(self, held: Sandbox, lease_s: float) -> Sandbox | None:
        """Return the row, held for a full lease; None if another holder has had it since."""
        assert held.claim is not None
        now = self._clock()
        return await self._store.sandboxes.claim(
            held.id,
            kind=held.claim.kind,
            holder=held.claim.holder,
            until=now + timedelta(seconds=lease_s),
            now=now,
            renew=True,
        )

    def _make_acting(self, held: Sandbox, lease_s: float, until_s: float) -> ActingClaim:
        async def confirm() -> bool:
            return await self._extend(held, lease_s) is not None

        return ActingClaim(
            number=held.version, until_s=until_s, confirm=confirm, may_act=self._may_act
        )

    async def claim_due(self, *, limit: int, only_uncertain: bool) -> Sequence[Sandbox]:
        """Return up to `limit` due rows, held for the sweep."""
        holder = self._new_holder()
        with TRACING.span("claim due"), self._releasing_lost(holder):
            return await self._store.sandboxes.claim_due(
                now=self._clock(),
                holder=holder,
                lease_s=self._lease_s,
                limit=limit,
                only_uncertain=only_uncertain,
            )

    async def find_next_due_at(self) -> datetime | None:
        return await self._store.sandboxes.find_next_due_at(now=self._clock())

    def compute_age_s(self, held: Sandbox) -> float:
        """Return the seconds since the row was claimed."""
        return self._lease_s - self._compute_left_s(held)

    def _compute_left_s(self, held: Sandbox) -> float:
        assert held.claim is not None
        return (held.claim.until - self._clock()).total_seconds()

    async def run_within_lease(self, held: Sandbox, call: Coroutine[Any, Any, T]) -> T:
        """Return the call's result if it arrives within the lease.

        Raise ProviderUnavailableError if the provider is too slow. A call whose claim has already
        expired is not started.
        """
        left_s = self._compute_left_s(held) - RECORD_MARGIN_S
        if left_s <= 0 or not self._may_act():
            call.close()
            raise ProviderUnavailableError(
                "Its turn came after the claim ran out.", sandbox_id=held.id
            )
        acting = self._make_acting(held, self._lease_s, now_s() + left_s)
        try:
            async with self._heartbeat.guard(left_s):
                with acting_under(acting):
                    return await call
        except TimeoutError as error:
            raise ProviderUnavailableError(
                "The provider did not answer before the claim ran out.", sandbox_id=held.id
            ) from error

    async def release(self, held: Sandbox, *, next_check_at: datetime | None) -> None:
        """Release the row and set when it is due next; leave it if another writer was faster."""
        with contextlib.suppress(VersionConflictError):
            await self._store.sandboxes.save(
                held.evolve(claim=None, next_check_at=next_check_at),
                expect_version=held.version,
                now=self._clock(),
            )
            return
        await self._release_quietly(held)

    async def release_all(self, kept: Sequence[tuple[Sandbox, datetime | None]]) -> None:
        """Release many rows in one transaction, each with its next deadline."""
        rows = [held.evolve(claim=None, next_check_at=next_at) for held, next_at in kept]
        try:
            await self._store.bulk.save(
                [(row, ()) for row in rows], deliveries=(), now=self._clock()
            )
        except VersionConflictError:
            for held, next_at in kept:
                await self.release(held, next_check_at=next_at)

    def release_later(
        self, holder: str, sandbox_id: str | None = None, *, next_check_at: datetime | None = None
    ) -> None:
        """Remember a claim that may be in the row, and could not be released.

        Without `sandbox_id` it is not known which rows have it.
        """
        self._unreleased[holder, sandbox_id] = next_check_at

    async def release_again(self) -> list[str]:
        """Repeat the releases that failed; return the ids of the sandboxes that became free.

        They are due at once unless a later time was given: what was done is perhaps not recorded.
        """
        released: list[str] = []
        for (holder, sandbox_id), next_check_at in tuple(self._unreleased.items()):
            released += await self._store.sandboxes.release_held_by(
                holder, sandbox_id, now=self._clock(), next_check_at=next_check_at
            )
            self._unreleased.pop((holder, sandbox_id), None)
        return released

    async def postpone(
        self,
        held: Sandbox,
        error: Exception,
        *,
        operation: str = SWEEP_OPERATION,
        actor: str = SCHEDULER_ACTOR,
    ) -> None:
        """Release the row after a failed act, schedule the retry, and record the failure."""
        now = self._clock()
        later_s = FAILED_RETRY_S
        code, detail = type(error).__name__, str(error)
        if isinstance(error, SandkeeperError):
            code = error.code
            later_s = max(later_s, error.retry_after_s or 0.0)
            if isinstance(error, ProviderUnsupportedError):
                later_s = UNSUPPORTED_RETRY_S
        await self._release_quietly(held, next_check_at=now + timedelta(seconds=later_s))
        failed = OperationFailed(
            sandbox_id=held.id,
            owner=held.owner,
            at=now,
            actor=actor,
            reason=detail,
            operation=operation,
            code=code,
            detail=detail,
        )
        await self._store.sandboxes.append_events(held, [failed], now=now)
        log.warning("operation_failed", sandbox_id=held.id, code=code, detail=detail)

    async def _prolong(self, held: Sandbox, acting: ActingClaim) -> None:
        while True:
            await asyncio.sleep(self._lease_s / 3)
            asked_s = now_s()
            try:
                await self.renew(held)
                acting.until_s = asked_s + self._lease_s
            except SandkeeperError as error:
                log.warning("claim_not_prolonged", sandbox_id=held.id, code=error.code)

    async def _acquire(
        self, sandbox_id: str, kind: ClaimKind, wait_s: float, *, lease_s: float | None = None
    ) -> tuple[Sandbox, ActingClaim]:
        lease_s = lease_s or self._lease_s
        holder = self._new_holder()
        loop = asyncio.get_running_loop()
        ends = loop.time() + wait_s
        # If the database was away for a while: without a sign of life, nothing could go out.
        await self._heartbeat.ensure()
        while True:
            asked_s = now_s()
            with self._releasing_lost(holder, sandbox_id):
                held = await self._store.sandboxes.claim(
                    sandbox_id,
                    kind=kind,
                    holder=holder,
                    until=self._clock() + timedelta(seconds=lease_s),
                    now=self._clock(),
                )
            if held is not None:
                return held, self._make_acting(held, lease_s, asked_s + lease_s)
            present = await self._store.sandboxes.get(sandbox_id)
            if loop.time() >= ends:
                raise SandboxBusyError(
                    sandbox_id=sandbox_id,
                    held_for=present.claim.kind.value if present.claim else "another operation",
                    retry_after_s=1,
                )
            await asyncio.sleep(CLAIM_POLL_S)

    async def _release_quietly(
        self, held: Sandbox, *, next_check_at: datetime | None = None
    ) -> None:
        """Release the claim if it is still ours; repeat it later if the database is away."""
        assert held.claim is not None
        holder = held.claim.holder
        try:
            await self._store.sandboxes.release(
                held.id, holder=holder, now=self._clock(), next_check_at=next_check_at
            )
        except StoreUnavailableError:
            self.release_later(holder, held.id, next_check_at=next_check_at)

    @contextmanager
    def _releasing_lost(self, holder: str, sandbox_id: str | None = None) -> Iterator[None]:
        """Release a claim later that was perhaps written, though its reply did not arrive."""
        try:
            yield
        except (StoreUnavailableError, asyncio.CancelledError):
            self.release_later(holder, sandbox_id)
            raise

    def _may_act(self) -> bool:
        left_s = self._heartbeat.left_s
        return left_s is None or left_s > 0

    def _new_holder(self) -> str:
        return f"{self.replica}:{secrets.token_hex(6)}"

    def _lease_end(self) -> datetime:
        return self._clock() + timedelta(seconds=self._lease_s)
