"""Create the provider's instance of a sandbox record, exactly one per generation."""

from __future__ import annotations

from sandkeeper.domain.errors import (
    ProviderAmbiguousError,
    ProviderRefusedError,
    ProviderUnauthorizedError,
    ProviderUnavailableError,
    ProviderUnsupportedError,
)
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.providers.base import CreateSpec, Instance, OwnershipMetadata
from sandkeeper.services.capacity.slots import Slots
from sandkeeper.services.deps import Deps
from sandkeeper.services.lifecycle.lifecycle import compute_timeout_s
from sandkeeper.services.lifecycle.lost_creations import find_instances

# Errors that prove that no instance was created and none will be.
DEFINITIVE = (ProviderRefusedError, ProviderUnauthorizedError, ProviderUnsupportedError)


class InstanceFactory:
    """Create instances that carry the keeper's ownership metadata."""

    def __init__(self, deps: Deps, slots: Slots) -> None:
        self._slots = slots
        self._providers = deps.providers
        self._keeper_id = deps.keeper_id

    async def obtain(self, sandbox: Sandbox) -> Instance:
        """Return the instance of this generation: an existing one found by metadata, or a new one.

        For a wake that recreates: the record is STARTING and claimed, and the caller records the
        result.
        """
        found = await find_instances(self._providers.get(sandbox), sandbox)
        return found[0] if found else await self.create(sandbox)

    async def create(self, held: Sandbox) -> Instance:
        """Create an instance; if only the reply was lost, return the one that was created."""
        provider = self._providers.get(held)
        async with self._slots.hold(held):
            try:
                return await provider.create(self._spec(held))
            except (ProviderUnavailableError, ProviderAmbiguousError):
                found = await find_instances(provider, held)
                if not found:
                    raise
                return found[0]

    def _spec(self, sandbox: Sandbox) -> CreateSpec:
        launch = sandbox.launch
        return CreateSpec(
            tag=OwnershipMetadata(
                keeper=self._keeper_id,
                sandbox_id=sandbox.id,
                owner_kind=sandbox.owner.kind.value,
                owner_id=sandbox.owner.id,
                generation=sandbox.generation,
            ),
            template=launch.template_name,
            timeout_s=compute_timeout_s(sandbox),
            env=launch.env,
            metadata=launch.metadata,
            port=launch.port,
        )
