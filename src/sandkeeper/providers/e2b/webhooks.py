"""E2B's webhook deliveries: check and parse them, and build one for a test."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from datetime import datetime
from typing import Final

import orjson

from sandkeeper.domain.errors import InvalidRequestError, InvalidSignatureError
from sandkeeper.providers.base import EventKind, LifecycleEvent, WebhookDelivery
from sandkeeper.providers.e2b.events import (
    MalformedEventError,
    UnknownEventTypeError,
    parse_event,
)
from sandkeeper.providers.e2b.signature import is_signature_valid, sign

SIGNATURE_HEADER: Final = "e2b-signature"
DELIVERY_ID_HEADER: Final = "e2b-delivery-id"


def parse_delivery(
    body: bytes, headers: Mapping[str, str], *, secret: str
) -> LifecycleEvent | None:
    """Return the event of a correctly signed delivery, None for an unknown type."""
    if not is_signature_valid(secret, body, headers.get(SIGNATURE_HEADER, "")):
        raise InvalidSignatureError
    try:
        return parse_event(orjson.loads(body))
    except UnknownEventTypeError:
        return None
    except (MalformedEventError, orjson.JSONDecodeError) as error:
        raise InvalidRequestError(f"The webhook cannot be read: {error}") from error


def build_test_delivery(*, at: datetime, secret: str) -> WebhookDelivery:
    """Return a signed delivery about a sandbox that does not exist."""
    payload = {
        "version": "v2",
        "id": f"test-{secrets.token_hex(8)}",
        "type": EventKind.UPDATED.value,
        "timestamp": at.isoformat(),
        "sandbox_id": f"test{secrets.token_hex(8)}",
        "event_data": {},
    }
    body = json.dumps(payload).encode()
    headers = {
        SIGNATURE_HEADER: sign(secret, body),
        DELIVERY_ID_HEADER: f"test-{secrets.token_hex(8)}",
    }
    return WebhookDelivery(body, headers)
