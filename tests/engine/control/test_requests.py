"""Requests that are wrong: each gets a clear error in E2B's shape, and nothing else happens."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from support.engine_process import Engine

MISSING_ID = "i00000000000000000000"


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({}, "templateID"),
        ({"templateID": 7}, "templateID"),
        ({"templateID": "base", "timeout": "60"}, "timeout"),
        ({"templateID": "base", "timeout": 0}, "Timeout must be greater than 0"),
        ({"templateID": "base", "timeout": -1}, "Timeout must be greater than 0"),
        ({"templateID": "base", "timeout": 86401}, "Timeout cannot be greater than 24 hours"),
        ({"templateID": "base", "timeout": 10**30}, "timeout"),
        ({"templateID": "base", "metadata": {"a": 1}}, "metadata.a"),
        ({"templateID": "base", "envVars": {"a=b": "1"}}, "envVars"),
        ({"templateID": "base", "envVars": {"a": "\0"}}, "envVars"),
        ({"templateID": "base", "autoPauseMemory": False}, "autoPauseMemory"),
        ({"templateID": "base", "mcp": {"exa": {}}}, "mcp"),
        ({"templateID": "base", "iam": {"tokens": {}}}, "iam"),
        ({"templateID": "base", "volumeMounts": [{"name": "v", "path": "/v"}]}, "volumeMounts"),
        ({"templateID": "base", "network": {"egressProxy": {"address": "a"}}}, "egressProxy"),
        ({"templateID": "base", "network": {"rules": {"a": []}}}, "rules"),
        ({"templateID": "base", "flyToTheMoon": True}, "flyToTheMoon"),
        ([], "body"),
    ],
)
def test_a_creation_that_cannot_be_kept_is_refused_by_name(
    engine: Engine, body: Any, named: str
) -> None:
    with engine.client() as api:
        answer = api.post("/v2/sandboxes", json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["code"] == 400
    assert named in answer.json()["message"]


def test_bodies_that_do_not_belong_are_refused(engine: Engine) -> None:
    with engine.client() as api:
        for raw in (b"{", b"\xff\xfe", b'{"templateID":', b"[" * 100_000):
            assert api.post("/v2/sandboxes", content=raw).status_code == 400
        large = b'{"templateID": "' + b"x" * (10 << 20) + b'"}'
        assert api.post("/v2/sandboxes", content=large).status_code == 413
        assert api.post(f"/sandboxes/{MISSING_ID}/pause", content=large).status_code == 413
        assert api.get("/health").status_code == 200


def test_what_is_not_there_is_not_found(engine: Engine) -> None:
    body = {"timeout": 60}
    with engine.client() as api:
        assert api.get(f"/sandboxes/{MISSING_ID}").json() == {
            "code": 404,
            "message": f"Sandbox \"{MISSING_ID}\" doesn't exist or you don't have access to it",
        }
        for path in ("pause", "connect", "resume", "timeout", "refreshes", "snapshots", "fork"):
            sent = body if path in ("connect", "timeout") else {}
            answer = api.post(f"/sandboxes/{MISSING_ID}/{path}", json=sent)
            assert answer.status_code == 404, path
        assert api.delete(f"/sandboxes/{MISSING_ID}").status_code == 404
        assert api.put(f"/sandboxes/{MISSING_ID}/network", json={}).status_code == 404
        for path in ("metrics", "logs"):
            assert api.get(f"/sandboxes/{MISSING_ID}/{path}").status_code == 404
        for path in ("/sandboxes/../../etc/passwd", "/nothing", "/templates/none", "/v9/sandboxes"):
            assert api.get(path).status_code == 404
        assert api.post("/v2/sandboxes", json={"templateID": "no-such"}).status_code == 404
        assert api.get("/templates/aliases/..%2F..%2Fetc").status_code == 404
        assert api.request("PATCH", "/v2/sandboxes").status_code == 405


def test_only_the_key_opens_the_control_plane(engine: Engine) -> None:
    for headers in ({}, {"X-API-KEY": "e2b_00"}, {"Authorization": "Bearer e2b_00"}):
        answer = httpx.get(f"{engine.url}/v2/sandboxes", headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (401, 401)
    bearer = {"Authorization": f"Bearer {engine.key}"}
    assert httpx.get(f"{engine.url}/v2/sandboxes", headers=bearer).status_code == 200
    assert httpx.get(f"{engine.url}/health").status_code == 200
    assert (engine.data / "engine.key").stat().st_mode & 0o777 == 0o600
    assert (engine.data / "ledger.sqlite").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "headers",
    [
        {"E2b-Sandbox-Id": MISSING_ID},
        {"E2b-Sandbox-Port": "49983"},
        {"E2b-Sandbox-Id": MISSING_ID, "E2b-Sandbox-Port": "0"},
        {"E2b-Sandbox-Id": MISSING_ID, "E2b-Sandbox-Port": "65536"},
        {"E2b-Sandbox-Id": MISSING_ID, "E2b-Sandbox-Port": "http"},
        {"E2b-Sandbox-Id": "../../x", "E2b-Sandbox-Port": "80"},
        {"E2b-Sandbox-Id": "", "E2b-Sandbox-Port": "80"},
    ],
)
def test_a_request_that_half_names_a_sandbox_is_refused(
    engine: Engine, headers: dict[str, str]
) -> None:
    answer = httpx.get(f"{engine.url}/", headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (400, 400)


@pytest.mark.parametrize(
    "query",
    [
        {"limit": "0"},
        {"limit": "101"},
        {"limit": "x"},
        {"state": "sleeping"},
        {"order": "random"},
        {"nextToken": "@@"},
        {"startedAfter": "yesterday"},
        {"metadata": "noequals"},
    ],
)
def test_a_list_that_makes_no_sense_is_refused(engine: Engine, query: dict[str, str]) -> None:
    with engine.client() as api:
        answer = api.get("/v2/sandboxes", params=query)
    assert answer.status_code == 400, answer.text


@pytest.mark.parametrize(
    "change",
    [
        {"url": "file:///etc/passwd"},
        {"url": "nonsense"},
        {"events": []},
        {"events": ["sandbox.lifecycle.forked"]},
        {"signatureSecret": ""},
        {"name": ""},
        {"extra": 1},
    ],
)
def test_a_webhook_that_could_not_work_is_refused(engine: Engine, change: dict[str, Any]) -> None:
    body = {
        "name": "hook",
        "url": "http://127.0.0.1:9/",
        "events": ["sandbox.lifecycle.created"],
        "signatureSecret": "s",
    }
    with engine.client() as api:
        answer = api.post("/events/webhooks", json={**body, **change})
    assert answer.status_code == 400, answer.text


def test_old_sdks_are_understood_by_the_path_and_by_the_token(engine: Engine) -> None:
    """Before 2.26, calls of the control plane carry envd's headers, and `connect` forgets them."""
    with engine.client() as api:
        body = {"templateID": "base", "timeout": 60, "secure": True}
        made = api.post("/sandboxes", json=body).json()
        path = f"/sandboxes/{made['sandboxID']}"
        envd = {"E2b-Sandbox-Id": made["sandboxID"], "E2b-Sandbox-Port": "49983"}
        app = {**envd, "E2b-Sandbox-Port": "3000"}
        token = {"X-Access-Token": made["envdAccessToken"]}

        assert api.get(path, headers=envd).json()["sandboxID"] == made["sandboxID"]
        assert api.get("/health", headers=envd).status_code == 204, "that is envd's"
        assert api.get(path, headers=app).status_code == 502, "an app's paths are its own"
        assert httpx.get(f"{engine.url}{path}", headers=envd).status_code == 401
        assert httpx.get(f"{engine.url}/health", headers=token).status_code == 204
        read = httpx.get(f"{engine.url}/files?path=/etc/hostname", headers=token)
        assert (read.status_code, read.text) == (200, "e2b.local\n")
        assert api.delete(path, headers={**envd, **token}).status_code == 204
        assert httpx.get(f"{engine.url}/files?path=/x", headers=token).status_code == 400
