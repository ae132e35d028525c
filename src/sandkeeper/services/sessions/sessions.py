"""Sessions: what an agent's tools call. A warm, healthy sandbox for a conversation, at once.

`acquire` reuses what works, wakes what sleeps, replaces what is dead and creates what is not there.
However many ask for one key, on however many replicas, there is one sandbox: the key's row and the
owner's row are each unique, and the row of the sandbox settles who may hold it and who may end it.

Whoever gets a sandbox holds a lease on it and knows that it works: nothing can put it to sleep
between the check and its use. A failed check replaces the sandbox only if the provider can be asked
and does not contradict: unreachable is not gone.
"""

from __future__ import annotations

import asyncio
import secrets
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum

import structlog

from sandkeeper.domain.activity import ActivityClass
from sandkeeper.domain.clock import to_ms
from sandkeeper.domain.decisions.acquire import Create, RefuseAcquire, Reuse, decide_acquire
from sandkeeper.domain.errors import (
    ProviderRefusedError,
    SandboxBusyError,
    SandboxUnreachableError,
    SandkeeperError,
    SessionLimitError,
    SessionNotFoundError,
)
from sandkeeper.domain.lease import Lease
from sandkeeper.domain.policy import IdleAction, Launch, Policy
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.session import (
    HOME_FOLDER,
    Profile,
    Session,
    SessionKey,
    SessionKind,
    find_folder,
    find_shared_home,
    make_policy,
    resolve_key,
)
from sandkeeper.domain.states import KilledReason, State
from sandkeeper.providers.base import SdkConnectionInfo
from sandkeeper.services.activity.buffer import ActivityBuffer
from sandkeeper.services.lifecycle.creation import Creation
from sandkeeper.services.lifecycle.lifecycle import Lifecycle
from sandkeeper.services.lifecycle.verification import Verification
from sandkeeper.services.sessions.cleanup import SessionCleaner
from sandkeeper.services.sessions.health_checks import HealthChecker
from sandkeeper.services.sessions.leases import Leases
from sandkeeper.services.sessions.pools import Pools
from sandkeeper.services.sessions.sdk_handles import SdkHandleCache
from sandkeeper.services.sessions.stats import REUSED, SessionStats
from sandkeeper.services.wake.wakes import Wakes, get_failure
from sandkeeper.store import Store

log = structlog.get_logger(__name__)

# How often one acquire starts over because the world changed under it.
ATTEMPTS_MAX = 5
# How often a creation that somebody else makes is looked at.
LOOK_S = 0.05


class AcquireSource(StrEnum):
    """Where the sandbox of an acquire came from."""

    REUSED = "reused"
    WOKEN = "woken"
    REPLACED = "replaced"
    POOL = "pool"
    CREATED = "created"

    @property
    def is_new(self) -> bool:
        """True when the caller finds a sandbox that nobody worked in before."""
        return self in (AcquireSource.REPLACED, AcquireSource.POOL, AcquireSource.CREATED)


@dataclass(frozen=True, slots=True)
class AcquireRequest:
    """What a caller wants. All but the key matters only when a sandbox is made."""

    user_id: str
    task_id: str | None = None
    conversation_id: str | None = None
    kind: SessionKind = SessionKind.EXECUTION
    template: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    region: str | None = None
    idle_timeout_s: float | None = None
    is_adaptive: bool | None = None
    on_idle: IdleAction | None = None
    is_shared: bool = False
    holder: str = "client"
    lease_s: float | None = None


@dataclass(frozen=True, slots=True)
class AcquireResult:
    """A sandbox that works, held by a lease, and how to reach it."""

    session: Session
    key: SessionKey
    sandbox: Sandbox
    lease: Lease
    how: AcquireSource
    access: SdkConnectionInfo
    code_timeout_s: float


class Sessions:
    """Acquire, touch, release, transfer."""

    def __init__(
        self,
        *,
        store: Store,
        creation: Creation,
        lifecycle: Lifecycle,
        verification: Verification,
        wakes: Wakes,
        leases: Leases,
        natives: SdkHandleCache,
        checks: HealthChecker,
        pools: Pools,
        closing: SessionCleaner,
        counts: SessionStats,
        activities: ActivityBuffer,
        clock: Callable[[], datetime],
        profiles: Mapping[SessionKind, Profile],
        on_idle: IdleAction = IdleAction.KILL,
        asleep_s: float = 7 * 86_400.0,
        sessions_max: int | None = None,
        wait_s: float = 90.0,
    ) -> None:
        self._store = store
        self._creation = creation
        self._lifecycle = lifecycle
        self._verification = verification
        self._wakes = wakes
        self._leases = leases
        self._natives = natives
        self._checks = checks
        self._pools = pools
        self._closing = closing
        self._counts = counts
        self._activities = activities
        self._clock = clock
        self._profiles = profiles
        self._on_idle = on_idle
        self._asleep_s = asleep_s
        self._sessions_max = sessions_max
        self._wait_s = wait_s
        self._turns: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()

    async def acquire(self, asked: AcquireRequest, *, actor: str) -> AcquireResult:
        """The key's sandbox, running, healthy and leased to the caller; its timeouts begin anew."""
        key = resolve_key(
            asked.user_id, task_id=asked.task_id, conversation_id=asked.conversation_id
        )
        began_at = to_ms(self._clock())
        for _ in range(ATTEMPTS_MAX):
            session, sandbox = await self._open(asked, key)
            how = AcquireSource.REUSED
            if sandbox is None or sandbox.state is not State.RUNNING:
                sandbox, how = await self._bring_up(session, asked, actor=actor, began_at=began_at)
            if sandbox is None:
                continue
            taken, is_fit = await self._lease(session, sandbox, asked, how)
            if taken is None:
                continue
            lease, sandbox = taken
            if is_fit:
                sandbox = await self._refresh(sandbox, actor=actor)
                native = await self._natives.open(sandbox)
                profile = self._profiles[session.kind]
                return AcquireResult(
                    session=session.used_at(lease.taken_at),
                    key=key,
                    sandbox=sandbox,
                    lease=lease,
                    how=how,
                    access=native.access,
                    code_timeout_s=profile.code_timeout_s,
                )
            await self._leases.release(lease.id)
            await self._discard(sandbox, actor=actor)
        raise SandboxUnreachableError("No healthy sandbox could be had for this session.")

    async def take_lease(
        self, sandbox: Sandbox, *, holder: str, actor: str
    ) -> tuple[Lease, Sandbox]:
        """A lease on any owner's sandbox, which is woken if it sleeps."""
        for _ in range(ATTEMPTS_MAX):
            if sandbox.state is not State.RUNNING:
                sandbox = await self._wake(sandbox, actor=actor)
            taken = await self._leases.acquire(sandbox, holder=holder)
            if taken is not None:
                return taken
            sandbox = await self._store.sandboxes.get(sandbox.id)
        raise SandboxBusyError(sandbox_id=sandbox.id, retry_after_s=1)

    async def find_access(self, sandbox: Sandbox) -> SdkConnectionInfo:
        """What another program needs to reach the sandbox's present instance."""
        return (await self._natives.open(sandbox)).access

    async def get(self, session_id: str) -> Session:
        """The open session; raises SessionNotFoundError."""
        found = await self._store.sessions.find(session_id)
        if found is None:
            raise SessionNotFoundError(session_id=session_id)
        return found

    async def touch(self, session_id: str) -> Session:
        """Somebody still needs it: the idle time begins anew. Nothing is woken."""
        session = await self.get(session_id)
        if not await self._store.sessions.use(session, now=to_ms(self._clock())):
            raise SessionNotFoundError(session_id=session_id)
        sandbox = await self._store.sandboxes.find_by_owner(session.owner)
        if sandbox is not None:
            self._activities.record(sandbox.id, kind=ActivityClass.INTENT, source="session")
        return await self.get(session_id)

    async def release(self, session_id: str, *, lease_id: str | None = None) -> Session:
        """The caller is done for now. The session stays open until it was idle for too long."""
        if lease_id is not None:
            await self._leases.release(lease_id)
        return await self.touch(session_id)

    async def transfer(
        self, session_id: str, *, task_id: str | None, conversation_id: str | None, actor: str
    ) -> Session:
        """Hand the sandbox, with its files, to another conversation of the same user.

        Raises SessionExistsError if that one has a session with a sandbox of its own.
        """
        session = await self.get(session_id)
        key = resolve_key(session.user_id, task_id=task_id, conversation_id=conversation_id)
        if key.task_id == session.task_id:
            return session
        there = await self._store.sessions.find_by_key(session.kind, key)
        if there is not None:
            sandbox = await self._store.sandboxes.find_by_owner(there.owner)
            if sandbox is None or sandbox.state.is_ended:
                await self._closing.close(there, actor=actor)
        if not await self._store.sessions.rename(session, key):
            raise SessionNotFoundError(session_id=session_id)
        log.info("session_transferred", session_id=session.id, actor=actor)
        return await self.get(session_id)

    async def _open(self, asked: AcquireRequest, key: SessionKey) -> tuple[Session, Sandbox | None]:
        """The key's row, made if there is none and there may be one more, and its sandbox."""
        found = await self._store.sessions.find_with_sandbox(asked.kind, key)
        if found is not None:
            return found
        counted = await self._store.sessions.count_open() if self._sessions_max else {}
        decision = decide_acquire(
            None, sessions_open=sum(counted.values()), sessions_max=self._sessions_max
        )
        if isinstance(decision, RefuseAcquire):
            raise SessionLimitError(f"{decision.reason[0].upper()}{decision.reason[1:]}.")
        now = to_ms(self._clock())
        idle_s = asked.idle_timeout_s or self._profiles[asked.kind].idle_timeout_s
        session_id = f"se-{secrets.token_hex(8)}"
        shared = asked.is_shared
        draft = Session(
            id=session_id,
            kind=asked.kind,
            user_id=key.user_id,
            task_id=key.task_id,
            home=find_shared_home(asked.kind, key.user_id) if shared else session_id,
            folder=find_folder(key.task_id) if shared else HOME_FOLDER,
            idle_timeout_s=idle_s,
            created_at=now,
            last_used_at=now,
            idle_at=now + timedelta(seconds=idle_s),
        )
        return await self._store.sessions.open(draft), None

    async def _bring_up(
        self, session: Session, asked: AcquireRequest, *, actor: str, began_at: datetime
    ) -> tuple[Sandbox | None, AcquireSource]:
        """A running sandbox and how it came to run; None if the session was over: begin again.

        Those who ask for one sandbox in this process take turns, so that one acts and the others
        find it done; between replicas the rows see to that.
        """
        turn = self._turns.setdefault(session.home, asyncio.Lock())
        async with turn:
            sandbox = await self._store.sandboxes.find_by_owner(session.owner)
            if sandbox is not None and sandbox.state is State.STARTING:
                sandbox = await self._await_creation(sandbox)
            decision = decide_acquire(sandbox, sessions_open=0, sessions_max=None)
            if sandbox is None or isinstance(decision, Create):
                return await self._make(session, asked, actor=actor)
            if isinstance(decision, Reuse):
                return sandbox, AcquireSource.REUSED
            if sandbox.state.is_ended:
                if _has_just_failed(sandbox, began_at):
                    raise ProviderRefusedError(sandbox.reason, sandbox_id=sandbox.id)
                if _was_ended_by_rule(sandbox) and not session.is_shared:
                    await self._closing.close(session, actor=actor)
                    return None, AcquireSource.CREATED
                return await self._wake(sandbox, actor=actor), AcquireSource.REPLACED
            return await self._wake(sandbox, actor=actor), AcquireSource.WOKEN

    async def _make(
        self, session: Session, asked: AcquireRequest, *, actor: str
    ) -> tuple[Sandbox | None, AcquireSource]:
        """From the pool if there is a fitting member, else a new one."""
        launch, policy = self._launch(session, asked), self._policy(session, asked)
        template = launch.template or ""
        # A member was started without anybody's variables, in the default region.
        if not asked.env and launch.region is None:
            taken = await self._pools.claim(
                template, owner=session.owner, launch=launch, policy=policy
            )
            if taken is not None:
                return await self._closing.habits.load(session, taken), AcquireSource.POOL
        made = await self._creation.create(session.owner, launch=launch, policy=policy, actor=actor)
        sandbox = made.sandbox
        if sandbox.state is State.STARTING:
            sandbox = await self._await_creation(sandbox)
        if made.is_new:
            sandbox = await self._closing.habits.load(session, sandbox)
        return (sandbox if sandbox.state is State.RUNNING else None), (
            AcquireSource.CREATED if made.is_new else AcquireSource.REUSED
        )

    async def _await_creation(self, sandbox: Sandbox) -> Sandbox:
        """The record once its creation, by whomever, was answered."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + self._wait_s
        while sandbox.state is State.STARTING:
            if loop.time() >= ends:
                raise SandboxBusyError(
                    "The sandbox is still being created.", sandbox_id=sandbox.id, retry_after_s=5
                )
            await asyncio.sleep(LOOK_S)
            sandbox = await self._store.sandboxes.get(sandbox.id)
        return sandbox

    async def _wake(self, sandbox: Sandbox, *, actor: str) -> Sandbox:
        """The sandbox after a wake that was begun here or joined; its failure is ours."""
        wake = await self._wakes.start(sandbox.id, actor=actor, known=sandbox)
        wake = await self._wakes.wait(wake, within_s=self._wait_s)
        failure = get_failure(wake)
        if failure is not None:
            raise failure
        return await self._store.sandboxes.get(sandbox.id)

    async def _lease(
        self, session: Session, sandbox: Sandbox, asked: AcquireRequest, how: AcquireSource
    ) -> tuple[tuple[Lease, Sandbox] | None, bool]:
        """A lease, and whether what it holds works; both are counted.

        A sandbox that nobody works on is checked while its lease is written: if that succeeds, no
        pause was on its way and none can begin. Any other is leased first.
        """
        leasing = self._leases.acquire(
            sandbox,
            holder=asked.holder,
            session=session,
            ttl_s=asked.lease_s,
            count="" if how.is_new else REUSED,
        )
        if how is AcquireSource.REUSED and sandbox.claim is None:
            taken, is_fit = await asyncio.gather(leasing, self._is_fit(session, sandbox, how))
        else:
            taken = await leasing
            is_fit = taken is not None and await self._is_fit(session, taken[1], how)
        if taken is not None:
            await self._count(session.kind, how, is_fit=is_fit)
        return taken, is_fit

    async def _count(self, kind: SessionKind, how: AcquireSource, *, is_fit: bool) -> None:
        if how.is_new and is_fit:
            await self._counts.count(kind, "created")
        elif is_fit:
            self._counts.note_reused(kind)
        elif not how.is_new:
            await self._counts.take_back_reused(kind)

    async def _is_fit(self, session: Session, sandbox: Sandbox, how: AcquireSource) -> bool:
        """Whether it works. What was made this moment is believed, unless it needs more than that:
        a folder of its own, a screen.
        """
        if (
            how is AcquireSource.CREATED
            and not session.is_shared
            and session.kind is SessionKind.EXECUTION
        ):
            return True
        folder = session.folder if session.is_shared else None
        return await self._checks.check(sandbox, session.kind, folder=folder)

    async def _discard(self, sandbox: Sandbox, *, actor: str) -> None:
        """Make way for another after a failed check, if the provider can be asked."""
        seen = await self._verification.verify(sandbox.id)
        if seen.state is State.UNKNOWN:
            raise SandboxUnreachableError(
                "The sandbox does not answer, and the provider cannot be asked about it.",
                sandbox_id=sandbox.id,
            )
        if seen.state is not State.RUNNING:
            return
        await self._lifecycle.kill(
            sandbox.id,
            actor=actor,
            reason="the health check failed",
            unless=lambda held: held.instance_id != sandbox.instance_id,
        )

    async def _refresh(self, sandbox: Sandbox, *, actor: str) -> Sandbox:
        """Move the end away once half of the lifetime is over; it is tried, and never required."""
        lifetime_s = sandbox.policy.lifetime_s
        if lifetime_s is None or sandbox.expires_at is None:
            return sandbox
        left_s = (sandbox.expires_at - self._clock()).total_seconds()
        if left_s > lifetime_s / 2:
            return sandbox
        try:
            return await self._lifecycle.extend(sandbox.id, by_s=lifetime_s, actor=actor)
        except SandkeeperError as error:
            log.warning("session_not_extended", sandbox_id=sandbox.id, code=error.code)
            return sandbox

    def _launch(self, session: Session, asked: AcquireRequest) -> Launch:
        return Launch(
            template=asked.template or self._profiles[session.kind].template,
            env={**self._profiles[session.kind].env, **asked.env},
            metadata={
                **asked.metadata,
                "session_kind": session.kind.value,
                "session_user": session.user_id,
            },
            region=asked.region,
        )

    def _policy(self, session: Session, asked: AcquireRequest) -> Policy:
        profile = self._profiles[session.kind]
        policy = make_policy(
            idle_timeout_s=session.idle_timeout_s,
            lifetime_s=profile.lifetime_s,
            on_idle=asked.on_idle or self._on_idle,
            asleep_s=self._asleep_s,
        )
        learns = profile.is_adaptive if asked.is_adaptive is None else asked.is_adaptive
        if not learns:
            return policy
        return replace(policy, idle_min_s=profile.idle_min_s, idle_max_s=profile.idle_max_s)


def _has_just_failed(sandbox: Sandbox, began_at: datetime) -> bool:
    """True for a creation that failed for good while this caller waited: no use to repeat it."""
    return sandbox.killed_reason is KilledReason.CREATION_FAILED and sandbox.state_since >= began_at


def _was_ended_by_rule(sandbox: Sandbox) -> bool:
    """True when it was idle or old enough, so that its session is over and not broken."""
    return sandbox.state in (State.TERMINATED, State.EXPIRED)
