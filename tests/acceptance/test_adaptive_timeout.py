"""A learned idle timeout as people meet it: asked for, shown, explained, and kept within bounds."""

from __future__ import annotations

import sqlite3

import httpx

from support.eventually import eventually_sync
from support.keeper_process import Keeper

NOTHING_KNOWN = "3 min by its policy: 0 of the 8 gaps that learning needs are known"


def live_through(keeper: Keeper, gaps_s: list[int], sandbox_id: str) -> None:
    """Write these gaps as if they had passed: a test cannot wait for hours."""
    text = "".join(f"{gap_s}," for gap_s in gaps_s)
    with sqlite3.connect(keeper.data / "sandkeeper.db", timeout=30) as database:
        database.execute("UPDATE sandboxes SET gaps = ? WHERE id = ?", (text, sandbox_id))
    database.close()


def test_the_timeout_in_force_is_shown_with_how_it_was_learned(
    keeper: Keeper, api: httpx.Client, project: str
) -> None:
    path = f"/api/sandboxes/{project}"
    made = api.put(path, json={"policy": {"idle": "adaptive"}}).json()
    assert made["idleTimeoutMs"] == 180_000
    assert api.get(f"{path}/explain").json()["idleTimeoutWhy"] == NOTHING_KNOWN
    live_through(keeper, [200] * 20 + [30] * 21, made["id"])
    said = api.get(f"{path}/explain").json()
    assert said["idleTimeoutMs"] == 250_000
    assert said["idleTimeoutWhy"] == "learned 4 min 10 s: 100 % of the 41 gaps were shorter"
    assert "Idle limit: learned 4 min 10 s" in keeper.run("explain", project).stdout
    api.post(f"{path}/activity", json={"kind": "intent"}).raise_for_status()
    eventually_sync(lambda: api.post(f"{path}/verify").json()["idleTimeoutMs"] == 250_000)
    api.delete(path)


def test_a_policy_may_set_its_own_bounds_and_the_fixed_promise_is_the_default(
    keeper: Keeper, api: httpx.Client, project: str
) -> None:
    path = f"/api/sandboxes/{project}"
    bounds = {"idle": "adaptive", "idleTimeoutMinMs": 90_000, "idleTimeoutMaxMs": 60_000}
    assert api.put(path, json={"policy": bounds}).status_code == 422
    bounds["idleTimeoutMaxMs"] = 100_000
    made = api.put(path, json={"policy": bounds}).json()
    assert made["idleTimeoutMs"] == 100_000, "also the beginning lies within the bounds"
    live_through(keeper, [3600] * 9, made["id"])
    said = api.get(f"{path}/explain").json()
    assert (
        said["idleTimeoutWhy"] == "learned 1 min 30 s: each of the last 9 gaps was over 1 min 40 s"
    )
    api.delete(path)
    plain = keeper.run("create", f"{project}-plain", "-q").stdout.strip()
    said = api.get(f"/api/sandboxes/{plain}/explain").json()
    assert said["idleTimeoutWhy"] == "3 min, fixed by its policy"
    keeper.run("create", f"{project}-learning", "--idle", "adaptive")
    said = api.get(f"/api/sandboxes/{project}-learning/explain").json()
    assert said["idleTimeoutWhy"] == NOTHING_KNOWN
    keeper.run("kill", "--yes", f"{project}-plain", f"{project}-learning")


def test_a_session_learns_while_it_lasts(keeper: Keeper, api: httpx.Client, project: str) -> None:
    asked = {"userId": project, "taskId": "chat", "template": "base", "idle": "adaptive"}
    found = api.post("/api/sessions/acquire", json=asked).json()
    assert found["idleTimeoutMs"] == 600_000
    live_through(keeper, [40] * 10, found["sandbox"]["id"])
    again = api.post("/api/sessions/acquire", json=asked).json()
    assert (again["source"], again["idleTimeoutMs"]) == ("reused", 60_000)
    api.delete(f"/api/sessions/{found['id']}").raise_for_status()
