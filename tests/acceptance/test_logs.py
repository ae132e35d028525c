"""Every log line of a real keeper that is about a sandbox says whose it is and who asked."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2b import Sandbox

from support.engine_process import Engine
from support.eventually import eventually_sync
from support.keeper_process import Keeper

OWNERS = {"project", "job", "session", "pool"}


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    running = Engine(tmp_path / "engine").start()
    yield running
    running.restart()
    running.kill_all()
    running.stop()


@pytest.fixture
def keeper(tmp_path: Path, engine: Engine) -> Iterator[Keeper]:
    quick = {"newborn_grace_s": 0, "woken_grace_s": 0, "reconcile_period_s": 1, "sweep_period_s": 1}
    running = Keeper(tmp_path / "keeper", engine=engine, app_watch_period_s=1, **quick).start()
    yield running
    running.stop()


def list_lines(keeper: Keeper) -> list[dict[str, Any]]:
    return [json.loads(line) for line in keeper.output.splitlines() if line.startswith("{")]


def live_through(keeper: Keeper, engine: Engine, client: httpx.Client) -> dict[str, str]:
    """Use everything once; return the request ids of some calls by what they did."""
    used: dict[str, str] = {}

    def call(name: str, method: str, path: str, **options: Any) -> dict[str, Any]:
        answer = client.request(method, path, **options)
        used[name] = answer.headers["x-request-id"]
        return answer.json() if answer.content else {}

    idle = {"idleTimeoutMs": 2000}
    body = {"port": 8000, "startCommand": "python3 -m http.server 8000", "policy": idle}
    call("create", "PUT", "/api/sandboxes/shop", json=body)
    eventually_sync(lambda: client.get("/api/sandboxes/shop/status").json()["status"] == "PAUSED")
    call("wake", "POST", "/api/sandboxes/shop/wake", params={"wait": 30})
    crashing = {"port": 8000, "startCommand": "exit 3"}
    call("crash", "PUT", "/api/sandboxes/crash", json=crashing)
    eventually_sync(lambda: client.get("/api/sandboxes/crash/status").json()["app"] == "crashed")
    call("job", "POST", "/api/jobs", json={"job_id": "j1", "port": 8000})
    asked = {"userId": "ann", "taskId": "t1", "kind": "execution"}
    session = call("acquire", "POST", "/api/sessions/acquire", json=asked)
    call("close", "DELETE", f"/api/sessions/{session['id']}")
    outside = call("outside", "PUT", "/api/sandboxes/outside", json={})
    Sandbox.kill(outside["instanceId"], **engine.sdk_options())
    eventually_sync(lambda: client.get("/api/sandboxes/outside/status").json()["killedAt"])
    call("missing", "GET", "/api/sandboxes/nothing/status")
    call("malformed", "PUT", "/api/sandboxes/shop", json={"port": "x"})
    call("conflict", "POST", "/api/sandboxes/outside/pause")
    engine.kill9()
    for _ in range(3):
        call("verify", "POST", "/api/sandboxes/shop/verify")
    call("kill", "DELETE", "/api/sandboxes/crash")
    return used


def test_every_line_about_a_sandbox_names_its_owner_and_its_request(
    keeper: Keeper, engine: Engine
) -> None:
    with keeper.client() as client:
        used = live_through(keeper, engine, client)
        instances = {one["instanceId"] for one in client.get("/api/sandboxes").json()["items"]} - {
            None
        }
    lines = list_lines(keeper)
    about = [one for one in lines if "sandbox_id" in one or one.get("instance_id") in instances]
    assert len(about) > 10
    assert [one for one in about if not OWNERS & one.keys()] == []
    assert [one for one in lines if "session" in one and "session_key" not in one] == []
    assert {one["session_key"] for one in lines if "session_key" in one} == {"ann:t1"}

    by_request: dict[str, list[dict[str, Any]]] = {}
    for one in lines:
        by_request.setdefault(one.get("request_id", ""), []).append(one)
    for name, status in (("missing", 404), ("malformed", 422), ("conflict", 409)):
        told = [one for one in by_request[used[name]] if one["action"] == "request_error"]
        assert [(one["status"], "project" in one) for one in told] == [(status, True)], name
    # What a request began and others finish is named after it too.
    assert any(one["action"] == "state_changed" for one in by_request[used["wake"]])
    assert any(one["action"] == "state_changed" for one in by_request[used["create"]])

    repeated = Counter(
        (one["action"], one.get("sandbox_id"), one.get("code"), one.get("error"))
        for one in lines
        if one["level"] in ("warning", "error")
    )
    assert [fact for fact, count in repeated.items() if count > 2] == []
