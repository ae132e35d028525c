"""The idle enforcer as an Inngest function, called as Inngest calls it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from support.engine_process import Engine
from support.eventually import eventually_sync
from support.keeper_process import keeping


def test_inngest_runs_the_sweep(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, project: str
) -> None:
    monkeypatch.setenv("INNGEST_DEV", "1")
    settings = {"inngest": "true", "enforcer": "false", "newborn_grace_s": 0, "woken_grace_s": 0}
    with (
        keeping(tmp_path / "data", engine=engine, **settings) as keeper,
        keeper.client() as api,
        httpx.Client(base_url=keeper.url, timeout=60) as inngest,
    ):
        assert inngest.get("/api/inngest").json()["function_count"] == 1
        made = api.put(f"/api/sandboxes/{project}", json={"policy": {"idleTimeoutMs": 1000}})
        deadline = made.json()["sleepsAt"]
        call = {
            "ctx": {
                "attempt": 0,
                "disable_immediate_execution": True,
                "run_id": "a-run",
                "stack": {"stack": []},
            },
            "event": {"name": "inngest/scheduled.timer", "data": {}},
            "events": [{"name": "inngest/scheduled.timer", "data": {}}],
            "steps": {},
            "use_api": False,
        }
        query = {"fnId": "sandkeeper-sandbox-idle-enforcer", "stepId": "step"}

        def sweeps_one() -> bool:
            answer = inngest.post("/api/inngest", params=query, json=call)
            assert answer.status_code == 200, answer.text
            return bool(answer.json().get("paused") == 1)

        eventually_sync(sweeps_one, every_s=0.2)

        def find_paused() -> dict[str, Any] | None:
            status = api.get(f"/api/sandboxes/{project}/status").json()
            return status if status["status"] == "PAUSED" else None

        paused = eventually_sync(find_paused)
        assert paused is not None
        assert paused["stateSince"] >= deadline
        assert api.delete(f"/api/sandboxes/{project}").status_code == 200
