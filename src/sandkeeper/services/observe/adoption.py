"""Adoption: give an instance that exists at the provider a record of ours.

An adopted instance goes on as it is; only a time to live that would end it before our policy does
is moved out. An instance that we created names its record, owner and generation in its metadata.
One that another program created carries no mark of ours and never will, because metadata cannot be
changed: its record has generation 0 until a wake replaces it. Every adoption is one write; a second
one finds the record and changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import secrets
from dataclasses import dataclass, replace
from datetime import timedelta

import structlog

from sandkeeper.domain.clock import to_ms
from sandkeeper.domain.decisions.generation import reattach_instance
from sandkeeper.domain.errors import (
    InstanceGoneError,
    InstanceTakenError,
    InvalidRequestError,
    SandboxExistsError,
    SandkeeperError,
    VersionConflictError,
)
from sandkeeper.domain.events import SandboxCreated
from sandkeeper.domain.observe.observation import Observation, Source
from sandkeeper.domain.observe.transitions import StateChange, absorb
from sandkeeper.domain.owner import PROVIDER_ACTOR, Owner, OwnerKind
from sandkeeper.domain.policy import Launch, Policy
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import State
from sandkeeper.domain.tenant import find_tenant
from sandkeeper.providers.acting_claim import acting_for
from sandkeeper.providers.base import Instance, InstanceState, Provider
from sandkeeper.providers.observations import observe_instance
from sandkeeper.services.default_policy import make_default_policy
from sandkeeper.services.deps import Deps

log = structlog.get_logger(__name__)

TIMEOUT_MIN_S = 3600

# The provider's own end is moved this soon after the adoption or not at all: an operation may have
# set another one since.
WRITTEN_S = 10.0

# Adoptions by an event at once. Higher crowds out what users requested; lower leaves a burst of new
# instances to the reconciler.
UNDER_WAY_MAX = 32

PROJECT_ID = re.compile(r"[^/\x00-\x1f]{1,200}")

UNMARKED = 0
"""The generation of an instance that we did not create."""

#: A pooled sandbox may have been given to a session since: its metadata does not name its owner.
ADOPTABLE = frozenset({OwnerKind.PROJECT, OwnerKind.JOB, OwnerKind.SESSION})


@dataclass(frozen=True, slots=True)
class AdoptRequest:
    """Which instance an owner gets, and how it is kept. `from_keeper` is the keeper it had."""

    owner: Owner
    instance_id: str
    policy: Policy
    port: int | None = None
    start_command: str | None = None
    workdir: str | None = None
    region: str | None = None
    from_keeper: str | None = None
    tenant: str | None = None


@dataclass(frozen=True, slots=True)
class Adopted:
    """The owner's record, and whether this call made or revived it."""

    sandbox: Sandbox
    is_new: bool


class Adoption:
    """Adopt instances, on request or when the reconciler finds them."""

    def __init__(self, deps: Deps) -> None:
        self._store = deps.store
        self._providers = deps.providers
        self._settings = deps.settings
        self._clock = deps.clock
        self._under_way: set[asyncio.Task[None]] = set()

    async def adopt(self, request: AdoptRequest, *, actor: str, dry_run: bool = False) -> Adopted:
        """Record an instance as the owner's sandbox; return the record as it is or would be.

        Raise InstanceGoneError if no provider has the instance, InstanceTakenError if it is another
        record's or another keeper's, SandboxExistsError if the owner has a live sandbox.
        """
        request.owner.check_name()
        provider, instance = await self._find(request)
        holder = await self._store.sandboxes.find_by_instance(instance.instance_id)
        if holder is not None and holder.owner != request.owner:
            raise InstanceTakenError(f"It is the sandbox of {holder.owner}.")
        tag = instance.tag
        if tag is not None and tag.keeper not in (provider.keeper, request.from_keeper):
            raise InstanceTakenError(f"It carries the mark of the keeper {tag.keeper}.")
        known = await self._store.sandboxes.find_by_owner(request.owner)
        if known is not None and not known.state.is_ended:
            if known.instance_id == instance.instance_id:
                return Adopted(known, is_new=False)
            raise SandboxExistsError(owner=str(request.owner), state=known.state.value)
        launch = Launch(
            template=instance.template,
            metadata=_own_metadata(instance),
            port=request.port,
            start_command=request.start_command,
            workdir=request.workdir,
            region=request.region,
            tenant=request.tenant,
        )
        tenant = find_tenant(launch, metadata_key=self._settings.tenant_metadata)
        draft = self._draft(provider, instance, request.owner, launch, request.policy, actor)
        draft = draft.evolve(tenant=tenant)
        sandbox = (
            draft
            if known is None
            else known.evolve(launch=launch, policy=request.policy, tenant=tenant)
        )
        with acting_for(WRITTEN_S):
            made = await self._write(
                provider, instance, sandbox, is_known=bool(known), actor=actor, dry_run=dry_run
            )
            if not dry_run:
                await self._let_live(provider, instance, request.policy)
        return made

    async def adopt_marked(self, provider: Provider, instance: Instance) -> Sandbox | None:
        """Adopt an instance of ours whose record is missing; None if its owner has another one."""
        tag = instance.tag
        if tag is None or tag.owner_kind not in {kind.value for kind in ADOPTABLE}:
            return None
        owner = Owner(OwnerKind(tag.owner_kind), tag.owner_id)
        is_session = owner.kind is OwnerKind.SESSION
        if is_session and not await self._store.sessions.count_home(owner.id):
            # A sandbox of a session that is not there would be ended with what is in it.
            return None
        if await self._store.sandboxes.find_by_owner(owner) is not None:
            return None
        launch = Launch(template=instance.template, metadata=_own_metadata(instance))
        policy = make_default_policy(self._settings)
        draft = self._draft(provider, instance, owner, launch, policy, PROVIDER_ACTOR)
        # It was created by us, so what its metadata says was checked then.
        with contextlib.suppress(InvalidRequestError):
            key = self._settings.tenant_metadata
            draft = draft.evolve(tenant=find_tenant(launch, metadata_key=key))
        try:
            made = await self._write(
                provider, instance, draft, is_known=False, actor=PROVIDER_ACTOR, dry_run=False
            )
        except SandboxExistsError:
            return None
        return made.sandbox

    async def adopt_by_metadata(self, provider: Provider, instance: Instance) -> Sandbox | None:
        """Adopt another program's instance whose metadata names a project, if the setting says so.

        None if that is not so, or the project has a sandbox.
        """
        name = self._settings.adopt_by_metadata
        project = instance.metadata.get(name, "") if name else ""
        if not PROJECT_ID.fullmatch(project) or instance.tag is not None:
            return None
        request = AdoptRequest(
            owner=Owner.project(project),
            instance_id=instance.instance_id,
            policy=make_default_policy(self._settings),
            region=provider.region,
        )
        try:
            adopted = await self.adopt(request, actor=PROVIDER_ACTOR)
        except SandkeeperError as error:
            log.info("not_adopted", instance_id=instance.instance_id, reason=error.message)
            return None
        return adopted.sandbox

    def adopt_soon(self, instance_id: str) -> None:
        """Adopt a new, unknown instance by its metadata, behind the caller's back.

        Beyond the limit, and after a failure, the reconciler finds it.
        """
        if not self._settings.adopt_by_metadata or len(self._under_way) >= UNDER_WAY_MAX:
            return
        task = asyncio.create_task(self._get_and_adopt(instance_id))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _get_and_adopt(self, instance_id: str) -> None:
        for provider in self._providers:
            try:
                instance = await provider.get(instance_id)
            except SandkeeperError as error:
                log.info("not_adopted", instance_id=instance_id, reason=error.message)
                continue
            await self.adopt_by_metadata(provider, instance)
            return

    async def revive(self, sandbox: Sandbox, instance: Instance) -> bool:
        """Give an ended record a living instance of its own; False if it changed."""
        taken = reattach_instance(sandbox, observe_instance(instance, source=Source.LIST))
        try:
            await self._save(sandbox, taken)
        except VersionConflictError:
            return False
        return True

    async def _find(self, request: AdoptRequest) -> tuple[Provider, Instance]:
        """Return the instance and its provider: of the named region, or the first that has it."""
        wanted = [self._providers.choose(request.region)] if request.region else self._providers
        for provider in wanted:
            try:
                return provider, await provider.get(request.instance_id, port=request.port)
            except InstanceGoneError:
                continue
        raise InstanceGoneError("No provider has this instance.", instance_id=request.instance_id)

    async def _write(
        self,
        provider: Provider,
        instance: Instance,
        sandbox: Sandbox,
        *,
        is_known: bool,
        actor: str,
        dry_run: bool,
    ) -> Adopted:
        seen = _observe(provider, instance, sandbox, actor=actor)
        if is_known:
            change = reattach_instance(sandbox, seen)
        else:
            taken = absorb(sandbox.evolve(generation=seen.generation), seen)
            assert isinstance(taken, StateChange)
            created = SandboxCreated(
                sandbox_id=sandbox.id,
                owner=sandbox.owner,
                at=sandbox.created_at,
                actor=actor,
                reason=sandbox.reason,
                generation=taken.sandbox.generation,
            )
            change = StateChange(taken.sandbox, (created, *taken.events))
        ready = change.sandbox.state is State.RUNNING and change.sandbox.launch.port is None
        change = StateChange(change.sandbox.evolve(ready=ready), change.events)
        if dry_run:
            return Adopted(change.sandbox, is_new=True)
        if is_known:
            saved = await self._save(sandbox, change)
        else:
            saved = await self._store.sandboxes.insert(change.sandbox, change.events)
        log.info(
            "instance_adopted",
            instance_id=instance.instance_id,
            sandbox_id=saved.id,
            owner=str(saved.owner),
            actor=actor,
        )
        return Adopted(saved, is_new=True)

    async def _let_live(self, provider: Provider, instance: Instance, policy: Policy) -> None:
        """Move the provider's own end behind ours: it may kill at its end, we pause."""
        timeout_s = max(TIMEOUT_MIN_S, math.ceil(policy.lifetime_s or 0))
        wanted = self._clock() + timedelta(seconds=timeout_s)
        is_short = instance.end_at is not None and instance.end_at < wanted
        if instance.state is not InstanceState.RUNNING or not is_short:
            return
        try:
            await provider.set_timeout(instance.instance_id, timeout_s=timeout_s)
        except SandkeeperError as error:
            log.warning(
                "adopted_with_its_own_end", instance_id=instance.instance_id, error=str(error)
            )

    async def _save(self, before: Sandbox, change: StateChange) -> Sandbox:
        return await self._store.sandboxes.save(
            change.sandbox, change.events, expect_version=before.version, now=self._clock()
        )

    def _draft(
        self,
        provider: Provider,
        instance: Instance,
        owner: Owner,
        launch: Launch,
        policy: Policy,
        actor: str,
    ) -> Sandbox:
        now = to_ms(self._clock())
        tag = instance.tag
        is_ours = tag is not None and tag.keeper == provider.keeper
        return Sandbox(
            id=tag.sandbox_id if tag is not None and is_ours else f"sb-{secrets.token_hex(8)}",
            owner=owner,
            provider=provider.name,
            region=provider.region,
            created_at=now,
            updated_at=now,
            state_since=now,
            launch=launch,
            policy=policy,
            reason="adopted",
            actor=actor,
        )


def _observe(
    provider: Provider, instance: Instance, sandbox: Sandbox, *, actor: str
) -> Observation:
    """Return the instance as one of this record: of its own generation, or of none."""
    tag = instance.tag
    is_ours = tag is not None and tag.keeper == provider.keeper and tag.sandbox_id == sandbox.id
    return replace(
        observe_instance(instance, source=Source.GET),
        sandbox_id=sandbox.id,
        generation=tag.generation if tag is not None and is_ours else UNMARKED,
        actor=actor,
        reason="adopted",
    )


def _own_metadata(instance: Instance) -> dict[str, str]:
    """Return the metadata without our mark, which a new instance gets anyway."""
    return {
        name: value
        for name, value in instance.metadata.items()
        if not name.startswith("sandkeeper-")
    }
