"""A `.env` stays in its sandbox unless the policy keeps it, and the receipt says so."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from e2b import Sandbox

from support.keeper_process import Keeper


def connect(keeper: Keeper, api: httpx.Client, project: str) -> Sandbox:
    status = api.get(f"/api/sandboxes/{project}/status").json()
    return Sandbox.connect(status["instanceId"], **keeper.sdk_options())


def read_receipt(api: httpx.Client, project: str) -> dict[str, Any]:
    receipt: dict[str, Any] = api.get(f"/api/sandboxes/{project}/status").json()["receipt"]
    return receipt


@pytest.mark.parametrize(
    ("policy", "is_kept"),
    [({}, False), ({"keepSecretFiles": True}, True)],
    ids=["by default", "with the policy"],
)
def test_a_secret_file_comes_back_only_when_the_policy_says_so(
    keeper: Keeper, api: httpx.Client, project: str, policy: dict[str, bool], is_kept: bool
) -> None:
    path = f"/api/sandboxes/{project}"
    api.put(path, json={"policy": policy}).raise_for_status()
    inside = connect(keeper, api, project)
    inside.files.write("/home/user/.env", "TOKEN=1")
    inside.files.write("/home/user/app.py", "print(1)")
    not_kept = [] if is_kept else [".env"]
    assert api.post(f"{path}/capture").json()["notKept"] == not_kept

    api.post(f"{path}/pause").raise_for_status()
    resumed = keeper.run("wake", project).stderr
    assert "not kept" not in resumed
    assert read_receipt(api, project)["notKept"] == []
    assert connect(keeper, api, project).files.read("/home/user/.env") == "TOKEN=1"

    with keeper.engine_client() as engine:
        engine.delete(f"/sandboxes/{inside.sandbox_id}").raise_for_status()
    assert api.post(f"{path}/verify").json()["status"] == "KILLED"
    recreated = keeper.run("wake", project).stderr
    again = connect(keeper, api, project)
    assert again.files.read("/home/user/app.py") == "print(1)"
    assert again.files.exists("/home/user/.env") is is_kept
    receipt = read_receipt(api, project)
    assert (receipt["method"], receipt["lost"]) == ("recreate", [])
    assert (receipt["notKept"], receipt["notKeptCount"]) == (not_kept, len(not_kept))
    assert ("not kept by policy: .env (1 file)" in recreated) is not is_kept
