"""Bring up the sandbox of a session: reuse, wake, replace, take from the pool, or create."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import assert_never

from sandkeeper.domain.decisions.acquire import (
    AwaitCreation,
    Create,
    RefuseAcquire,
    Replace,
    Reuse,
    StartOver,
    WakeExisting,
    decide_acquire,
)
from sandkeeper.domain.errors import (
    ProviderRefusedError,
    SandboxBusyError,
    SandboxUnreachableError,
)
from sandkeeper.domain.policy import IdleAction, Launch, Policy
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.sessions.session import Session, SessionKind, make_policy
from sandkeeper.domain.states import State
from sandkeeper.services.deps import Deps
from sandkeeper.services.lifecycle.creation import Creation
from sandkeeper.services.lifecycle.lifecycle import Lifecycle
from sandkeeper.services.lifecycle.verification import Verification
from sandkeeper.services.sessions.cleanup import SessionCleaner
from sandkeeper.services.sessions.pools import Pools
from sandkeeper.services.sessions.profiles import make_profiles
from sandkeeper.services.sessions.usage_history import UsageHistories
from sandkeeper.services.wake.wakes import Wakes, get_failure

# How often to poll a creation by another caller or replica.
POLL_INTERVAL_S = 0.05
# How long one acquire waits for a creation or a wake.
WAIT_S = 90.0


class AcquireSource(StrEnum):
    """The source of an acquired sandbox."""

    REUSED = "reused"
    WOKEN = "woken"
    REPLACED = "replaced"
    POOL = "pool"
    CREATED = "created"

    @property
    def is_new(self) -> bool:
        """Return True when the caller gets a sandbox in which no one has worked before."""
        return self in (AcquireSource.REPLACED, AcquireSource.POOL, AcquireSource.CREATED)


@dataclass(frozen=True, slots=True)
class AcquireRequest:
    """The wishes of a caller. All but the key matter only when a sandbox is created."""

    user_id: str
    task_id: str | None = None
    conversation_id: str | None = None
    kind: SessionKind = SessionKind.EXECUTION
    template: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    region: str | None = None
    tenant: str | None = None
    idle_timeout_s: float | None = None
    is_adaptive: bool | None = None
    on_idle: IdleAction | None = None
    is_shared: bool = False
    holder: str = "client"
    lease_s: float | None = None


class SandboxSupplier:
    """Supply the running sandbox of a session, and discard one that turned out unhealthy."""

    def __init__(
        self,
        deps: Deps,
        creation: Creation,
        pools: Pools,
        wakes: Wakes,
        verification: Verification,
        lifecycle: Lifecycle,
        cleaner: SessionCleaner,
        usage_histories: UsageHistories,
    ) -> None:
        self._settings = deps.settings
        self._store = deps.store
        self._creation = creation
        self._pools = pools
        self._wakes = wakes
        self._verification = verification
        self._lifecycle = lifecycle
        self._cleaner = cleaner
        self._usage_histories = usage_histories
        self._profiles = make_profiles(deps.settings)
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()

    async def bring_up(
        self,
        session: Session,
        request: AcquireRequest,
        *,
        actor: str,
        began_at: datetime,
        has_none: bool = False,
    ) -> tuple[Sandbox | None, AcquireSource]:
        """Return a running sandbox and its source; None if the session was over: start over.

        With `has_none`, the session was opened just now and has no sandbox yet.

        Callers for one sandbox in this process run one after the other: the first acts and the rest
        find it done. Between replicas the rows ensure that.
        """
        lock = self._locks.setdefault(session.home, asyncio.Lock())
        async with lock:
            sandbox = None
            if not has_none:
                sandbox = await self._store.sandboxes.find_by_owner(session.owner)
            if sandbox is not None and sandbox.state is State.STARTING:
                sandbox = await self._await_creation(sandbox)
            return await self._carry_out(session, sandbox, request, actor=actor, began_at=began_at)

    async def wake(self, sandbox: Sandbox, *, actor: str) -> Sandbox:
        """Return the sandbox after a wake that was started here or joined; raise its failure."""
        wake = await self._wakes.start(sandbox.id, actor=actor)
        wake = await self._wakes.wait(wake, within_s=WAIT_S)
        failure = get_failure(wake)
        if failure is not None:
            raise failure
        return await self._store.sandboxes.get(sandbox.id)

    async def discard(self, sandbox: Sandbox, *, actor: str) -> None:
        """End a sandbox after a failed health check, if the provider can be asked about it."""
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

    async def _carry_out(
        self,
        session: Session,
        sandbox: Sandbox | None,
        request: AcquireRequest,
        *,
        actor: str,
        began_at: datetime,
    ) -> tuple[Sandbox | None, AcquireSource]:
        decision = decide_acquire(session, sandbox, began_at=began_at)
        if sandbox is None or isinstance(decision, Create):
            return await self._make(session, request, actor=actor)
        match decision:
            case Reuse():
                return sandbox, AcquireSource.REUSED
            case WakeExisting():
                return await self.wake(sandbox, actor=actor), AcquireSource.WOKEN
            case Replace():
                return await self.wake(sandbox, actor=actor), AcquireSource.REPLACED
            case StartOver():
                await self._cleaner.close(session, actor=actor)
                return None, AcquireSource.CREATED
            case RefuseAcquire(reason):
                raise ProviderRefusedError(reason, sandbox_id=sandbox.id)
            case AwaitCreation():
                # Its creation was answered a moment ago, and another one has started since.
                return None, AcquireSource.CREATED
            case _:
                assert_never(decision)

    async def _make(
        self, session: Session, request: AcquireRequest, *, actor: str
    ) -> tuple[Sandbox | None, AcquireSource]:
        """Take a fitting member from the pool, or create a sandbox."""
        launch, policy = self._launch(session, request), self._policy(session, request)
        # A pool member was started without a user's variables, in the default region.
        if not request.env and launch.region is None:
            member = await self._pools.claim(
                launch.template or "", owner=session.owner, launch=launch, policy=policy
            )
            if member is not None:
                return await self._usage_histories.load(session, member), AcquireSource.POOL
        made = await self._creation.create_new(
            session.owner, launch=launch, policy=policy, actor=actor
        )
        sandbox = made.sandbox
        if sandbox.state is State.STARTING:
            sandbox = await self._await_creation(sandbox)
        if made.is_new:
            sandbox = await self._usage_histories.load(session, sandbox)
        return (sandbox if sandbox.state is State.RUNNING else None), (
            AcquireSource.CREATED if made.is_new else AcquireSource.REUSED
        )

    async def _await_creation(self, sandbox: Sandbox) -> Sandbox:
        """Return the record once its creation has been answered."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + WAIT_S
        while sandbox.state is State.STARTING:
            if loop.time() >= ends:
                raise SandboxBusyError(
                    "The sandbox is still being created.", sandbox_id=sandbox.id, retry_after_s=5
                )
            await asyncio.sleep(POLL_INTERVAL_S)
            sandbox = await self._store.sandboxes.get(sandbox.id)
        return sandbox

    def _launch(self, session: Session, request: AcquireRequest) -> Launch:
        profile = self._profiles[session.kind]
        return Launch(
            template=request.template or profile.template,
            env={**profile.env, **request.env},
            metadata={
                **request.metadata,
                "session_kind": session.kind.value,
                "session_user": session.user_id,
            },
            region=request.region,
            tenant=request.tenant,
        )

    def _policy(self, session: Session, request: AcquireRequest) -> Policy:
        profile = self._profiles[session.kind]
        policy = make_policy(
            idle_timeout_s=session.idle_timeout_s,
            lifetime_s=profile.lifetime_s,
            on_idle=request.on_idle or IdleAction(self._settings.session_on_idle),
            asleep_s=self._settings.session_asleep_s,
        )
        wanted = request.is_adaptive
        if not (profile.is_adaptive if wanted is None else wanted):
            return policy
        return replace(policy, idle_min_s=profile.idle_min_s, idle_max_s=profile.idle_max_s)
