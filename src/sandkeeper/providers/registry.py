"""Select a sandbox's provider: one per region, the first one is the default."""

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
        """Return the provider for a new sandbox: the first wanted region whose breaker is closed.

        Without a wanted region it is the first of all. If the breakers of all wanted regions are
        open, it is the most wanted one, so that the sandbox is created there when the provider is
        back.
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
        """Return True while the sandbox's provider is not called because it failed too often."""
        return not self._is_closed(self.get(sandbox))

    def breaker_states(self) -> dict[Provider, BreakerState]:
        """Return the state of each provider's breaker."""
        return {provider: self._breaker_state(provider) for provider in self._providers}

    def count_answers(self, provider: Provider) -> int:
        """Return how often the provider has answered any call of this process."""
        breaker = self._breakers.get(provider.region)
        return 0 if breaker is None else breaker.answers

    def get(self, sandbox: Sandbox) -> Provider:
        """Return the provider that has this sandbox; raise if it is no longer configured."""
        found = self.find(sandbox)
        if found is None:
            raise InvalidSettingsError(
                "The provider of this sandbox is not configured.",
                provider=sandbox.provider,
                region=sandbox.region,
            )
        return found

    def find(self, sandbox: Sandbox) -> Provider | None:
        """Return the provider that has this sandbox; None if it is no longer configured."""
        for provider in self._providers:
            if provider.name == sandbox.provider and sandbox.region in (None, provider.region):
                return provider
        return None

    def _is_closed(self, provider: Provider) -> bool:
        return self._breaker_state(provider) is BreakerState.CLOSED

    def _breaker_state(self, provider: Provider) -> BreakerState:
        breaker = self._breakers.get(provider.region)
        return BreakerState.CLOSED if breaker is None else breaker.state(self._clock())
