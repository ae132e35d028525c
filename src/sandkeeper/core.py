"""What exists before any service: settings, metrics, the store, and the providers it speaks to."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from sandkeeper.domain.breaker import Breaker, BreakerState
from sandkeeper.providers.base import Provider
from sandkeeper.providers.e2b.provider import E2BConnection, E2BProvider
from sandkeeper.providers.rate_limit import RateLimiter
from sandkeeper.providers.registry import ProviderRegistry
from sandkeeper.settings import Region, Settings
from sandkeeper.store import Store
from sandkeeper.telemetry import Metrics

BREAKER_GAUGE = {BreakerState.CLOSED: 0, BreakerState.HALF_OPEN: 1, BreakerState.OPEN: 2}


@dataclass(frozen=True, slots=True)
class Core:
    """What exists before any service: settings, clock, metrics, store, providers."""

    settings: Settings
    metrics: Metrics
    store: Store
    regions: ProviderRegistry
    breakers: Mapping[str, Breaker]
    keeper: str

    @staticmethod
    def clock() -> datetime:
        return datetime.now(UTC)


def name_replica() -> str:
    """A name for this process that no other ever has."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"


def provider_connections(settings: Settings) -> dict[str, E2BConnection]:
    """The configured regions; without any, the one that E2B's own variables name."""
    if not settings.regions:
        return {"default": E2BConnection(request_timeout_s=settings.request_timeout_s)}
    return {
        name: E2BConnection(
            api_key=region.api_key.get_secret_value() if region.api_key else None,
            api_url=region.api_url,
            sandbox_url=region.sandbox_url,
            domain=region.domain,
            preview_url=region.preview_url,
            request_timeout_s=settings.request_timeout_s,
        )
        for name, region in settings.regions.items()
    }


async def make_core(
    settings: Settings, metrics: Metrics, store: Store, connections: Mapping[str, E2BConnection]
) -> Core:
    keeper = await store.key_values.put_new("keeper.id", secrets.token_hex(6), now=Core.clock())
    breakers: dict[str, Breaker] = {}
    providers: list[E2BProvider] = []
    for region, connection in connections.items():
        own = settings.regions.get(region, Region())
        breakers[region] = Breaker(
            failures_max=settings.breaker_failures, open_s=settings.breaker_open_s
        )
        providers.append(
            E2BProvider(
                connection,
                keeper=str(keeper),
                breaker=breakers[region],
                pace=RateLimiter(
                    concurrency_max=own.concurrency or settings.provider_concurrency,
                    creates_per_s=own.creations_per_s or settings.creations_per_s,
                ),
                region=region,
                on_call=_count_calls(metrics),
            )
        )

    def rests(provider: Provider) -> bool:
        return breakers[provider.region].state(Core.clock()) is not BreakerState.CLOSED

    return Core(settings, metrics, store, ProviderRegistry(providers, rests), breakers, str(keeper))


def _count_calls(metrics: Metrics) -> Callable[[str, str, float], None]:
    def count(operation: str, code: str, duration_s: float) -> None:
        metrics.provider_requests.labels(operation, code).inc()
        metrics.provider_duration.labels(operation).observe(duration_s)

    return count


def find_resting(core: Core) -> list[str]:
    """The regions whose breaker is open; its gauge is set on the way."""
    now = core.clock()
    resting: list[str] = []
    for provider in core.regions:
        state = core.breakers[provider.region].state(now)
        core.metrics.breaker_state.labels(provider.name, provider.region).set(BREAKER_GAUGE[state])
        if state is BreakerState.OPEN:
            resting.append(f"{provider.name}/{provider.region}")
    return resting
