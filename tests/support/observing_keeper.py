"""The services that take in observations, with the simulated provider and a movable clock."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from sandkeeper.domain.observation import Source
from sandkeeper.domain.owner import Owner
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.providers.base import (
    CreateSpec,
    Instance,
    LifecycleEvent,
    OwnershipMetadata,
    Provider,
)
from sandkeeper.providers.e2b.metadata import render_metadata
from sandkeeper.providers.e2b.signature import sign
from sandkeeper.providers.registry import ProviderRegistry
from sandkeeper.services.lifecycle.verification import Verification
from sandkeeper.services.observe.event_polling import EventPolling
from sandkeeper.services.observe.leaks import LeakHandler
from sandkeeper.services.observe.observations import Observations, observe_instance
from sandkeeper.services.observe.reconciliation import Reconciliation
from sandkeeper.services.observe.webhook_registration import WebhookRegistration
from sandkeeper.services.observe.webhooks import WebhookReceiver
from sandkeeper.store import Store
from sandkeeper.telemetry import Metrics
from sandkeeper.testing.providers import SimulatedProvider


@dataclass
class Clock:
    """The real time, moved forward by `ahead`."""

    ahead: timedelta = timedelta()

    def __call__(self) -> datetime:
        return datetime.now(UTC) + self.ahead


@dataclass
class ObservingKeeper:
    """The services under test, wired as the product wires them."""

    store: Store
    provider: SimulatedProvider
    clock: Clock = field(default_factory=Clock)
    metrics: Metrics = field(default_factory=Metrics)

    def __post_init__(self) -> None:
        self.observations = Observations(self.store, metrics=self.metrics, clock=self.clock)
        self.use(self.provider)

    def use(self, *providers: Provider) -> None:
        """Wire the services to these providers."""
        self.regions = ProviderRegistry(providers)
        self.registration = WebhookRegistration(
            store=self.store, regions=self.regions, clock=self.clock
        )
        self.webhooks = WebhookReceiver(
            store=self.store,
            regions=self.regions,
            observations=self.observations,
            secret=self.registration.secret,
            metrics=self.metrics,
            clock=self.clock,
        )
        self.catch_up = EventPolling(
            store=self.store,
            regions=self.regions,
            observations=self.observations,
            clock=self.clock,
        )
        self.leaks = LeakHandler(
            store=self.store,
            metrics=self.metrics,
            clock=self.clock,
            replica="replica-1",
            removals_per_hour_max=2,
        )
        self.verification = Verification(
            store=self.store,
            regions=self.regions,
            observations=self.observations,
            clock=self.clock,
        )
        self.reconciliation = Reconciliation(
            store=self.store,
            regions=self.regions,
            observations=self.observations,
            leaks=self.leaks,
            metrics=self.metrics,
            clock=self.clock,
        )

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
        data: dict[str, object] = {
            "sandbox_metadata": render_metadata(event.tag) if event.tag else {}
        }
        if event.kill_reason:
            data["kill_reason"] = event.kill_reason
        body = json.dumps(
            {
                "id": event.event_id,
                "version": "v2",
                "type": event.kind.value,
                "timestamp": event.at.isoformat(),
                "event_data": data,
                "sandbox_id": event.instance_id,
                "sandbox_execution_id": event.run_id,
                **changes,
            }
        ).encode()
        return (await self.webhooks.receive(body, await self.headers(body))).outcome

    async def headers(self, body: bytes) -> dict[str, str]:
        return {
            "e2b-delivery-id": uuid.uuid4().hex,
            "e2b-signature": sign(await self.registration.secret(), body),
        }
