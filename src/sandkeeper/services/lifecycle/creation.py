"""Creation: one sandbox per owner, however many requests arrive and whichever process crashes.

The record is written first, STARTING and claimed, and the instance carries the record's id and
generation in its metadata from the start. So a crash at any point can be repaired: `finish` asks
the provider what exists under this name, adopts the oldest instance, and creates one only if there
is none. Two instances for one record cannot both be adopted, because the record accepts one; the
other is a leak, which the reconciler removes.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Protocol

import structlog

from sandkeeper.domain.clock import to_ms
from sandkeeper.domain.decisions.idle import find_next_check_at
from sandkeeper.domain.errors import (
    SandboxExistsError,
    SandkeeperError,
    StoreUnavailableError,
)
from sandkeeper.domain.events import SandboxCreated
from sandkeeper.domain.observe.observation import Source
from sandkeeper.domain.owner import Owner
from sandkeeper.domain.policy import Launch, Policy
from sandkeeper.domain.sandbox import ClaimKind, Sandbox
from sandkeeper.domain.states import KilledReason, State
from sandkeeper.domain.tenant import find_tenant
from sandkeeper.providers.base import Instance
from sandkeeper.providers.observations import observe_instance
from sandkeeper.services.capacity.line import Line
from sandkeeper.services.costs.budgets import Budgets
from sandkeeper.services.deps import Deps
from sandkeeper.services.lifecycle.claims import Claims, without_claim
from sandkeeper.services.lifecycle.instances import DEFINITIVE, InstanceFactory
from sandkeeper.services.lifecycle.lost_creations import find_instances, mark_creation_failed
from sandkeeper.services.observe.observations import Observations

log = structlog.get_logger(__name__)

# A creation without an answer is abandoned after this time. Longer keeps a page waiting for
# nothing; shorter gives up during a provider outage of only a quarter of an hour.
GIVE_UP_S = 900.0


@dataclass(frozen=True, slots=True)
class Created:
    """The owner's sandbox, and whether this call created its record."""

    sandbox: Sandbox
    is_new: bool


class AppStarter(Protocol):
    """Start what belongs in a new sandbox: its files and its app."""

    async def start_new(self, sandbox: Sandbox) -> None: ...


class Creation:
    """Create sandboxes. `starter` then restores the owner's files and starts the app."""

    def __init__(
        self,
        deps: Deps,
        claims: Claims,
        observations: Observations,
        instances: InstanceFactory,
        starter: AppStarter,
        budgets: Budgets,
        line: Line,
    ) -> None:
        self._line = line
        self._store = deps.store
        self._claims = claims
        self._providers = deps.providers
        self._observations = observations
        self._instances = instances
        self._metrics = deps.metrics
        self._clock = deps.clock
        self._tenant_key = deps.settings.tenant_metadata
        self._starter = starter
        self._budgets = budgets
        self._under_way: set[asyncio.Task[Sandbox]] = set()

    async def create(self, owner: Owner, *, launch: Launch, policy: Policy, actor: str) -> Created:
        """Return the owner's sandbox; create it if there is none. Return an ended one as it is.

        The creation continues if the caller disconnects. After a temporary failure the record stays
        STARTING and the sweep retries; after a permanent one the record is KILLED. Both raise here.
        """
        existing = await self._store.sandboxes.find_by_owner(owner)
        if existing is not None:
            return Created(existing, is_new=False)
        return await self.create_new(owner, launch=launch, policy=policy, actor=actor)

    async def create_new(
        self, owner: Owner, *, launch: Launch, policy: Policy, actor: str
    ) -> Created:
        """Create the sandbox of an owner that had none a moment ago, as `create` does.

        If another caller was faster, return its sandbox. Where not all can run, it waits for a slot
        first, before there is a record.
        """
        owner.check_name()
        sandbox = self._draft(owner, launch, policy, actor)
        self._budgets.check_new(sandbox.tenant)
        await self._line.admit_new(sandbox)
        sandbox = self._date(sandbox)
        event = SandboxCreated(
            sandbox_id=sandbox.id,
            owner=owner,
            at=sandbox.created_at,
            actor=actor,
            reason=sandbox.reason,
            generation=sandbox.generation,
        )
        try:
            held = await self._store.sandboxes.insert(sandbox, [event])
        except SandboxExistsError:
            await self._line.give_back(sandbox)
            return Created(await self._store.sandboxes.get_by_owner(owner), is_new=False)
        except (StoreUnavailableError, asyncio.CancelledError):
            # The record may have been written all the same; then the sweep creates its instance.
            assert sandbox.claim is not None
            self._claims.release_later(sandbox.claim.holder, sandbox.id)
            raise
        task = asyncio.create_task(self._create(held, actor=actor))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return Created(await asyncio.shield(task), is_new=True)

    async def finish(self, held: Sandbox) -> Sandbox:
        """Complete a creation that was never answered: adopt, create, or give up."""
        provider = self._providers.get(held)
        found = await self._claims.run_within_lease(held, find_instances(provider, held))
        if found:
            reason = "found by its metadata"
            return await self._record(held, found[0], reason, held.actor, source=Source.LIST)
        now = self._clock()
        if now - held.state_since > timedelta(seconds=GIVE_UP_S):
            return await self._give_up(held, "the provider did not answer", held.actor)
        return await self._create(held, actor=held.actor)

    async def wait(self) -> None:
        """Wait for the creations in progress."""
        await asyncio.gather(*self._under_way, return_exceptions=True)

    def _draft(self, owner: Owner, launch: Launch, policy: Policy, actor: str) -> Sandbox:
        now = to_ms(self._clock())
        wanted = launch.region.split(",") if launch.region else ()
        provider = self._providers.choose(*wanted)
        return Sandbox(
            id=f"sb-{secrets.token_hex(8)}",
            owner=owner,
            provider=provider.name,
            region=provider.region,
            created_at=now,
            updated_at=now,
            state_since=now,
            launch=launch,
            policy=policy,
            tenant=find_tenant(launch, metadata_key=self._tenant_key),
            reason="creation was asked for",
            actor=actor,
        )

    def _date(self, draft: Sandbox) -> Sandbox:
        """Return the record as it is written now: it may have waited for its slot."""
        now = to_ms(self._clock())
        claim = self._claims.new_claim(ClaimKind.CREATE)
        sandbox = replace(draft, created_at=now, updated_at=now, state_since=now, claim=claim)
        return sandbox.evolve(next_check_at=find_next_check_at(sandbox))

    async def _create(self, held: Sandbox, *, actor: str) -> Sandbox:
        started = time.monotonic()
        outcome = "failed"
        try:
            instance = await self._claims.run_within_lease(held, self._instances.create(held))
            created = await self._record(held, instance, held.reason, actor)
            outcome = "ok"
        except DEFINITIVE as error:
            outcome = error.code
            await self._give_up(held, f"{error.message} {error.hint}", actor)
            raise
        except SandkeeperError as error:
            outcome = error.code
            await self._claims.postpone(held, error, operation="create", actor=actor)
            raise
        finally:
            self._metrics.operation_duration.labels("create", outcome).observe(
                time.monotonic() - started
            )
        await self._starter.start_new(created)
        return created

    async def _record(
        self,
        held: Sandbox,
        instance: Instance,
        reason: str,
        actor: str,
        *,
        source: Source = Source.REPLY,
    ) -> Sandbox:
        seen = replace(
            observe_instance(instance, source=source),
            sandbox_id=held.id,
            generation=held.generation,
            reason=reason,
            actor=actor,
        )

        def finish(sandbox: Sandbox) -> Sandbox:
            # Without a port there is nothing to wait for.
            waits = sandbox.state is not State.RUNNING or sandbox.launch.port is not None
            return without_claim(sandbox, held).evolve(ready=sandbox.run.ready or not waits)

        recorded = await self._observations.record(seen, finish=finish, known=held)
        return recorded.sandbox or held

    async def _give_up(self, held: Sandbox, reason: str, actor: str) -> Sandbox:
        log.warning("creation_failed", sandbox_id=held.id, reason=reason)
        return await mark_creation_failed(
            self._store,
            held,
            now=to_ms(self._clock()),
            actor=actor,
            reason=reason,
            killed_reason=KilledReason.CREATION_FAILED,
        )
