"""A sudden end: what was written shortly before is saved, and the receipt says what may be lost."""

from __future__ import annotations

from typing import Any

import httpx
from e2b import Sandbox

from support.databases import on_both_databases
from support.eventually import eventually_sync
from support.keeper_process import Keeper

pytestmark = on_both_databases


def wake(api: httpx.Client, project: str) -> dict[str, Any]:
    answer = api.post(f"/api/sandboxes/{project}/wake", params={"wait": 60}, json={})
    assert answer.json()["status"] == "succeeded", answer.text
    receipt: dict[str, Any] = answer.json()["receipt"]
    return receipt


def kill_at_the_provider(keeper: Keeper, api: httpx.Client, project: str, instance: str) -> None:
    with keeper.engine_client() as engine:
        assert engine.delete(f"/sandboxes/{instance}").status_code == 204
    assert api.post(f"/api/sandboxes/{project}/verify").json()["status"] == "KILLED"


def test_an_edit_of_the_official_sdk_is_saved_within_seconds_and_survives_a_kill(
    keeper: Keeper, api: httpx.Client, project: str
) -> None:
    made = api.put(f"/api/sandboxes/{project}", json={}).json()
    sdk = Sandbox.connect(made["instanceId"], **keeper.sdk_options())
    sdk.files.write("/home/user/work.txt", "mine")

    def is_saved() -> bool:
        items = api.get(f"/api/sandboxes/{project}/files").json()["items"]
        return any(one["path"] == "work.txt" for one in items)

    assert eventually_sync(is_saved, within_s=60)
    kill_at_the_provider(keeper, api, project, made["instanceId"])
    receipt = wake(api, project)
    assert (receipt["method"], receipt["lost"]) == ("recreate", [])
    status = api.get(f"/api/sandboxes/{project}/status").json()
    again = Sandbox.connect(status["instanceId"], **keeper.sdk_options())
    assert again.files.read("/home/user/work.txt") == "mine"


def test_the_receipt_says_how_old_the_files_may_be(
    keeper: Keeper, api: httpx.Client, project: str
) -> None:
    made = api.put(f"/api/sandboxes/{project}", json={}).json()
    sdk = Sandbox.connect(made["instanceId"], **keeper.sdk_options())
    sdk.files.write("/home/user/a.txt", "saved")
    assert api.post(f"/api/sandboxes/{project}/capture").status_code == 200
    sdk.files.write("/home/user/b.txt", "late")
    kill_at_the_provider(keeper, api, project, made["instanceId"])
    said = keeper.run("wake", project).stderr
    status = f"/api/sandboxes/{project}/status"
    receipt = eventually_sync(lambda: api.get(status).json()["receipt"])
    assert receipt["filesGapMs"] > 0
    assert receipt["filesNote"].startswith("files as of ")
    assert receipt["filesNote"].endswith(" s before the end")
    assert receipt["filesNote"] in said


def test_an_orderly_end_leaves_no_gap(keeper: Keeper, api: httpx.Client, project: str) -> None:
    made = api.put(f"/api/sandboxes/{project}", json={}).json()
    Sandbox.connect(made["instanceId"], **keeper.sdk_options()).files.write("/home/user/a", "1")
    assert api.post(f"/api/sandboxes/{project}/pause").json()["status"] == "PAUSED"
    kill_at_the_provider(keeper, api, project, made["instanceId"])
    receipt = wake(api, project)
    assert receipt["filesVersion"] > 0
    assert receipt["filesGapMs"] < 10_000
    assert receipt["lost"] == []
