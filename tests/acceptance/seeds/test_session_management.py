"""Snippets of the session document: the key, its log line, the variables and the metrics."""

from __future__ import annotations

import json
import re
import subprocess
import uuid
from typing import Any

import httpx

from support.databases import on_both_databases
from support.eventually import eventually_sync
from support.keeper_process import COMMAND, Keeper

pytestmark = on_both_databases

CONFIG = """\
e2b_template_id=base
e2b_code_timeout=300
e2b_session_timeout_minutes=30
e2b_desktop_timeout=900
e2b_desktop_session_timeout_minutes=45
e2b_desktop_stream_ready_wait_ms=3000
"""

DEFAULTS = """
e2b_code_timeout: int = 300  # 5 minutes
e2b_session_timeout_minutes: int = 10
e2b_desktop_timeout: int = 900  # 15 minutes
e2b_desktop_session_timeout_minutes: int = 15
e2b_desktop_stream_ready_wait_ms: int = 3000
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


def show_config(keeper: Keeper, **variables: str) -> dict[str, Any]:
    shown = subprocess.run(
        [*COMMAND, "config", "show", "--json"],
        env=keeper.environment | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    return {one["name"]: one["value"] for one in json.loads(shown.stdout)}


def test_the_documents_defaults_are_ours(keeper: Keeper) -> None:
    given = re.findall(r"(\w+): int = (\d+)", DEFAULTS)
    told = show_config(keeper)
    wanted = show_config(keeper, **{name.upper(): value for name, value in given})
    assert told == wanted
    assert told["session_cleanup_period_s"] == 60


def test_a_request_without_any_id_has_a_session_of_its_own(api: httpx.Client, project: str) -> None:
    first, second = acquire(api, project), acquire(api, project)
    for one in (first, second):
        user, _, task = one["key"].partition(":")
        assert (user, uuid.UUID(task).version) == (project, 4)
        assert api.delete(f"/api/sessions/{one['id']}").status_code == 204
    assert first["key"] != second["key"]


def test_the_documents_variables_configure_sessions(keeper: Keeper) -> None:
    variables = dict(line.split("=") for line in CONFIG.split())
    told = show_config(keeper, **{name.upper(): value for name, value in variables.items()})
    wanted = {
        "session_template": "base",
        "code_timeout_s": 300,
        "session_idle_timeout_s": 1800,
        "desktop_lifetime_s": 900,
        "desktop_idle_timeout_s": 2700,
        "stream_ready_timeout_ms": 3000,
    }
    assert {name: told[name] for name in wanted} == wanted
