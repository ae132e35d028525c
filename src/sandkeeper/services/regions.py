"""Which provider a sandbox lives at: one per region, the first one the default."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandkeeper.domain.errors import InvalidRequestError, SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sandkeeper.domain.sandbox import Sandbox
    from sandkeeper.providers.base import Provider


class Regions:
    """The configured providers. A sandbox stays where it was created."""

    def __init__(self, providers: Sequence[Provider]) -> None:
        if not providers:
            raise SettingsError("At least one provider is needed.")
        self._providers = tuple(providers)

    def __iter__(self) -> Iterator[Provider]:
        return iter(self._providers)

    def choose(self, region: str | None) -> Provider:
        """The provider for a new sandbox: the named region's, or the default one."""
        if region is None:
            return self._providers[0]
        for provider in self._providers:
            if provider.region == region:
                return provider
        known = ", ".join(provider.region for provider in self._providers)
        raise InvalidRequestError(f"There is no region {region!r}; there are: {known}.")

    def get(self, sandbox: Sandbox) -> Provider:
        """The provider that has this sandbox; one that is configured no more is an error."""
        for provider in self._providers:
            if provider.name == sandbox.provider and sandbox.region in (None, provider.region):
                return provider
        raise SettingsError(
            "The provider of this sandbox is not configured.",
            provider=sandbox.provider,
            region=sandbox.region,
        )
