"""Snippets of the design for event-driven lifecycle management: webhook, status and polling."""

from __future__ import annotations

import subprocess
from typing import Any

import httpx
import pytest

from support.databases import on_both_databases
from support.eventually import eventually_sync
from support.keeper_process import Keeper
from support.signed_webhooks import make_event, read_secret

pytestmark = on_both_databases

# Status → seconds between two polls; None waits for the user.
POLLING = {"RUNNING": 30, "PAUSED": None, "STARTING": 5}

STATUS_FIELDS = (
    "status",
    "sandboxUrl",
    "lastActiveAt",
    "idleTimeoutMs",
    "lifecycleTimeoutMs",
    "expiresAt",
    "recreated",
    "lastWebhookReceivedAt",
    "pausedByScheduler",
)

# "Concatenate webhook secret with raw JSON payload string; compute SHA-256; encode as URL-safe
# Base64 (replace + with -, / with _, remove =)", in the shell.
SIGN = r"""
printf '%s%s' "$SECRET" "$BODY" | openssl dgst -sha256 -binary | base64 -w0 \
  | tr '+/' '-_' | tr -d '='
"""


def create(api: httpx.Client, project: str) -> dict[str, Any]:
    made = api.put(f"/api/sandboxes/{project}", json={})
    assert made.status_code == 201, made.text
    status: dict[str, Any] = made.json()
    return status


def deliver(keeper: Keeper, api: httpx.Client, body: bytes) -> httpx.Response:
    variables = {"SECRET": read_secret(keeper, api), "BODY": body.decode(), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        ["bash", "-c", SIGN], env=variables, capture_output=True, text=True, check=True
    )
    headers = {"e2b-signature": done.stdout, "e2b-delivery-id": "d-1", "Authorization": ""}
    return api.post("/api/webhooks/e2b", content=body, headers=headers)


def test_the_status_has_every_field_of_the_contract_and_its_defaults(
    api: httpx.Client, project: str
) -> None:
    status = create(api, project)
    assert set(STATUS_FIELDS) <= set(status)
    assert (status["idleTimeoutMs"], status["lifecycleTimeoutMs"]) == (180_000, 3_600_000)
    assert (status["recreated"], status["lastWebhookReceivedAt"]) == (False, None)


def test_the_polling_table(api: httpx.Client) -> None:
    states = api.get("/api/presentation").json()["states"]
    for state, seconds in POLLING.items():
        wanted = None if seconds is None else seconds * 1000
        assert states[state]["pollAfterMs"] == wanted


def test_a_webhook_signed_in_the_shell_is_believed_and_shown_in_the_status(
    keeper: Keeper, api: httpx.Client, project: str
) -> None:
    made = create(api, project)
    body = make_event(made["instanceId"], type="sandbox.lifecycle.paused")
    assert deliver(keeper, api, body).status_code == 200
    path = f"/api/sandboxes/{project}/status"
    assert eventually_sync(lambda: api.get(path).json()["lastWebhookReceivedAt"])
    refused = api.post(
        "/api/webhooks/e2b", content=body, headers={"e2b-signature": "x", "Authorization": ""}
    )
    assert refused.status_code == 401


@pytest.mark.parametrize(
    ("reason", "state"),
    [
        ("request", "KILLED"),
        ("timeout", "EXPIRED"),
        ("shutdown", "TERMINATED"),
        ("evicted", "TERMINATED"),
    ],
)
def test_each_reason_of_a_kill_becomes_its_state(
    keeper: Keeper, api: httpx.Client, project: str, reason: str, state: str
) -> None:
    made = create(api, project)
    event = make_event(made["instanceId"], event_data={"kill_reason": reason})
    answer = deliver(keeper, api, event)
    assert answer.status_code == 200
    path = f"/api/sandboxes/{project}/status"
    assert eventually_sync(lambda: api.get(path).json()["status"] == state), api.get(path).text


EVENTS = {
    "sandbox.lifecycle.created": "RUNNING",
    "sandbox.lifecycle.paused": "PAUSED",
    "sandbox.lifecycle.resumed": "RUNNING",
    "sandbox.lifecycle.updated": "RUNNING",
    "sandbox.lifecycle.killed": "KILLED",
}


@pytest.mark.parametrize(("kind", "state"), EVENTS.items())
def test_each_event_of_the_table_is_accepted_once_and_twice(
    keeper: Keeper, api: httpx.Client, project: str, kind: str, state: str
) -> None:
    made = create(api, project)
    path = f"/api/sandboxes/{project}/status"
    instance = made["instanceId"]
    with keeper.engine_client() as engine:
        if kind.endswith("paused"):
            engine.post(f"/sandboxes/{instance}/pause")
        if kind.endswith("killed"):
            engine.delete(f"/sandboxes/{instance}")
    body = make_event(instance, type=kind)
    for _ in range(2):
        assert deliver(keeper, api, body).status_code == 200
    assert eventually_sync(lambda: api.get(path).json()["lastWebhookReceivedAt"])
    assert eventually_sync(lambda: api.get(path).json()["status"] == state), api.get(path).text
    assert api.get(path).json()["project"] == project, "the record of a killed one is kept"


def test_a_wake_in_progress_is_polled_every_two_seconds_and_offers_no_action(
    api: httpx.Client,
) -> None:
    waking = api.get("/api/presentation").json()["waking"]
    assert (waking["label"], waking["icon"]) == ("Waking sandbox...", "spinner")
    assert (waking["pollAfterMs"], waking["actions"]) == (2000, [])


def test_the_stream_of_a_project_has_the_documents_address(api: httpx.Client, project: str) -> None:
    create(api, project)
    with api.stream("GET", f"/api/sandboxes/{project}/events") as stream:
        assert stream.status_code == 200
        assert stream.headers["content-type"].startswith("text/event-stream")
