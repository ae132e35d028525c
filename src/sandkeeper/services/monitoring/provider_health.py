"""Whether each provider answers, asked by this process at short intervals.

The words of every sandbox change when its provider falls silent, and again when it is back; no page
has to be open for that. One lost answer is no outage: a provider counts as down after a second one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime

import structlog

from sandkeeper.domain.errors import ProviderError
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.providers.base import Provider
from sandkeeper.services.deps import Deps

log = structlog.get_logger(__name__)

# Time between two questions, and how long one waits. Together they bound how long a dead provider
# is not noticed: two questions, 30 s. Shorter ones cost the provider more requests.
CHECK_PERIOD_S = 10.0
CHECK_TIMEOUT_S = 5.0
FAILURES_MAX = 2

OnChange = Callable[[], Awaitable[None]]


class ProviderHealth:
    """Since when each provider has been silent, as far as this process knows."""

    def __init__(self, deps: Deps) -> None:
        self._providers = deps.providers
        self._metrics = deps.metrics
        self._clock = deps.clock
        self._failures: dict[Provider, int] = {}
        self._failing_since: dict[Provider, datetime] = {}
        self._listeners: list[OnChange] = []
        for provider in self._providers:
            self._show(provider)

    def on_change(self, listener: OnChange) -> None:
        """Await `listener` whenever a provider falls silent or answers again."""
        self._listeners.append(listener)

    def find_down_since(self, sandbox: Sandbox) -> datetime | None:
        """Return since when the sandbox's provider does not answer; None while it does."""
        provider = self._providers.find(sandbox) if self._failing_since else None
        return None if provider is None else self._find_down_since(provider)

    def list_down(self) -> dict[str, datetime]:
        """Return the providers that do not answer, by name and region, and since when."""
        found = {
            f"{provider.name}/{provider.region}": self._find_down_since(provider)
            for provider in self._providers
        }
        return {name: since for name, since in found.items() if since is not None}

    async def check(self) -> dict[str, int]:
        """Ask every provider once."""
        before = self.list_down()
        await asyncio.gather(*(self._check_one(provider) for provider in self._providers))
        after = self.list_down()
        if after != before:
            for listener in self._listeners:
                await listener()
        return {"down": len(after)}

    async def _check_one(self, provider: Provider) -> None:
        asked_at = self._clock()
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                await provider.list_instances(limit=1)
        except (ProviderError, TimeoutError) as error:
            self._failing_since.setdefault(provider, asked_at)
            count = self._failures[provider] = self._failures.get(provider, 0) + 1
            if count == FAILURES_MAX:
                log.warning("provider_unreachable", region=provider.region, error=repr(error))
        else:
            since = self._failing_since.pop(provider, None)
            if self._failures.pop(provider, 0) >= FAILURES_MAX and since is not None:
                log.info("provider_back", region=provider.region, since=since.isoformat())
        self._show(provider)

    def _find_down_since(self, provider: Provider) -> datetime | None:
        is_down = self._failures.get(provider, 0) >= FAILURES_MAX
        return self._failing_since.get(provider) if is_down else None

    def _show(self, provider: Provider) -> None:
        is_down = self._find_down_since(provider) is not None
        self._metrics.provider_up.labels(provider.name, provider.region).set(not is_down)
