"""Routes about this keeper's webhook at the provider."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import Response

from sandkeeper.api.deps import ContextDep
from sandkeeper.api.responses import reply
from sandkeeper.api.schemas.webhooks import WebhookRequest
from sandkeeper.domain.errors import InvalidRequestError
from sandkeeper.providers.base import Webhook


async def list_all(context: ContextDep) -> Response:
    """List this keeper's registrations."""
    return reply(_render(await context.services.webhook_registration.list()))


async def register(body: WebhookRequest, context: ContextDep) -> Response:
    """Register this keeper's webhook at the provider; a second call changes nothing."""
    url = body.url or context.deps.settings.public_url
    if not url:
        raise InvalidRequestError("No URL was given, and no public URL is configured.")
    return reply(_render(await context.services.webhook_registration.register(url)))


async def unregister(context: ContextDep) -> Response:
    """Unregister this keeper's webhooks, and return what was removed."""
    known = await context.services.webhook_registration.list()
    await context.services.webhook_registration.unregister()
    return reply(_render(known))


async def test(context: ContextDep) -> Response:
    """Send a signed delivery of an unknown sandbox through the receiver, and return its outcome."""
    delivery = await context.services.webhook_registration.build_test_delivery()
    receipt = await context.services.webhooks.receive(delivery.body, delivery.headers)
    return reply(
        {
            "outcome": receipt.outcome,
            "eventId": receipt.event_id,
            "sandboxId": receipt.sandbox_id,
        }
    )


def _render(webhooks: Sequence[Webhook]) -> dict[str, Any]:
    return {
        "items": [
            {
                "id": one.webhook_id,
                "name": one.name,
                "url": one.url,
                "enabled": one.enabled,
                "events": list(one.events),
            }
            for one in webhooks
        ]
    }
