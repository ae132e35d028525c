"""Events and webhooks: signed, retried, logged, and durable before they are told."""

from __future__ import annotations

import base64
import hashlib
import socket
from typing import Any

import httpx

from support.engine_process import Engine
from support.eventually import eventually_sync
from support.webhook_receiver import Receiver

ALL = [
    f"sandbox.lifecycle.{verb}"
    for verb in ("created", "paused", "resumed", "updated", "killed", "checkpointed")
]


def register(api: httpx.Client, url: str, **change: Any) -> dict[str, Any]:
    body = {"name": "hook", "url": url, "events": ALL, "signatureSecret": "secret", **change}
    answer = api.post("/events/webhooks", json=body)
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


def create(api: httpx.Client, **body: Any) -> str:
    answer = api.post("/v2/sandboxes", json={"templateID": "base", **body})
    return str(answer.json()["sandboxID"])


def test_a_whole_life_is_told_in_signed_deliveries(own_engine: Engine) -> None:
    with own_engine.client() as api, Receiver() as receiver:
        webhook = register(api, receiver.url)
        sandbox_id = create(api, metadata={"a": "b"})
        path = f"/sandboxes/{sandbox_id}"
        api.post(path + "/snapshots", json={})
        api.post(path + "/pause")
        api.post(path + "/connect", json={"timeout": 60})
        api.post(path + "/timeout", json={"timeout": 120})
        api.delete(path)
        eventually_sync(lambda: len(receiver.requests) >= 6)
        told = {body["type"].rpartition(".")[2]: body for body in receiver.bodies}
        assert set(told) == {t.rpartition(".")[2] for t in ALL}
        for headers, raw in receiver.requests:
            digest = hashlib.sha256(b"secret" + raw).digest()
            assert headers["e2b-signature"] == base64.b64encode(digest).decode().rstrip("=")
            assert headers["e2b-signature-version"] == "v1"
            assert headers["e2b-webhook-id"] == webhook["id"]
        assert len({h["e2b-delivery-id"] for h, _ in receiver.requests}) == 6
        created, killed = told["created"], told["killed"]
        assert created["version"] == "v2"
        assert created["sandbox_id"] == sandbox_id
        assert created["event_label"] == "create"
        assert created["event_data"] == {"sandbox_metadata": {"a": "b"}}
        assert killed["event_data"]["kill_reason"] == "request"
        assert killed["sandbox_execution_id"] != created["sandbox_execution_id"]
        assert "set_timeout" in told["updated"]["event_data"]
        events = api.get("/events/sandboxes", params={"limit": 100, "types": ALL[4]}).json()
        assert [event["id"] for event in events] == [killed["id"]]


def test_a_failed_delivery_is_tried_again_and_logged(own_engine: Engine) -> None:
    with own_engine.client() as api, Receiver(refusals=2) as receiver:
        webhook = register(api, receiver.url, events=[ALL[0]])
        sandbox_id = create(api)
        path = f"/events/webhooks/{webhook['id']}"

        def attempts() -> list[dict[str, Any]]:
            data = api.get(path + "/deliveries").json()["data"]
            return data[0]["attempts"] if data else []

        eventually_sync(lambda: len(attempts()) == 3)
        assert [one["status"] for one in attempts()] == ["failed", "failed", "success"]
        assert [one["responseHttpStatusCode"] for one in attempts()] == [500, 500, 200]
        assert attempts()[0]["errorClass"] == "http_error"
        assert attempts()[0]["sandboxId"] == sandbox_id
        assert "secret" not in str(attempts())
        assert len({body["id"] for body in receiver.bodies}) == 1
        stats = api.get(path + "/stats").json()
        assert (stats["total"], stats["failed"]) == (3, 2)
        failed = api.get(path + "/deliveries", params={"deliveryStatus": "success"}).json()
        assert len(failed["data"]) == 1


def test_a_dead_receiver_is_given_up_after_three_retries(own_engine: Engine) -> None:
    with own_engine.client() as api:
        with Receiver() as receiver:
            dead = receiver.url
        webhook = register(api, dead, events=[ALL[0]])
        create(api)
        path = f"/events/webhooks/{webhook['id']}/stats"
        eventually_sync(lambda: api.get(path).json()["failed"] == 4)
        with Receiver() as alive:
            register(api, alive.url, events=[ALL[0]])
            create(api)
            eventually_sync(lambda: alive.requests)
        assert api.get(path).json()["failed"] >= 4


def test_a_receiver_that_never_answers_delays_no_other(own_engine: Engine) -> None:
    never = socket.create_server(("127.0.0.1", 0))
    with never, own_engine.client() as api, Receiver() as receiver:
        sandbox_id = create(api, timeout=600)
        register(api, f"http://127.0.0.1:{never.getsockname()[1]}/never")
        register(api, receiver.url)
        for seconds in range(300, 340):
            api.post(f"/sandboxes/{sandbox_id}/timeout", json={"timeout": seconds})
        # The silent one holds each of its requests for ten seconds, so it is far from done by then.
        eventually_sync(lambda: len(receiver.requests) == 40)
        assert len({body["id"] for body in receiver.bodies}) == 40


def test_an_event_that_was_not_told_is_told_after_a_crash(own_engine: Engine) -> None:
    with Receiver() as receiver:
        port = receiver.port
    own_engine.options = ("--webhook-retry-s", "1")
    own_engine.restart()
    with own_engine.client() as api:
        register(api, f"http://127.0.0.1:{port}/hook", events=[ALL[0]])
        sandbox_id = create(api)
    own_engine.kill9()
    with Receiver(port=port) as receiver:
        own_engine.start()
        eventually_sync(lambda: receiver.requests)
        assert receiver.bodies[0]["sandbox_id"] == sandbox_id


def test_a_registration_is_changed_switched_off_and_removed(own_engine: Engine) -> None:
    with own_engine.client() as api, Receiver() as receiver:
        webhook = register(api, receiver.url)
        path = f"/events/webhooks/{webhook['id']}"
        assert "signatureSecret" not in webhook
        assert api.get("/events/webhooks").json() == [webhook]
        changed = api.patch(path, json={"enabled": False, "name": "other"}).json()
        assert changed == {**webhook, "enabled": False, "name": "other"}
        assert api.get(path).json() == changed
        first = create(api)
        api.patch(path, json={"enabled": True})
        second = create(api)
        eventually_sync(lambda: receiver.requests)
        assert [body["sandbox_id"] for body in receiver.bodies] == [second]
        assert first != second
        assert api.delete(path).status_code == 200
        assert api.get(path).status_code == 404
        assert api.delete(path).status_code == 404
