"""Costs against a real engine: what its own events say, through a crash of the keeper."""

from __future__ import annotations

import csv
import io
import json
import time
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import httpx

from support.keeper_process import Keeper

PRICE = '[{"provider": "engine", "vcpu_s": "0.000014", "gib_s": "0.0000045"}]'
STARTS = ("sandbox.lifecycle.created", "sandbox.lifecycle.resumed")
ENDS = ("sandbox.lifecycle.paused", "sandbox.lifecycle.killed")


class TimedCalls:
    """Calls of the keeper that change a sandbox, and how long they took together.

    The engine dates a change within its call, and so does the keeper.
    """

    def __init__(self) -> None:
        self.spent_s = 0.0

    def call(self, api: httpx.Client, method: str, path: str, **given: Any) -> dict[str, Any]:
        began = time.monotonic()
        answer = api.request(method, path, **given)
        self.spent_s += time.monotonic() - began
        assert answer.is_success, answer.text
        found: dict[str, Any] = answer.json()
        return found


def measure_at_the_engine(keeper: Keeper, instance_id: str) -> tuple[float, dict[str, Any]]:
    """Return how long an instance ran by the engine's own events, and the size they tell."""
    headers = {"X-API-KEY": keeper.engine_key}
    with httpx.Client(base_url=keeper.engine_url, headers=headers, timeout=60) as engine:
        path = f"/events/sandboxes/{instance_id}"
        events = engine.get(path, params={"orderAsc": "true", "limit": 100}).json()
    running_s, since, size = 0.0, None, {}
    for event in events:
        at = datetime.fromisoformat(event["timestamp"])
        if event["type"] in STARTS and since is None:
            since = at
        elif event["type"] in ENDS and since is not None:
            running_s += (at - since).total_seconds()
            since, size = None, event["eventData"]["execution"]
    assert since is None, events
    return running_s, size


def test_costs_are_what_the_engines_own_events_say_through_a_crash(tmp_path: Path) -> None:
    keeper = Keeper(tmp_path / "data", prices=PRICE, lease_s=15)
    calls = TimedCalls()
    path = "/api/sandboxes/shop"
    try:
        keeper.start()
        with keeper.client() as api:
            made = calls.call(api, "PUT", path, json={"tenant": "acme"})
            calls.call(api, "POST", f"{path}/pause")
            calls.call(api, "POST", "/api/tasks/costs/run")
            calls.call(api, "POST", f"{path}/wake", params={"wait": "60"})
        keeper.kill9()
        keeper.start()
        with keeper.client() as api:
            calls.call(api, "POST", f"{path}/pause")
            calls.call(api, "DELETE", path)
            for _ in range(2):
                calls.call(api, "POST", "/api/tasks/costs/run")
            by = {
                group: api.get("/api/costs", params={"by": group}).json()
                for group in ("tenant", "template", "owner", "sandbox", "day")
            }
            early = (datetime.now(UTC) - timedelta(days=60)).date().isoformat()
            refused = api.get("/api/costs", params={"by": "sandbox", "from": early})
            backwards = api.get("/api/costs", params={"from": "2020-02-01", "to": "2020-01-01"})
        running_s, size = measure_at_the_engine(keeper, made["instanceId"])
        printed = keeper.run("costs", "--by", "owner", "--csv").stdout
    finally:
        keeper.stop()
    counted = by["sandbox"]["items"][0]
    assert abs(counted["runningS"] - running_s) <= calls.spent_s
    assert running_s > 0
    rate = size["vcpu_count"] * Fraction("0.000014")
    rate += Fraction(size["memory_mb"], 1024) * Fraction("0.0000045")
    exact = rate * round(counted["runningS"] * 1000) / 1000
    assert abs(Fraction(counted["cost"]) - exact) <= Fraction(1, 10**9)
    for group, report in by.items():
        assert sum(Decimal(item["cost"]) for item in report["items"]) == Decimal(counted["cost"])
        assert report["total"]["cost"] == counted["cost"], group
    assert [item["key"] for item in by["tenant"]["items"]] == ["acme"]
    (row,) = csv.DictReader(io.StringIO(printed))
    assert (row["owner"], row["cost"]) == ("project:shop", counted["cost"])
    assert refused.status_code == backwards.status_code == 422
    assert "35 days" in refused.json()["detail"]


def test_budgets_and_replays_by_command(keeper: Keeper, api: httpx.Client, project: str) -> None:
    tenant = f"t-{project}"
    api.put(f"/api/sandboxes/{project}", json={"tenant": tenant}).raise_for_status()
    printed = keeper.run("budget", "set", tenant, "0", "--action", "refuse", "--json").stdout
    standing = json.loads(printed)
    assert [one["share"] for one in standing["notices"]] == [50, 80, 100]
    refused = api.put(f"/api/sandboxes/{project}-b", json={"tenant": tenant})
    assert (refused.status_code, refused.json()["code"]) == (402, "budget_spent")
    assert api.put(f"/api/sandboxes/{project}-c", json={}).status_code == 201
    assert api.post(f"/api/sandboxes/{project}/wake", params={"wait": "60"}).is_success
    assert f"{tenant}\t" in keeper.run("budget", "ls").stdout

    for bad in (
        {"tenant": tenant, "dollars": "-1"},
        {"tenant": tenant, "dollars": "NaN"},
        {"tenant": tenant, "dollars": "1e400"},
        {"tenant": "a b", "dollars": "1"},
        {"tenant": tenant, "dollars": "1", "action": "kill"},
    ):
        assert api.put("/api/budgets", json=bad).status_code == 422, bad
    with keeper.client("sk_a_viewer") as viewer:
        assert viewer.get("/api/budgets").status_code == 200
        put = viewer.put("/api/budgets", json={"tenant": tenant, "dollars": "1"})
        assert put.status_code == 403

    keeper.run("budget", "rm", tenant)
    assert api.delete(f"/api/budgets/{tenant}").status_code == 404
    assert api.put(f"/api/sandboxes/{project}-b", json={"tenant": tenant}).status_code == 201

    api.post("/api/tasks/activity-history/run").raise_for_status()
    report = json.loads(
        keeper.run("simulate", "--idle", "60,never", "--by", "tenant", "--json").stdout
    )
    (mine,) = (group for group in report["groups"] if group["key"] == tenant)
    assert [one["idle"] for one in mine["items"]] == ["current", "60", "never"]
    said = keeper.run("simulate", "--idle", "soon", check=False)
    assert said.returncode != 0
    assert "'soon' is no idle timeout" in said.stderr


def test_a_quota_by_command_refuses_warns_and_ends_nothing(
    keeper: Keeper, api: httpx.Client, project: str
) -> None:
    tenant = f"t-{project}"
    keeper.run("quota", "set", tenant, "--running", "1", "--creations-day", "2")
    made = api.put(f"/api/sandboxes/{project}", json={"tenant": tenant})
    assert made.status_code == 201
    assert made.headers["sandkeeper-quota-warning"] == "running 1/1"
    refused = api.put(f"/api/sandboxes/{project}-b", json={"tenant": tenant})
    assert (refused.status_code, refused.json()["code"]) == (429, "quota_exceeded")
    assert int(refused.headers["retry-after"]) >= 1
    assert api.put(f"/api/sandboxes/{project}-c", json={}).status_code == 201

    keeper.run("quota", "set", tenant, "--running", "0")
    verified = api.post(f"/api/sandboxes/{project}/verify").json()
    assert verified["status"] == "RUNNING"
    assert f"{tenant}\t1/0\t" in keeper.run("quota", "ls").stdout
    keeper.run("quota", "set", tenant)
    assert tenant not in keeper.run("quota", "ls").stdout
    for one in (project, f"{project}-c"):
        api.delete(f"/api/sandboxes/{one}").raise_for_status()
