"""Lease a sandbox and check that it works."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.sessions.lease import Lease
from sandkeeper.domain.sessions.session import Session, SessionKind
from sandkeeper.services.sessions.health_checks import HealthChecker
from sandkeeper.services.sessions.leases import Leases
from sandkeeper.services.sessions.stats import CREATED, REUSED, SessionStats
from sandkeeper.services.sessions.supplier import AcquireRequest, AcquireSource


@dataclass(frozen=True, slots=True)
class CheckedLease:
    """A lease, the record it was taken on, and whether the health check passed."""

    lease: Lease
    sandbox: Sandbox
    is_healthy: bool


class CheckedLeases:
    """Lease a session's sandbox and check its health, in the quickest safe order."""

    def __init__(self, leases: Leases, checks: HealthChecker, stats: SessionStats) -> None:
        self._leases = leases
        self._checks = checks
        self._stats = stats

    async def acquire(
        self, session: Session, sandbox: Sandbox, request: AcquireRequest, source: AcquireSource
    ) -> CheckedLease | None:
        """Return the lease and the result of the check; None if the sandbox no longer runs.

        A sandbox without a claim is checked while its lease is written: if the lease succeeds, no
        pause was under way and none can begin. Any other sandbox is leased first.
        """
        counted = CREATED if source.is_new else REUSED
        leasing = self._leases.acquire(
            sandbox,
            holder=request.holder,
            session=session,
            ttl_s=request.lease_s,
            count=counted,
        )
        if source is AcquireSource.REUSED and sandbox.claim is None:
            leased, is_healthy = await asyncio.gather(
                leasing, self._is_healthy(session, sandbox, source)
            )
        else:
            leased = await leasing
            is_healthy = leased is not None and await self._is_healthy(session, leased[1], source)
        if leased is None:
            return None
        if is_healthy:
            self._stats.record_leased(session.kind, counted)
        else:
            await self._stats.uncount_leased(session.kind, counted)
        return CheckedLease(*leased, is_healthy=is_healthy)

    async def _is_healthy(self, session: Session, sandbox: Sandbox, source: AcquireSource) -> bool:
        """Return whether the sandbox works.

        A sandbox that was created a moment ago needs no check, unless it must do more than run:
        have a folder of its own, or a screen.
        """
        if (
            source is AcquireSource.CREATED
            and not session.is_shared
            and session.kind is SessionKind.EXECUTION
        ):
            return True
        folder = session.folder if session.is_shared else None
        return await self._checks.check(sandbox, session.kind, folder=folder)
