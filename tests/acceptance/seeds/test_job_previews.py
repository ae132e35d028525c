"""Snippets of the plan for job previews: snapshot, resume, the error's form and the words."""

from __future__ import annotations

import httpx

from support.eventually import eventually_sync
from support.keeper_process import Keeper

WORDS = {
    "paused_title": "Your preview is sleeping.",
    "resume": "Resume preview",
    "resuming": "Resuming preview...",
    "failed_title": "Resume failed",
    "rebuild": "Rebuild",
    "confirm_rebuild": "This will use 1 build credit. Continue?",
}


def make_ready(api: httpx.Client, job: str) -> None:
    made = api.post("/api/generation", json={"job_id": job, "port": None})
    assert made.status_code == 201, made.text
    path = f"/api/sandboxes/job:{job}/status"
    assert eventually_sync(lambda: api.get(path).json()["status"] == "RUNNING")
    assert api.post(f"/api/generation/{job}/ready", json={}).is_success


def test_the_words(api: httpx.Client) -> None:
    told = api.get("/api/presentation").json()["job"]
    assert {name: told[name] for name in WORDS} == WORDS


def test_a_snapshot_is_idempotent_and_a_resume_gives_the_address(
    api: httpx.Client, project: str
) -> None:
    make_ready(api, project)
    for _ in range(2):
        snapshot = api.post(f"/api/generation/{project}/snapshot")
        assert snapshot.status_code == 200
        assert snapshot.json()["job_id"] == project
        assert snapshot.json()["paused"] is True
    status = api.get(f"/api/generation/{project}/status").json()
    assert (status["status"], status["sandbox_paused"]) == ("ready", True)
    resumed = api.post(f"/api/generation/{project}/resume")
    assert resumed.status_code == 200, resumed.text
    assert set(resumed.json()) == {"preview_url", "sandbox_id"}
    assert api.get(f"/api/generation/{project}/status").json()["sandbox_paused"] is False


def test_a_resume_that_failed_says_why_where_the_plan_reads_it(
    keeper: Keeper, api: httpx.Client, project: str
) -> None:
    make_ready(api, project)
    assert api.post(f"/api/generation/{project}/snapshot").json()["paused"] is True
    sandbox = api.get(f"/api/sandboxes/job:{project}/status").json()
    with keeper.engine_client() as engine:
        assert engine.delete(f"/sandboxes/{sandbox['instanceId']}").status_code == 204
    failed = api.post(f"/api/generation/{project}/resume")
    assert failed.status_code == 503, failed.text
    assert failed.json()["detail"]["error_type"] == "sandbox_expired"
    assert failed.json()["detail"]["message"]
    done = keeper.run("resume", project, check=False)
    assert done.returncode != 0
    assert failed.json()["detail"]["message"] in done.stderr
