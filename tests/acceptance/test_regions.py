"""Two regions, each a real engine: where a sandbox comes into being, and that it stays there."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.base_cache import lend_base
from support.engine_process import Engine
from support.eventually import eventually_sync
from support.keeper_process import Keeper, keeping


@pytest.fixture
def far_engine(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    running = Engine(lend_base(tmp_path_factory, tmp_path / "far"))
    try:
        yield running.start()
    finally:
        running.stop()


@pytest.fixture
def keeper(own_engine: Engine, far_engine: Engine, tmp_path: Path) -> Iterator[Keeper]:
    regions = {
        name: {"api_key": engine.key, "api_url": engine.url, "sandbox_url": engine.url}
        for name, engine in (("eu", own_engine), ("us", far_engine))
    }
    settings = {
        "regions": json.dumps(regions | {"us": regions["us"] | {"creations_per_s": 0.5}}),
        "breaker_failures": 2,
        "breaker_open_s": 4,
        "request_timeout_s": 5,
        "wake_retry_s": 0.1,
        "reconcile_period_s": 1,
        "catch_up_period_s": 1,
        "creations_per_s": 50,
    }
    with keeping(tmp_path / "keeper", engine=own_engine, **settings) as running:
        yield running


@pytest.fixture
def api(keeper: Keeper) -> Iterator[httpx.Client]:
    with keeper.client() as client:
        yield client


def create(api: httpx.Client, project: str, region: str | None = None) -> dict[str, Any]:
    answer = api.put(f"/api/sandboxes/{project}", json={"region": region})
    assert answer.status_code == 201, answer.text
    status: dict[str, Any] = answer.json()
    return status


def read(api: httpx.Client, project: str) -> dict[str, Any]:
    status: dict[str, Any] = api.get(f"/api/sandboxes/{project}/status").json()
    return status


def instances(engine: Engine) -> set[str]:
    with engine.client() as client:
        return {one["sandboxID"] for one in client.get("/v2/sandboxes").json()}


def test_a_sandbox_is_created_and_recreated_in_its_requested_region(
    api: httpx.Client, own_engine: Engine, far_engine: Engine
) -> None:
    near, far = create(api, "near"), create(api, "far", "us")
    assert (near["region"], far["region"]) == ("eu", "us")
    assert instances(own_engine) == {near["instanceId"]}
    assert instances(far_engine) == {far["instanceId"]}
    began = time.monotonic()
    assert create(api, "further", "us,eu")["region"] == "us"
    assert time.monotonic() - began > 0.5, "each region has its own rate of creation"
    refused = api.put("/api/sandboxes/lost", json={"region": "eu,mars"})
    assert refused.status_code == 422
    assert "'mars'; there are: eu, us" in refused.json()["detail"]
    with far_engine.client() as client:
        client.delete(f"/sandboxes/{far['instanceId']}").raise_for_status()
    woken = api.post("/api/sandboxes/far/wake?wait=60", json={})
    assert woken.status_code == 200, woken.text
    again = read(api, "far")
    assert (again["region"], again["recreated"]) == ("us", True)
    assert again["instanceId"] in instances(far_engine)
    assert instances(own_engine) == {near["instanceId"]}


def test_sandboxes_of_a_region_that_is_down_are_not_recreated_elsewhere(
    api: httpx.Client, own_engine: Engine, far_engine: Engine
) -> None:
    here, there = create(api, "here", "eu"), create(api, "there", "us")
    for project in ("here", "there"):
        api.post(f"/api/sandboxes/{project}/pause", json={}).raise_for_status()
    own_engine.kill9()
    resting = "The provider e2b/eu is left alone after failures."
    eventually_sync(lambda: api.get("/readyz").json()["reasons"] == [resting])
    assert create(api, "nearest", "eu,us")["region"] == "us", "the next one in order is taken"
    failed = api.post("/api/sandboxes/here/wake?wait=8", json={})
    assert failed.json()["code"] == "sandbox_unreachable", failed.text
    assert api.post("/api/sandboxes/there/wake?wait=60", json={}).status_code == 200
    lost = read(api, "here")
    assert lost["status"] in {"UNKNOWN", "PAUSED"}
    assert (lost["region"], lost["generation"], lost["recreated"]) == ("eu", 1, False)
    assert instances(far_engine) == {there["instanceId"], read(api, "nearest")["instanceId"]}
    own_engine.start()
    eventually_sync(
        lambda: api.post("/api/sandboxes/here/wake?wait=60", json={}).status_code == 200
    )
    assert read(api, "here")["instanceId"] == here["instanceId"]
    assert create(api, "home", "eu,us")["region"] == "eu", "the nearest one is back"
