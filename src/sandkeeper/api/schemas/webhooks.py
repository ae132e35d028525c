"""Schemas of the provider's webhooks: deliveries and registrations."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import StringConstraints

from sandkeeper.api.schemas.base import ApiModel, RequestModel


class WebhookRequest(RequestModel):
    """Where the provider should send its events; empty means the configured public URL."""

    url: Annotated[str, StringConstraints(max_length=2048)] = ""


class DeliveryOut(ApiModel):
    """One webhook delivery as it came in."""

    delivery_id: str | None
    event_id: str | None
    type: str | None
    instance_id: str | None
    received_at: datetime
    outcome: str
    lag_ms: int | None
    detail: str | None


class DeliveryPage(ApiModel):
    items: list[DeliveryOut]
    next_cursor: str | None


class WebhookReceipt(ApiModel):
    """What became of a delivery."""

    outcome: str
    event_id: str | None
    sandbox_id: str | None


class RegistrationOut(ApiModel):
    """A webhook at the provider."""

    id: str
    name: str
    url: str
    enabled: bool
    events: list[str]


class Registrations(ApiModel):
    items: list[RegistrationOut]
