"""Wakes and jobs as people meet them: over HTTP and from the command line, with real apps."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.engine_process import Engine
from support.eventually import eventually_sync
from support.keeper_process import Keeper, keeping
from support.webhook_receiver import Receiver

APP = {
    "port": 8000,
    "startCommand": "python3 -m http.server 8000",
    "workdir": "/home/user/app",
}


def browse(keeper: Keeper, instance_id: str, path: str = "") -> str:
    """What a browser would see on the preview."""
    headers = {"E2b-Sandbox-Id": instance_id, "E2b-Sandbox-Port": "8000"}
    return httpx.get(f"{keeper.engine_url}/{path}", headers=headers, timeout=30).text


def read(api: httpx.Client, project: str) -> dict[str, Any]:
    status: dict[str, Any] = api.get(f"/api/sandboxes/{project}/status").json()
    return status


def put_page(api: httpx.Client, project: str, text: str) -> None:
    path = f"/api/sandboxes/{project}/files/index.html"
    headers = {"Content-Type": "application/octet-stream"}
    api.put(path, content=text.encode(), headers=headers).raise_for_status()


def test_an_idle_sandbox_sleeps_and_comes_back_with_its_app(
    keeper: Keeper, api: httpx.Client, project: str
) -> None:
    path = f"/api/sandboxes/{project}"
    assert api.get(f"{path}/wake").status_code == 404
    body = {**APP, "policy": {"idleTimeoutMs": 1500}}
    assert api.put(path, json=body).status_code == 201
    put_page(api, project, "kept")
    eventually_sync(lambda: read(api, project)["status"] == "PAUSED", within_s=60)
    asked = api.post(f"{path}/wake", json={})
    assert asked.status_code in {200, 202}
    assert asked.status_code == 200 or asked.headers["retry-after"]
    woken = api.post(f"{path}/wake?wait=60", json={})
    assert woken.status_code == 200, woken.text
    steps = api.get(f"{path}/wake").json()["steps"]
    assert all(step["tookMs"] is not None for step in steps)
    history = api.get(f"{path}/history").json()["items"]
    told = {one["detail"]["step"] for one in history if one["type"] == "sandbox.wake_progressed"}
    assert told >= {"resuming", "restoring_files", "finished"}
    assert read(api, project)["instanceId"]
    assert api.get(f"{path}/log?lines=5").json()["exitCode"] is None


ONE_PROCESS = """
import http.server, uuid
name = uuid.uuid4().hex.encode()
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(name)
http.server.HTTPServer(("", 8000), Page).serve_forever()
"""


@pytest.mark.parametrize(
    ("policy", "ends_first", "is_kept"),
    [
        ({}, False, True),
        ({}, True, False),
        ({"appOnResume": "restart"}, False, False),
    ],
    ids=["an app that answers is kept", "an ended app is started", "the policy restarts it"],
)
def test_after_a_resume_the_receipt_says_what_became_of_the_app(
    keeper: Keeper,
    api: httpx.Client,
    project: str,
    policy: dict[str, str],
    ends_first: bool,
    is_kept: bool,
) -> None:
    path = f"/api/sandboxes/{project}"
    app = {"port": 8000, "startCommand": f"exec python3 -c {shlex.quote(ONE_PROCESS)}"}
    api.put(path, json={**app, "policy": policy}).raise_for_status()
    api.post(f"{path}/wake?wait=60", json={}).raise_for_status()
    instance_id = read(api, project)["instanceId"]
    before = browse(keeper, instance_id)
    if ends_first:
        keeper.run("exec", project, "--", "pkill", "-f", "uuid.uuid4")
    api.post(f"{path}/pause").raise_for_status()
    woken = api.post(f"{path}/wake?wait=60", json={}).json()
    assert woken["status"] == "succeeded", woken
    receipt = woken["receipt"]
    assert (receipt["appKept"], receipt["appStarted"]) == (is_kept, not is_kept)
    assert read(api, project)["instanceId"] == instance_id
    assert (browse(keeper, instance_id) == before) == is_kept
    assert read(api, project)["ready"]


def test_a_manually_killed_sandbox_is_recreated_with_its_files_and_a_receipt(
    keeper: Keeper, api: httpx.Client, project: str
) -> None:
    api.put(f"/api/sandboxes/{project}", json=APP).raise_for_status()
    put_page(api, project, "edited by hand")
    before = read(api, project)
    with keeper.engine_client() as engine:
        engine.delete(f"/sandboxes/{before['instanceId']}").raise_for_status()
    said = keeper.run("wake", project)
    after = read(api, project)
    assert after["sandboxUrl"] == said.stdout.strip()
    assert (after["status"], after["ready"], after["recreated"]) == ("RUNNING", True, True)
    assert after["receipt"]["kept"] == {"memory": False, "disk": False}
    assert (after["receipt"]["restored"], after["receipt"]["lost"]) == (1, [])
    assert browse(keeper, after["instanceId"]) == "edited by hand"
    assert "GET /" in keeper.run("log", project).stdout


def test_a_job_sleeps_resumes_and_is_rebuilt_for_one_credit_over_a_crash(
    engine: Engine, tmp_path: Path
) -> None:
    """The bank is down when it is asked first; the keeper dies, and the next one asks again."""
    with (
        Receiver(refusals=1) as bank,
        keeping(tmp_path / "keeper", engine=engine, credit_url=bank.url) as keeper,
        keeper.client() as api,
    ):
        job = {
            "job_id": "built",
            "port": 8000,
            "start_command": APP["startCommand"],
            "workspace_path": APP["workdir"],
            "build_version": "v1",
        }
        assert api.post("/api/generation", json=job).status_code == 201
        put_page(api, "job:built", "the build")
        eventually_sync(lambda: api.get("/api/generation/built").json()["sandbox_ready"])
        ready = api.post("/api/generation/built/ready", json={}).json()
        assert (ready["status"], ready["sandbox_paused"]) == ("ready", True)
        assert api.post("/api/jobs/built/snapshot").json()["paused"] is True
        assert keeper.run("resume", "built").stdout.strip() == ready["preview_url"]
        listed = api.get("/api/dashboard").json()["jobs"]
        assert [(one["job_id"], one["sandbox_paused"]) for one in listed] == [("built", False)]
        with keeper.engine_client() as provider:
            provider.delete(f"/sandboxes/{ready['sandbox_id']}").raise_for_status()
        gone = api.post("/api/jobs/built/resume")
        assert (gone.status_code, gone.json()["error_type"]) == (503, "sandbox_expired")
        question = api.post("/api/jobs/built/rebuild", json={}).json()
        assert question["message"] == "This will use 1 build credit. Continue?"
        asked = {"confirmation": question["confirmation"]}
        unanswered = api.post("/api/jobs/built/rebuild", json=asked)
        assert (unanswered.status_code, unanswered.json()["code"]) == (503, "credit_unavailable")
        keeper.kill9()
        keeper.start()
        with keeper.client() as again:
            eventually_sync(
                lambda: again.get("/api/jobs/built").json()["sandbox_ready"], within_s=90
            )
            job_now = again.get("/api/generation/built/status").json()
            assert browse(keeper, job_now["sandbox_id"]) == "the build"
            done = again.post("/api/jobs/built/rebuild", json=asked).json()
            assert done["rebuild_status"] == "done"
            again.delete("/api/sandboxes/job:built").raise_for_status()
        keys = {headers["idempotency-key"] for headers, _ in bank.requests}
        assert (len(bank.requests), len(keys)) == (2, 1)
