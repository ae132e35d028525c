"""Snippets of the session document: the key, its log line, the variables and the metrics."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import httpx

from support.eventually import eventually_sync
from support.keeper_process import COMMAND, Keeper

CONFIG = """\
e2b_template_id=base
e2b_code_timeout=300
e2b_session_timeout_minutes=30
e2b_desktop_timeout=900
e2b_desktop_session_timeout_minutes=45
"""

METRICS = {
    "active_sessions",
    "total_created",
    "total_cleaned",
    "total_reused",
    "health_check_failures",
}


def acquire(api: httpx.Client, user: str, **body: Any) -> dict[str, Any]:
    answer = api.post(
        "/api/sessions/acquire", json={"userId": user, "template": "base", **body}, timeout=120
    )
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_a_local_conversation_has_one_sandbox_and_its_key_is_in_the_log(
    keeper: Keeper, api: httpx.Client, project: str
) -> None:
    first = acquire(api, project, conversationId="local-7")
    second = acquire(api, project, conversationId="local-7")
    assert first["key"] == second["key"] == f"{project}:local-7"
    assert first["connection"]["instanceId"] == second["connection"]["instanceId"]
    assert (first["source"], second["source"]) == ("created", "reused")

    def find_lines() -> list[str]:
        key = f"{project}:local-7"
        return [
            one for one in keeper.output.splitlines() if "session_acquired" in one and key in one
        ]

    assert eventually_sync(lambda: len(find_lines()) == 2)
    acquire(api, project, taskId="explicit", conversationId="local-7")
    assert api.delete(f"/api/sessions/{first['id']}").status_code == 204


def test_the_metrics_have_the_documents_names(api: httpx.Client) -> None:
    metrics = api.get("/api/sessions/metrics").json()
    assert set(metrics) == {"execution", "desktop", "totals"}
    for counts in metrics.values():
        assert set(counts) >= METRICS


def test_the_documents_variables_configure_sessions(keeper: Keeper) -> None:
    variables = dict(line.split("=") for line in CONFIG.split())
    shown = subprocess.run(
        [*COMMAND, "config", "show", "--json"],
        env=keeper.environment | {name.upper(): value for name, value in variables.items()},
        capture_output=True,
        text=True,
        check=True,
    )
    told = {one["name"]: one["value"] for one in json.loads(shown.stdout)}
    wanted = {
        "session_template": "base",
        "code_timeout_s": 300,
        "session_idle_timeout_s": 1800,
        "desktop_lifetime_s": 900,
        "desktop_idle_timeout_s": 2700,
    }
    assert {name: told[name] for name in wanted} == wanted
