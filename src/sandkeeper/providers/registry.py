"""Which provider a sandbox lives at: one per region, the first one the default."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from sandkeeper.domain.errors import InvalidRequestError, SettingsError
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.providers.base import Provider


class ProviderRegistry:
    """The configured providers. A sandbox stays where it was created, whatever happens there."""

    def __init__(
        self,
        providers: Sequence[Provider],
        rests: Callable[[Provider], bool] = lambda _provider: False,
    ) -> None:
        if not providers:
            raise SettingsError("At least one provider is needed.")
        self._providers = tuple(providers)
        self._rests = rests

    def __iter__(self) -> Iterator[Provider]:
        return iter(self._providers)

    def choose(self, *wanted: str) -> Provider:
        """The provider for a new sandbox: the first wanted region's whose breaker is closed.

        Without a wish it is the first of all. Where every wanted one rests it is the one wanted
        most, so that the sandbox comes into being there when it is back.
        """
        if not wanted:
            return self._providers[0]
        known = {provider.region: provider for provider in self._providers}
        for region in wanted:
            if region not in known:
                raise InvalidRequestError(
                    f"There is no region {region!r}; there are: {', '.join(known)}."
                )
        ordered = [known[region] for region in wanted]
        return next((one for one in ordered if not self._rests(one)), ordered[0])

    def is_unavailable(self, sandbox: Sandbox) -> bool:
        """True while the sandbox's provider is left alone because it failed too often."""
        return self._rests(self.get(sandbox))

    def get(self, sandbox: Sandbox) -> Provider:
        """The provider that has this sandbox; one that is configured no more is an error."""
        found = self.find(sandbox)
        if found is None:
            raise SettingsError(
                "The provider of this sandbox is not configured.",
                provider=sandbox.provider,
                region=sandbox.region,
            )
        return found

    def find(self, sandbox: Sandbox) -> Provider | None:
        """The provider that has this sandbox; None if it is configured no more."""
        for provider in self._providers:
            if provider.name == sandbox.provider and sandbox.region in (None, provider.region):
                return provider
        return None
