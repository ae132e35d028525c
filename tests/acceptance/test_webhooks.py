"""Webhooks: registered at the real engine, delivered by it, and refused when they are not its."""

from __future__ import annotations

from datetime import UTC, datetime

import httpx
import pytest

from support.eventually import eventually_sync
from support.keeper_process import Keeper
from support.signed_webhooks import PATH, make_event, read_secret, send, sign


@pytest.fixture
def secret(keeper: Keeper, api: httpx.Client) -> str:
    return read_secret(keeper, api)


def test_a_kill_at_the_provider_arrives_by_webhook(
    keeper: Keeper, api: httpx.Client, project: str
) -> None:
    registered = api.post("/api/webhooks", json={"url": keeper.url})
    assert registered.status_code == 200, registered.text
    try:
        assert [one["url"] for one in api.get("/api/webhooks").json()["items"]] == [
            f"{keeper.url}{PATH}"
        ]
        made = api.put(f"/api/sandboxes/{project}", json={}).json()
        with keeper.engine_client() as engine:
            engine.delete(f"/sandboxes/{made['instanceId']}")
        path = f"/api/sandboxes/{project}/status"
        eventually_sync(lambda: api.get(path).json()["status"] == "KILLED", within_s=60)
        inbox = eventually_sync(
            lambda: [
                one
                for one in api.get("/api/fleet/deliveries").json()["items"]
                if one["instanceId"] == made["instanceId"]
                and one["type"] == "sandbox.lifecycle.killed"
            ]
        )
        assert inbox[0]["lagMs"] is not None
    finally:
        assert api.delete("/api/webhooks").json()["items"]
    assert api.get("/api/webhooks").json()["items"] == []


@pytest.mark.parametrize("url_safe", [False, True])
def test_a_right_signature_is_believed_in_both_alphabets_and_once(
    api: httpx.Client, project: str, secret: str, url_safe: bool
) -> None:
    made = api.put(f"/api/sandboxes/{project}", json={}).json()
    body = make_event(made["instanceId"])
    first = send(api, body, sign(secret, body, url_safe=url_safe))
    assert (first.status_code, first.json()["outcome"]) == (200, "changed")
    again = send(api, body, sign(secret, body, url_safe=url_safe))
    assert (again.status_code, again.json()["outcome"]) == (200, "duplicate")
    # The next reconciliation finds the instance alive; the history keeps what the event said.
    history = api.get(f"/api/sandboxes/{project}/history").json()["items"]
    assert any(one["toState"] == "KILLED" for one in history), history


def post(api: httpx.Client, secret: str, instance_id: str, kind: str, timestamp: str) -> None:
    """Deliver a signed event that tells what did not happen."""
    body = make_event(
        instance_id,
        id=f"{kind}-{instance_id}",
        type=f"sandbox.lifecycle.{kind}",
        timestamp=timestamp,
    )
    answer = send(api, body, sign(secret, body))
    assert (answer.status_code, answer.json()["outcome"]) == (200, "changed")


@pytest.mark.parametrize("way", ["reconcile", "verify", "wake"])
def test_a_wrong_kill_event_costs_nothing(
    keeper: Keeper, api: httpx.Client, project: str, secret: str, way: str
) -> None:
    instance_id = api.put(f"/api/sandboxes/{project}", json={}).json()["instanceId"]
    path = f"/api/sandboxes/{project}"
    post(api, secret, instance_id, "killed", datetime.now(UTC).isoformat())
    if way == "reconcile":
        api.post("/api/fleet/reconcile", json={})
    else:
        api.post(f"{path}/{way}")
    status = eventually_sync(
        lambda: (found := api.get(f"{path}/status").json())["status"] == "RUNNING" and found
    )
    assert status["instanceId"] == instance_id
    with keeper.engine_client() as engine:
        assert engine.get(f"/sandboxes/{instance_id}").json()["state"] == "running"
    reasons = [one["reason"] for one in api.get(f"{path}/history").json()["items"]]
    assert any("contradicts its end" in reason for reason in reasons)
    listed = api.get("/api/fleet/leaks").json()["items"]
    assert instance_id not in [one["instanceId"] for one in listed]


@pytest.mark.parametrize("kind", ["resumed", "paused", "killed"])
def test_an_event_of_the_year_2999_is_counted_and_verify_corrects_it(
    api: httpx.Client, project: str, secret: str, kind: str
) -> None:
    instance_id = api.put(f"/api/sandboxes/{project}", json={}).json()["instanceId"]
    counted = count_ahead(api)
    post(api, secret, instance_id, kind, "2999-01-01T00:00:00Z")
    assert count_ahead(api) == counted + 1
    status = api.post(f"/api/sandboxes/{project}/verify").json()
    assert (status["status"], status["instanceId"]) == ("RUNNING", instance_id)
    assert not str(status["asOf"]).startswith("2999")


def count_ahead(api: httpx.Client) -> float:
    lines = api.get("/metrics").text.splitlines()
    found = [line for line in lines if line.startswith("sandkeeper_events_ahead_total{")]
    return sum(float(line.rpartition(" ")[2]) for line in found)


def test_the_inbox_is_read_page_by_page(api: httpx.Client, secret: str, project: str) -> None:
    sent = [f"{project}-{number}" for number in range(5)]
    for event_id in sent:
        body = make_event("unknown-instance", id=event_id)
        assert send(api, body, sign(secret, body)).json()["outcome"] == "unknown"
    found: list[str] = []
    asked: dict[str, str | int] = {"limit": 2}
    while sent[0] not in found:
        page = api.get("/api/fleet/deliveries", params=asked).json()
        found += [one["eventId"] for one in page["items"]]
        asked["cursor"] = page["nextCursor"]
    assert found == sent[::-1] + found[5:]
    assert api.get("/api/fleet/deliveries", params={"cursor": "nonsense"}).status_code == 422


def test_a_wrong_signature_changes_nothing(api: httpx.Client, project: str, secret: str) -> None:
    made = api.put(f"/api/sandboxes/{project}", json={}).json()
    body = make_event(made["instanceId"])
    for signature in ("", "nonsense", sign("other", body), sign(secret, body + b" ")):
        answer = send(api, body, signature)
        assert (answer.status_code, answer.json()["code"]) == (401, "invalid_signature")
    tampered = body.replace(b"killed", b"paused")
    assert send(api, tampered, sign(secret, body)).status_code == 401
    status = api.post(f"/api/sandboxes/{project}/verify").json()
    assert status["status"] == "RUNNING"


def test_signed_deliveries_that_cannot_be_used_have_distinct_outcomes(
    api: httpx.Client, project: str, secret: str
) -> None:
    body = b"this is not JSON"
    assert send(api, body, sign(secret, body)).status_code == 422
    body = make_event(f"unknown{project}", id=f"unknown-{project}")
    assert send(api, body, sign(secret, body)).json()["outcome"] == "unknown"
    body = make_event(f"unknown{project}", id=f"odd-{project}", type="sandbox.lifecycle.sang")
    assert send(api, body, sign(secret, body)).json()["outcome"] == "ignored"
    body = b"x" * 5_000_000
    assert send(api, body, sign(secret, body)).status_code == 413
