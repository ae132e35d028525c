"""Which provider a sandbox lives at: one per region, the first one the default."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime

from sandkeeper.domain.breaker import Breaker, BreakerState
from sandkeeper.domain.errors import InvalidRequestError, InvalidSettingsError
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.providers.base import Provider


class ProviderRegistry:
    """The configured providers. A sandbox stays where it was created, whatever happens there."""

    def __init__(
        self,
        providers: Sequence[Provider],
        breakers: Mapping[str, Breaker] | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        if not providers:
            raise InvalidSettingsError("At least one provider is needed.")
        self._providers = tuple(providers)
        self._breakers = breakers or {}
        self._clock = clock

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
        return next((one for one in ordered if self._is_closed(one)), ordered[0])

    def is_unavailable(self, sandbox: Sandbox) -> bool:
        """True while the sandbox's provider is left alone because it failed too often."""
        return not self._is_closed(self.get(sandbox))

    def breaker_states(self) -> dict[Provider, BreakerState]:
        """Return the state of each provider's breaker."""
        return {provider: self._breaker_state(provider) for provider in self._providers}

    def get(self, sandbox: Sandbox) -> Provider:
        """The provider that has this sandbox; one that is configured no more is an error."""
        found = self.find(sandbox)
        if found is None:
            raise InvalidSettingsError(
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

    def _is_closed(self, provider: Provider) -> bool:
        return self._breaker_state(provider) is BreakerState.CLOSED

    def _breaker_state(self, provider: Provider) -> BreakerState:
        breaker = self._breakers.get(provider.region)
        return BreakerState.CLOSED if breaker is None else breaker.state(self._clock())
