"""Webhook deliveries as E2B sends them, signed with the secret of a running keeper."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

import httpx

from sandkeeper.providers.base import LifecycleEvent
from sandkeeper.providers.e2b.metadata import render_metadata
from support.keeper_process import Keeper

PATH = "/api/webhooks/e2b"


def read_secret(keeper: Keeper, api: httpx.Client) -> str:
    """Return the secret that keeper and provider share; no route returns it, the database does."""
    api.post("/api/webhooks/test")
    return str(keeper.read_fact("webhook.secret"))


def sign(secret: str, body: bytes, *, url_safe: bool = False) -> str:
    digest = hashlib.sha256(secret.encode() + body).digest()
    encode = base64.urlsafe_b64encode if url_safe else base64.b64encode
    return encode(digest).rstrip(b"=").decode()


def render_event(event: LifecycleEvent, **changes: Any) -> bytes:
    """Return an event as the body of E2B's webhook."""
    data: dict[str, Any] = {"sandbox_metadata": render_metadata(event.tag) if event.tag else {}}
    if event.kill_reason:
        data["kill_reason"] = event.kill_reason
    body = {
        "id": event.event_id,
        "version": "v2",
        "type": event.kind.value,
        "timestamp": event.at.isoformat(),
        "event_data": data,
        "sandbox_id": event.instance_id,
        "sandbox_execution_id": event.run_id,
    }
    return json.dumps(body | changes).encode()


def make_event(instance_id: str, **changes: Any) -> bytes:
    body = {
        "version": "v2",
        "id": f"event-{instance_id}",
        "type": "sandbox.lifecycle.killed",
        "timestamp": "2030-01-01T00:00:00Z",
        "sandbox_id": instance_id,
        "event_data": {},
    }
    return json.dumps(body | changes).encode()


def send(api: httpx.Client, body: bytes, signature: str) -> httpx.Response:
    headers = {"e2b-signature": signature, "e2b-delivery-id": "a-delivery"}
    return api.post(PATH, content=body, headers={**headers, "Authorization": ""})
