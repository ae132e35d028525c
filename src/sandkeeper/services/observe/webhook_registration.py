"""Register, list, change and remove the webhook at the provider; create and store its secret.

The secret is created once and shared by all replicas through the store. It is sent to the provider
when the webhook is registered, and never shown again.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Final

import structlog

from sandkeeper.domain.errors import InvalidRequestError
from sandkeeper.providers.base import Provider, Webhook, WebhookDelivery
from sandkeeper.providers.features import ProviderFeature
from sandkeeper.services.deps import Deps
from sandkeeper.services.monitoring.provider_features import ProviderFeatures

log = structlog.get_logger(__name__)

SECRET: Final = "webhook.secret"  # noqa: S105 - The name of the fact, not the secret.
PATH: Final = "/api/webhooks/e2b"


class WebhookRegistration:
    """Manage one webhook of this keeper at each provider."""

    def __init__(self, deps: Deps, features: ProviderFeatures) -> None:
        self._store = deps.store
        self._providers = deps.providers
        self._features = features
        self._clock = deps.clock
        self._secret: str | None = None

    async def secret(self) -> str:
        """Return the secret of our webhooks, created on first use and shared by all replicas."""
        if self._secret is None:
            made = secrets.token_urlsafe(32)
            held = await self._store.key_values.put_new(SECRET, made, now=self._clock())
            self._secret = str(held)
        return self._secret

    async def build_test_delivery(self) -> WebhookDelivery:
        """Return a delivery signed with our secret, about a sandbox that does not exist."""
        provider = next(iter(self._providers))
        return provider.build_test_delivery(at=self._clock(), secret=await self.secret())

    async def register(self, public_url: str) -> list[Webhook]:
        """Ensure one enabled webhook to this address at every provider; safe to repeat.

        A provider that is known to have none is left out.
        """
        url = _target(public_url)
        secret = await self.secret()
        return [
            await self._register(provider, url, secret)
            for provider in self._providers
            if not self._features.lacks(provider, ProviderFeature.WEBHOOKS)
        ]

    async def list(self) -> list[Webhook]:
        """Return this keeper's webhooks at all providers."""
        found: list[Webhook] = []
        for provider in self._providers:
            found += await self._find(provider)
        return found

    async def unregister(self) -> int:
        """Remove this keeper's webhooks and return how many there were."""
        removed = 0
        for provider in self._providers:
            for webhook in await self._find(provider):
                removed += await provider.delete_webhook(webhook.webhook_id)
        return removed

    async def _register(self, provider: Provider, url: str, secret: str) -> Webhook:
        known = await self._find(provider)
        for surplus in known[1:]:
            await provider.delete_webhook(surplus.webhook_id)
        if known:
            webhook = await provider.update_webhook(
                known[0].webhook_id, url=url, secret=secret, enabled=True
            )
        else:
            webhook = await provider.create_webhook(name=_name(provider), url=url, secret=secret)
        log.info("webhook_registered", provider=provider.name, region=provider.region, url=url)
        return webhook

    async def _find(self, provider: Provider) -> Sequence[Webhook]:
        name = _name(provider)
        return [one for one in await provider.list_webhooks() if one.name == name]


def _name(provider: Provider) -> str:
    """Return the name that separates our webhook from others on the same account."""
    return f"sandkeeper-{provider.keeper}"


def _target(public_url: str) -> str:
    if not public_url.startswith(("http://", "https://")):
        raise InvalidRequestError("The public URL must begin with http:// or https://.")
    base = public_url.rstrip("/")
    return base if base.endswith(PATH) else base + PATH
