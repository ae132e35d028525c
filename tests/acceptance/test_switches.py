"""Each part can be switched off alone, at run time, and the old way can be had back."""

from __future__ import annotations

import json
from pathlib import Path

from support.engine_process import Engine
from support.eventually import eventually_sync
from support.keeper_process import Keeper


def test_each_part_stands_still_alone_and_goes_on_when_switched_on(
    engine: Engine, tmp_path: Path, project: str
) -> None:
    """A keeper of its own, in which nothing learns of a kill or puts anything to sleep."""
    off = {"enforcer": "false", "reconciler": "false", "catch_up": "false"}
    quick = {"newborn_grace_s": 0, "woken_grace_s": 0, "reconcile_period_s": 1}
    keeper = Keeper(tmp_path / "data", engine=engine, **off, **quick)
    try:
        keeper.start()
        with keeper.client() as api:
            path = f"/api/sandboxes/{project}"
            body = {"policy": {"idleTimeoutMs": 1000}}
            made = api.put(path, json=body).raise_for_status().json()
            assert api.get("/readyz").json()["switches"]["enforcer"] is False
            api.patch("/api/switches", json={"enforcer": True}).raise_for_status()
            eventually_sync(lambda: api.get(f"{path}/status").json()["status"] == "PAUSED")

            with engine.client() as provider:
                provider.delete(f"/sandboxes/{made['instanceId']}").raise_for_status()
            assert api.get(f"{path}/status").json()["status"] == "PAUSED", (
                "no part that is switched on could have seen it"
            )
            api.patch("/api/switches", json={"legacy_verify": True}).raise_for_status()
            assert api.get(f"{path}/status").json()["status"] == "KILLED", "the read asked"
    finally:
        keeper.stop()


def test_doctor_tells_how_a_running_keeper_does(keeper: Keeper) -> None:
    said = keeper.run("doctor", "--json", check=False)
    findings = {one["name"]: one for one in map(json.loads, said.stdout.splitlines())}
    assert "user namespaces" in findings
    assert findings["keeper: enforcer_silence"]["ok"] is True
