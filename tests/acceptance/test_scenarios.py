"""The test table of the design that this product began with, each row against the running product.

Waking is told in `test_wake.py`.
"""

from __future__ import annotations

import signal
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2b import Sandbox

from support.databases import on_both_databases
from support.engine_process import Engine
from support.eventually import eventually_sync
from support.keeper_process import Keeper, keeping

LIVE = {
    "status": "RUNNING",
    "label": "Live preview ready",
    "caption": "Sandboxes stay active for 1 hour with smart auto-pause.",
    "badge": "green",
    "actions": ["refresh", "copy_url", "open"],
    "pollAfterMs": 30_000,
}
KILLED = {
    "status": "KILLED",
    "label": "Sandbox not found",
    "caption": "Sandbox was terminated. Wake to create a new one with your files.",
    "badge": "red",
    "actions": ["wake", "refresh"],
    "pollAfterMs": None,
    "sandboxUrl": None,
}


def create(api: httpx.Client, project: str, **body: Any) -> dict[str, Any]:
    answer = api.put(f"/api/sandboxes/{project}", json=body)
    assert answer.status_code == 201, answer.text
    status: dict[str, Any] = answer.json()
    return status


def status_of(api: httpx.Client, project: str) -> dict[str, Any]:
    answer = api.get(f"/api/sandboxes/{project}/status")
    assert answer.status_code == 200, answer.text
    status: dict[str, Any] = answer.json()
    return status


def shows(status: dict[str, Any], expected: dict[str, Any]) -> bool:
    return all(status[name] == value for name, value in expected.items())


def kill_at_the_provider(keeper: Keeper, instance_id: str) -> None:
    with keeper.engine_client() as engine:
        assert engine.delete(f"/sandboxes/{instance_id}").status_code == 204


@on_both_databases
def test_normal_operation(api: httpx.Client, project: str) -> None:
    made = create(api, project, port=8000, startCommand="python3 -m http.server 8000")
    assert made["sandboxUrl"].startswith(f"http://8000-{made['instanceId']}.localhost:")
    eventually_sync(lambda: status_of(api, project)["ready"])
    assert shows(status_of(api, project), LIVE)
    again = api.put(f"/api/sandboxes/{project}", json={})
    assert again.status_code == 200
    assert again.json()["instanceId"] == made["instanceId"]


@on_both_databases
def test_a_manual_kill_is_found_by_the_next_verification_and_nothing_is_recreated(
    keeper: Keeper, api: httpx.Client, project: str
) -> None:
    made = create(api, project)
    kill_at_the_provider(keeper, made["instanceId"])
    verified = api.post(f"/api/sandboxes/{project}/verify")
    assert verified.status_code == 200
    assert shows(verified.json(), KILLED)
    for _ in range(5):
        assert shows(status_of(api, project), KILLED)
    assert status_of(api, project)["generation"] == 1
    names = [one["metadata"].get("sandkeeper-owner") for one in keeper.instances()]
    assert not any(project in str(name) for name in names)


@on_both_databases
def test_a_manual_kill_is_noticed_without_webhooks_and_without_asking(
    keeper: Keeper, api: httpx.Client, project: str
) -> None:
    made = create(api, project)
    kill_at_the_provider(keeper, made["instanceId"])
    status = eventually_sync(
        lambda: (seen := status_of(api, project))["status"] == "KILLED" and seen, within_s=60
    )
    assert shows(status, KILLED)
    assert status["killedReason"] in {"manual", "not_found"}
    assert status["killedAt"] is not None


@on_both_databases
def test_the_end_of_its_lifetime_makes_it_expired(api: httpx.Client, project: str) -> None:
    create(api, project, policy={"lifecycleTimeoutMs": 2000, "extendWhileInUse": False})
    status = eventually_sync(
        lambda: (seen := status_of(api, project))["status"] == "EXPIRED" and seen, within_s=60
    )
    assert status["label"] == "Sandbox expired"
    assert status["badge"] == "orange"
    assert status["actions"] == ["wake", "refresh"]


@on_both_databases
def test_an_idle_sandbox_is_paused_while_its_status_is_polled(
    keeper: Keeper, api: httpx.Client, project: str
) -> None:
    made = create(api, project, policy={"idleTimeoutMs": 2000})
    status = eventually_sync(
        lambda: (seen := status_of(api, project))["status"] == "PAUSED" and seen, within_s=60
    )
    assert shows(
        status,
        {
            "label": "Sandbox asleep",
            "caption": "Auto-paused after 2 seconds of inactivity. Wake it to continue.",
            "badge": "amber",
            "actions": ["wake", "refresh"],
            "pollAfterMs": None,
            "pausedByScheduler": True,
            "sandboxUrl": None,
        },
    )
    theirs = {one["sandboxID"]: one["state"] for one in keeper.instances()}
    assert theirs[made["instanceId"]] == "paused"
    explained = eventually_sync(
        lambda: (
            (told := api.get(f"/api/sandboxes/{project}/explain").json())["ignoredPassiveCount"]
            and told
        )
    )
    assert explained["ignoredPassiveSource"] == "operator"
    history = api.get(f"/api/sandboxes/{project}/history").json()["items"]
    moves = [(one["fromState"], one["toState"], one["actor"]) for one in history if one["toState"]]
    assert moves == [
        ("RUNNING", "PAUSED", "sandbox-idle-enforcer"),
        ("STARTING", "RUNNING", "operator"),
    ]


@on_both_databases
def test_activity_keeps_it_awake(api: httpx.Client, project: str) -> None:
    create(api, project, policy={"idleTimeoutMs": 3000})
    first = status_of(api, project)["sleepsAt"]
    for kind in ("intent", "work", "intent", "work"):
        answer = api.post(f"/api/sandboxes/{project}/activity", json={"kind": kind})
        assert answer.status_code == 202
    later = eventually_sync(
        lambda: (seen := status_of(api, project))["sleepsAt"] != first and seen, within_s=20
    )
    assert later["status"] == "RUNNING"
    assert later["sleepsAt"] > first
    assert later["lastActiveClass"] in {"intent", "work"}


def test_a_provider_out_of_reach_is_a_connection_issue_and_not_an_end(
    own_engine: Engine, tmp_path: Path, project: str
) -> None:
    """An engine that hangs is not taken for gone, and after it returns all is as it was."""
    with (
        keeping(tmp_path / "data", engine=own_engine, request_timeout_s=2) as keeper,
        keeper.client() as api,
    ):
        made = create(api, project)
        assert own_engine.process is not None
        own_engine.process.send_signal(signal.SIGSTOP)
        for _ in range(50):  # The provider hangs, and no status request waits for it.
            assert api.get(f"/api/sandboxes/{project}/status", timeout=5).status_code == 200
        own_engine.kill9()
        unknown = api.post(f"/api/sandboxes/{project}/verify").json()
        assert shows(
            unknown,
            {
                "status": "UNKNOWN",
                "label": "Connection issue",
                "caption": "Cannot verify sandbox status. Check your connection and try again.",
                "badge": "yellow",
                "actions": ["retry", "wake"],
            },
        )
        assert status_of(api, project)["verificationFailures"] >= 1
        own_engine.start()
        back = eventually_sync(
            lambda: (
                (seen := api.post(f"/api/sandboxes/{project}/verify").json())["status"] == "RUNNING"
                and seen
            ),
            within_s=90,
            every_s=0.5,
        )
        assert back["instanceId"] == made["instanceId"]
        assert back["generation"] == 1


@on_both_databases
@pytest.mark.parametrize("verb", ["pause", "verify", "extend", "history", "explain", "status"])
def test_a_project_without_a_sandbox_is_not_found(
    api: httpx.Client, project: str, verb: str
) -> None:
    method = "POST" if verb in {"pause", "verify", "extend"} else "GET"
    answer = api.request(
        method, f"/api/sandboxes/{project}/{verb}", json={} if verb == "extend" else None
    )
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["code"] == "sandbox_not_found"
    assert problem["hint"]
    assert problem["requestId"] == answer.headers["x-request-id"]


@on_both_databases
def test_a_crashed_app_is_called_crashed(api: httpx.Client, project: str) -> None:
    create(api, project, port=8000, startCommand="echo broken; exit 3")
    crashed = eventually_sync(
        lambda: status if (status := status_of(api, project))["app"] == "crashed" else None
    )
    assert crashed is not None
    assert (crashed["status"], crashed["ready"], crashed["badge"]) == ("RUNNING", False, "red")
    assert crashed["label"] == "App crashed (exit 3)"
    assert "restart" in crashed["actions"]


@on_both_databases
def test_an_app_that_stops_answering_is_not_ready_at_the_first_failed_probe(
    keeper: Keeper, api: httpx.Client, project: str
) -> None:
    create(api, project, port=8000, startCommand="exec python3 -m http.server 8000")
    eventually_sync(lambda: status_of(api, project)["ready"])
    made = status_of(api, project)
    sandbox = Sandbox.connect(made["instanceId"], **keeper.sdk_options())
    sandbox.commands.run("pkill -f '[h]ttp.server'")

    def watch() -> dict[str, Any] | None:
        """The status once a pass that began after the app's end has probed it."""
        api.post("/api/tasks/app-watch/run")
        status = status_of(api, project)
        return None if status["app"] == "answers" else status

    after = eventually_sync(watch)
    assert after is not None
    assert (after["ready"], after["app"], after["badge"]) == (False, "silent", "yellow")
    assert after["label"] == "App not responding"
    explained = keeper.run("explain", project).stdout
    assert explained.startswith(f"{project}: {after['label']}\n{after['caption']}\n")
    assert f"{project}: app started again, " in keeper.run("wake", project).stderr


@on_both_databases
def test_a_pause_on_request_and_a_kill_on_request_say_so(api: httpx.Client, project: str) -> None:
    create(api, project)
    paused = api.post(f"/api/sandboxes/{project}/pause").json()
    assert (paused["cause"], paused["caption"]) == (
        "on_request",
        "Paused on request. Wake it to continue.",
    )
    log = api.get(f"/api/sandboxes/{project}/log").json()
    assert log["note"] == "The sandbox is asleep. Its log can be read again when it runs."
    killed = api.delete(f"/api/sandboxes/{project}").json()
    assert (killed["cause"], killed["label"]) == ("on_request", "Sandbox killed")


@on_both_databases
def test_the_end_that_is_shown_is_the_providers_if_that_is_earlier(
    keeper: Keeper, api: httpx.Client, project: str
) -> None:
    made = create(api, project)
    sandbox = Sandbox.connect(made["instanceId"], **keeper.sdk_options())
    sandbox.set_timeout(60)

    def ends_in_s() -> float:
        api.post("/api/fleet/reconcile")
        ends = datetime.fromisoformat(status_of(api, project)["expiresAt"])
        return (ends - datetime.now(UTC)).total_seconds()

    eventually_sync(lambda: ends_in_s() < 61)
