"""Sessions: what an agent's tools call. A warm, healthy sandbox for a conversation, at once.

`acquire` reuses what works, wakes what sleeps, replaces what is dead and creates what is missing.
However many callers ask for one key, on however many replicas, there is one sandbox: the key's row
and the owner's row are each unique, and the sandbox's row decides who may hold it and who may end
it.

A caller that gets a sandbox holds a lease on it and knows that it works: nothing can pause it
between the check and its use. A failed check replaces the sandbox only if the provider can be asked
and does not contradict: unreachable is not gone.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import timedelta

import structlog

from sandkeeper.domain.activity import ActivityClass
from sandkeeper.domain.clock import to_ms
from sandkeeper.domain.decisions.acquire import (
    find_limit_reached,
)
from sandkeeper.domain.errors import (
    SandboxBusyError,
    SandboxUnreachableError,
    SandkeeperError,
    SessionLimitError,
    SessionNotFoundError,
)
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.sessions.lease import Lease
from sandkeeper.domain.sessions.session import (
    HOME_FOLDER,
    Session,
    SessionKey,
    find_folder,
    find_shared_home,
    resolve_key,
)
from sandkeeper.domain.states import State
from sandkeeper.providers.base import SdkConnectionInfo
from sandkeeper.services.activity.buffer import ActivityBuffer
from sandkeeper.services.deps import Deps
from sandkeeper.services.lifecycle.lifecycle import Lifecycle
from sandkeeper.services.sessions.checked_leases import CheckedLeases
from sandkeeper.services.sessions.cleanup import SessionCleaner
from sandkeeper.services.sessions.leases import Leases
from sandkeeper.services.sessions.profiles import make_profiles
from sandkeeper.services.sessions.sdk_handles import SdkHandleCache
from sandkeeper.services.sessions.supplier import AcquireRequest, AcquireSource, SandboxSupplier
from sandkeeper.telemetry import name_session

log = structlog.get_logger(__name__)

# How often one acquire starts over because the state changed under it.
ATTEMPTS_MAX = 5


@dataclass(frozen=True, slots=True)
class AcquireResult:
    """A healthy sandbox, held by a lease, and how to reach it."""

    session: Session
    key: SessionKey
    sandbox: Sandbox
    lease: Lease
    source: AcquireSource
    access: SdkConnectionInfo
    code_timeout_s: float


class Sessions:
    """Acquire, touch, release and transfer sessions."""

    def __init__(
        self,
        deps: Deps,
        supplier: SandboxSupplier,
        checked_leases: CheckedLeases,
        leases: Leases,
        sdk_handles: SdkHandleCache,
        lifecycle: Lifecycle,
        cleaner: SessionCleaner,
        activities: ActivityBuffer,
    ) -> None:
        self._store = deps.store
        self._clock = deps.clock
        self._supplier = supplier
        self._checked_leases = checked_leases
        self._leases = leases
        self._sdk_handles = sdk_handles
        self._lifecycle = lifecycle
        self._cleaner = cleaner
        self._activities = activities
        self._profiles = make_profiles(deps.settings)
        self._sessions_max = deps.settings.sessions_max or None

    async def acquire(self, request: AcquireRequest, *, actor: str) -> AcquireResult:
        """Return the key's sandbox: running, healthy, leased to the caller, timeouts restarted."""
        key = resolve_key(
            request.user_id, task_id=request.task_id, conversation_id=request.conversation_id
        )
        name_session(str(key))
        began_at = to_ms(self._clock())
        for _ in range(ATTEMPTS_MAX):
            session, sandbox, is_new = await self._open(request, key)
            source = AcquireSource.REUSED
            if sandbox is None or sandbox.state is not State.RUNNING:
                sandbox, source = await self._supplier.bring_up(
                    session,
                    request,
                    actor=actor,
                    began_at=began_at,
                    has_none=is_new and not session.is_shared,
                )
            if sandbox is None:
                continue
            checked = await self._checked_leases.acquire(session, sandbox, request, source)
            if checked is None:
                continue
            if checked.is_healthy:
                sandbox = await self._refresh(checked.sandbox, actor=actor)
                handle = await self._sdk_handles.open(sandbox)
                log.info(
                    "session_acquired",
                    session_key=str(key),
                    session_id=session.id,
                    sandbox_id=sandbox.id,
                    source=source.value,
                )
                return AcquireResult(
                    session=session.used_at(checked.lease.taken_at),
                    key=key,
                    sandbox=sandbox,
                    lease=checked.lease,
                    source=source,
                    access=handle.access,
                    code_timeout_s=self._profiles[session.kind].code_timeout_s,
                )
            await self._leases.release(checked.lease.id)
            await self._supplier.discard(checked.sandbox, actor=actor)
        raise SandboxUnreachableError("No healthy sandbox could be had for this session.")

    async def take_lease(
        self, sandbox: Sandbox, *, holder: str, actor: str
    ) -> tuple[Lease, Sandbox]:
        """Return a lease on any owner's sandbox; wake the sandbox if it sleeps."""
        for _ in range(ATTEMPTS_MAX):
            if sandbox.state is not State.RUNNING:
                sandbox = await self._supplier.wake(sandbox, actor=actor)
            taken = await self._leases.acquire(sandbox, holder=holder)
            if taken is not None:
                return taken
            sandbox = await self._store.sandboxes.get(sandbox.id)
        raise SandboxBusyError(sandbox_id=sandbox.id, retry_after_s=1)

    async def find_access(self, sandbox: Sandbox) -> SdkConnectionInfo:
        """Return what another program needs to reach the sandbox's current instance."""
        return (await self._sdk_handles.open(sandbox)).access

    async def get(self, session_id: str) -> Session:
        """Return the open session; raise SessionNotFoundError if there is none."""
        found = await self._store.sessions.find(session_id)
        if found is None:
            raise SessionNotFoundError(session_id=session_id)
        return found

    async def touch(self, session_id: str) -> Session:
        """Restart the idle time, because the session is still needed. Wake nothing."""
        session = await self.get(session_id)
        if not await self._store.sessions.use(session, now=to_ms(self._clock())):
            raise SessionNotFoundError(session_id=session_id)
        sandbox = await self._store.sandboxes.find_by_owner(session.owner)
        if sandbox is not None:
            self._activities.record(sandbox.id, kind=ActivityClass.INTENT, source="session")
        return await self.get(session_id)

    async def release(self, session_id: str, *, lease_id: str | None = None) -> Session:
        """End the caller's use for now. The session stays open until it was idle for too long."""
        if lease_id is not None:
            await self._leases.release(lease_id)
        return await self.touch(session_id)

    async def transfer(
        self, session_id: str, *, task_id: str | None, conversation_id: str | None, actor: str
    ) -> Session:
        """Hand the sandbox, with its files, to another conversation of the same user.

        Raise SessionExistsError if that conversation has a session with a sandbox of its own.
        """
        session = await self.get(session_id)
        key = resolve_key(session.user_id, task_id=task_id, conversation_id=conversation_id)
        if key.task_id == session.task_id:
            return session
        there = await self._store.sessions.find_by_key(session.kind, key)
        if there is not None:
            sandbox = await self._store.sandboxes.find_by_owner(there.owner)
            if sandbox is None or sandbox.state.is_ended:
                await self._cleaner.close(there, actor=actor)
        if not await self._store.sessions.rename(session, key):
            raise SessionNotFoundError(session_id=session_id)
        log.info("session_transferred", session_id=session.id, actor=actor)
        return await self.get(session_id)

    async def _open(
        self, request: AcquireRequest, key: SessionKey
    ) -> tuple[Session, Sandbox | None, bool]:
        """Return the key's row, its sandbox, and whether the row is new.

        A missing row is created if the limit allows.
        """
        found = await self._store.sessions.find_with_sandbox(request.kind, key)
        if found is not None:
            return *found, False
        counted = await self._store.sessions.count_open() if self._sessions_max else {}
        reason = find_limit_reached(
            sessions_open=sum(counted.values()), sessions_max=self._sessions_max
        )
        if reason is not None:
            raise SessionLimitError(f"{reason[0].upper()}{reason[1:]}.")
        now = to_ms(self._clock())
        idle_s = request.idle_timeout_s or self._profiles[request.kind].idle_timeout_s
        session_id = f"se-{secrets.token_hex(8)}"
        shared = request.is_shared
        draft = Session(
            id=session_id,
            kind=request.kind,
            user_id=key.user_id,
            task_id=key.task_id,
            home=find_shared_home(request.kind, key.user_id) if shared else session_id,
            folder=find_folder(key.task_id) if shared else HOME_FOLDER,
            idle_timeout_s=idle_s,
            created_at=now,
            last_used_at=now,
            idle_at=now + timedelta(seconds=idle_s),
        )
        opened = await self._store.sessions.open(draft)
        return opened, None, opened is draft

    async def _refresh(self, sandbox: Sandbox, *, actor: str) -> Sandbox:
        """Postpone the end once half of the lifetime is over; a failure here is no error."""
        lifetime_s = sandbox.policy.lifetime_s
        if lifetime_s is None or sandbox.run.expires_at is None:
            return sandbox
        left_s = (sandbox.run.expires_at - self._clock()).total_seconds()
        if left_s > lifetime_s / 2:
            return sandbox
        try:
            return await self._lifecycle.extend(sandbox.id, by_s=lifetime_s, actor=actor)
        except SandkeeperError as error:
            log.warning("session_not_extended", sandbox_id=sandbox.id, code=error.code)
            return sandbox
