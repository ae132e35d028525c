"""Build the configured providers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime

from sandkeeper.domain.breaker import Breaker
from sandkeeper.providers.e2b.endpoint import E2BConnection
from sandkeeper.providers.e2b.provider import E2BProvider
from sandkeeper.providers.rate_limit import RateLimiter
from sandkeeper.providers.registry import ProviderRegistry
from sandkeeper.settings import Region, Settings
from sandkeeper.telemetry import Metrics


def read_connections(settings: Settings) -> dict[str, E2BConnection]:
    """Return the configured regions; without any, the one that E2B's own variables name."""
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


def make_providers(
    settings: Settings,
    connections: Mapping[str, E2BConnection],
    *,
    metrics: Metrics,
    clock: Callable[[], datetime],
    keeper_id: str,
) -> ProviderRegistry:
    """Return one provider per region, each with its own breaker and rate limit."""
    breakers: dict[str, Breaker] = {}
    providers: list[E2BProvider] = []
    for region, connection in connections.items():
        own = settings.regions.get(region, Region())
        breakers[region] = Breaker(
            failures_max=settings.breaker_failures, open_s=settings.breaker_open_s
        )
        rate_limiter = RateLimiter(
            concurrency_max=own.concurrency or settings.provider_concurrency,
            creates_per_s=own.creations_per_s or settings.creations_per_s,
        )
        providers.append(
            E2BProvider(
                connection,
                keeper=keeper_id,
                breaker=breakers[region],
                rate_limiter=rate_limiter,
                region=region,
                on_call=_count_calls(metrics),
                clock=clock,
            )
        )
    return ProviderRegistry(providers, breakers, clock=clock)


def _count_calls(metrics: Metrics) -> Callable[[str, str, float], None]:
    def count(operation: str, code: str, duration_s: float) -> None:
        metrics.provider_requests.labels(operation, code).inc()
        metrics.provider_duration.labels(operation).observe(duration_s)

    return count
