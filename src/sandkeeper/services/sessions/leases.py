"""Leases: a sandbox in use is never idle, and a holder that died holds nothing for long.

A lease is a row with an end. Its holder renews it while it works, which also counts as activity of
class *work*. The sweep reads the end from the sandbox's own row. A holder that stops renewing loses
its lease.
"""

from __future__ import annotations

import asyncio
import secrets
from datetime import timedelta

from sandkeeper.domain.activity import ActivityClass
from sandkeeper.domain.clock import to_ms
from sandkeeper.domain.errors import LeaseNotFoundError, SandboxBusyError
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.sessions.lease import Lease
from sandkeeper.domain.sessions.session import Session
from sandkeeper.domain.states import State
from sandkeeper.services.activity.buffer import ActivityBuffer
from sandkeeper.services.activity.feed import Feed, Signal
from sandkeeper.services.deps import Deps
from sandkeeper.services.lifecycle.heartbeat import CLAIM_WAIT_S

# How often to retry a row that another holder has claimed.
CLAIM_POLL_S = 0.02


class Leases:
    """Acquire, renew and release leases."""

    def __init__(self, deps: Deps, activities: ActivityBuffer, feed: Feed) -> None:
        self._store = deps.store
        self._activities = activities
        self._clock = deps.clock
        self.ttl_s = deps.settings.session_lease_s
        self._feed = feed

    async def acquire(
        self,
        sandbox: Sandbox,
        *,
        holder: str,
        session: Session | None = None,
        ttl_s: float | None = None,
        count: str = "",
        wait_s: float = CLAIM_WAIT_S,
    ) -> tuple[Lease, Sandbox] | None:
        """Return a lease on a running sandbox, and its record; None if it must be read again.

        None means that the sandbox no longer runs, or that the session is over. Wait while another
        holder works on the row; a pause that was under way is finished by then. `count` is what the
        session counts this lease as.
        """
        loop = asyncio.get_running_loop()
        ends = loop.time() + wait_s
        while True:
            now = to_ms(self._clock())
            lease = Lease(
                id=f"le-{secrets.token_hex(10)}",
                sandbox_id=sandbox.id,
                holder=holder,
                taken_at=now,
                until=now + timedelta(seconds=ttl_s or self.ttl_s),
                session_id=None if session is None else session.id,
            )
            taken = await self._store.leases.acquire(
                lease, source="session", session=session, count=count
            )
            if taken is not None:
                self._activities.record(sandbox.id, kind=ActivityClass.INTENT, source="session")
                return lease, taken
            fresh = await self._store.sandboxes.find(sandbox.id)
            if fresh is None or fresh.state is not State.RUNNING:
                return None
            if session is not None and await self._store.sessions.find(session.id) is None:
                return None
            if loop.time() >= ends:
                raise SandboxBusyError(sandbox_id=sandbox.id, retry_after_s=1)
            await asyncio.sleep(CLAIM_POLL_S)

    async def renew(self, lease_id: str, *, ttl_s: float | None = None) -> Lease:
        """Return the lease with a later end; raise LeaseNotFoundError if it has expired."""
        now = to_ms(self._clock())
        until = now + timedelta(seconds=ttl_s or self.ttl_s)
        lease = await self._store.leases.renew(lease_id, until=until, now=now)
        if lease is None:
            raise LeaseNotFoundError
        self._activities.record(lease.sandbox_id, kind=ActivityClass.WORK, source="lease")
        return lease

    async def release(self, lease_id: str) -> Lease | None:
        """Release the lease; return None if it was over already, which is no error.

        Signal the sweep: the sandbox may be idle earlier than the lease had said.
        """
        released = await self._store.leases.release(lease_id, now=to_ms(self._clock()))
        if released is not None:
            self._feed.send(Signal.LEASE_RELEASED)
        return released
