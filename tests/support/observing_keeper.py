"""The services that take in observations, with the simulated provider and a movable clock."""

from __future__ import annotations

import uuid
from dataclasses import replace

from sandkeeper.domain.observe.observation import Source
from sandkeeper.domain.owner import Owner
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.providers.base import (
    CreateSpec,
    Instance,
    LifecycleEvent,
    OwnershipMetadata,
    Provider,
)
from sandkeeper.providers.e2b.signature import sign
from sandkeeper.providers.observations import observe_instance
from sandkeeper.services.composition import Services
from sandkeeper.store import Store
from sandkeeper.testing.providers import SimulatedProvider
from support.deps import MovableClock, make_deps
from support.signed_webhooks import render_event


class ObservingKeeper(Services):
    """The shipped services over a simulated provider, with a movable clock."""

    def __init__(self, store: Store, provider: SimulatedProvider) -> None:
        self.store = store
        self.provider = provider
        self.clock = MovableClock()
        self.use(provider)

    def use(self, *providers: Provider, **settings: str) -> None:
        """Build the services over these providers."""
        deps = make_deps(
            self.store,
            *providers,
            clock=self.clock,
            replica="replica-1",
            leaks_removed_per_hour=2,
            **settings,
        )
        super().__init__(replace(deps, keeper_id=self.provider.keeper))
        self.metrics = deps.metrics

    def spec(self, sandbox: Sandbox) -> CreateSpec:
        tag = OwnershipMetadata(
            self.provider.keeper,
            sandbox.id,
            sandbox.owner.kind.value,
            sandbox.owner.id,
            sandbox.generation,
        )
        return CreateSpec(tag=tag, template="base", timeout_s=600)

    async def write_down(self, name: str = "shop") -> Sandbox:
        """A record whose creation has begun."""
        now = self.clock()
        return await self.store.sandboxes.insert(
            Sandbox(
                id=uuid.uuid4().hex,
                owner=Owner.project(name),
                provider=self.provider.name,
                region=self.provider.region,
                created_at=now,
                updated_at=now,
                state_since=now,
            )
        )

    async def launch(self, name: str = "shop") -> Sandbox:
        """A running sandbox, recorded as the lifecycle records it."""
        sandbox = await self.write_down(name)
        instance = await self.provider.create(self.spec(sandbox))
        return await self.recorded(instance)

    async def recorded(self, instance: Instance) -> Sandbox:
        seen = observe_instance(instance, source=Source.REPLY)
        saved = (await self.observations.record(seen)).sandbox
        assert saved is not None
        return saved

    async def read(self, sandbox: Sandbox) -> Sandbox:
        return await self.store.sandboxes.get(sandbox.id)

    async def deliver(self, event: LifecycleEvent, **changes: object) -> str:
        """Send an event as E2B's webhook would; gives the outcome."""
        body = render_event(event, **changes)
        return (await self.webhooks.receive(body, await self.headers(body))).outcome

    async def headers(self, body: bytes) -> dict[str, str]:
        return {
            "e2b-delivery-id": uuid.uuid4().hex,
            "e2b-signature": sign(await self.webhook_registration.secret(), body),
        }
