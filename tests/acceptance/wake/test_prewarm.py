"""Warm-ups as a landing page makes them: ahead of the user, within a budget, never as use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from support.engine_process import Engine
from support.eventually import eventually_sync
from support.keeper_process import Keeper, keeping

SETTINGS = {
    "newborn_grace_s": 0,
    "woken_grace_s": 0,
    "warm_grace_s": 2,
    "warm_ups_at_once": 2,
    "warm_ups_per_owner_hour": 2,
    "creations_per_s": 50,
}


@pytest.fixture(scope="module")
def keeper(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keeper]:
    with keeping(tmp_path_factory.mktemp("warming") / "data", engine=engine, **SETTINGS) as running:
        yield running


def read(api: httpx.Client, project: str) -> dict[str, Any]:
    status: dict[str, Any] = api.get(f"/api/sandboxes/{project}/status").json()
    return status


def put_to_sleep(api: httpx.Client, project: str) -> None:
    """A sandbox that sleeps and would stay awake for long once it is used."""
    body = {"policy": {"idleTimeoutMs": 600_000}}
    api.put(f"/api/sandboxes/{project}", json=body).raise_for_status()
    api.post(f"/api/sandboxes/{project}/pause", json={}).raise_for_status()


def end(api: httpx.Client, *projects: str) -> None:
    for project in projects:
        api.delete(f"/api/sandboxes/{project}")


def warm(api: httpx.Client, project: str) -> tuple[int, str, str]:
    answer = api.post(f"/api/sandboxes/{project}/warm")
    said = answer.json()
    return answer.status_code, said["result"], said["reason"]


def count(api: httpx.Client, outcome: str) -> float:
    label = f'sandkeeper_warmups_total{{outcome="{outcome}"}} '
    lines = api.get("/metrics").text.splitlines()
    return sum(float(line.removeprefix(label)) for line in lines if line.startswith(label))


def test_an_unused_warm_up_is_paused_again_and_counts_as_waste(
    keeper: Keeper, api: httpx.Client, project: str
) -> None:
    put_to_sleep(api, project)
    before = read(api, project)
    wasted = count(api, "unused")
    assert warm(api, project)[:2] == (202, "started")
    eventually_sync(lambda: read(api, project)["status"] == "RUNNING")
    warmed = read(api, project)
    assert warmed["instanceId"] == before["instanceId"]
    assert warmed["actor"] == "warm-up"
    assert warmed["lastActiveClass"] == before["lastActiveClass"], "it is no use"
    eventually_sync(lambda: warm(api, project)[:2] == (200, "awake"))
    said = api.get(f"/api/sandboxes/{project}/explain").json()
    assert said["nextRule"] == "pause again: it was warmed up and not used for 2 seconds"
    eventually_sync(lambda: read(api, project)["status"] == "PAUSED")
    assert read(api, project)["reason"].startswith("warmed up and not used for")
    eventually_sync(lambda: count(api, "unused") == wasted + 1)
    end(api, project)


def test_a_wake_that_joins_a_warm_up_keeps_the_sandbox_and_counts_as_use(
    keeper: Keeper, api: httpx.Client, project: str
) -> None:
    put_to_sleep(api, project)
    used = count(api, "used")
    assert warm(api, project)[:2] == (202, "started")
    woken = api.post(f"/api/sandboxes/{project}/wake?wait=60", json={})
    assert woken.status_code == 200, woken.text
    eventually_sync(lambda: count(api, "used") == used + 1)
    eventually_sync(lambda: read(api, project)["lastActiveSource"] == "wake")
    assert read(api, project)["status"] == "RUNNING"
    said = api.get(f"/api/sandboxes/{project}/explain").json()
    assert said["nextRule"] == "pause after 10 minutes without activity"
    assert said["earlyPauses"] == 0
    end(api, project)


def test_a_warm_up_over_the_budget_is_refused_with_its_reason(
    keeper: Keeper, api: httpx.Client, project: str
) -> None:
    projects = [f"{project}-{number}" for number in range(3)]
    for name in projects:
        put_to_sleep(api, name)
    refused = count(api, "refused")
    assert [warm(api, name)[1] for name in projects[:2]] == ["started", "started"]
    status, answer, reason = warm(api, projects[2])
    assert (status, answer) == (200, "refused")
    assert reason == "2 warmed-up sandboxes wait for their users already"
    assert read(api, projects[2])["status"] == "PAUSED"
    assert count(api, "refused") == refused + 1
    for _ in range(2):
        eventually_sync(lambda: warm(api, projects[0])[1] != "awake")
        eventually_sync(lambda: read(api, projects[0])["status"] == "PAUSED")
    eventually_sync(lambda: "times within the last hour" in warm(api, projects[0])[2])
    end(api, *projects)


def test_a_warm_up_never_creates_an_instance(
    keeper: Keeper, api: httpx.Client, project: str
) -> None:
    """Also when it learns only on the way that the instance is gone."""
    put_to_sleep(api, project)
    before = read(api, project)
    with keeper.engine_client() as engine:
        engine.delete(f"/sandboxes/{before['instanceId']}").raise_for_status()
    eventually_sync(lambda: warm(api, project)[1] in {"started", "refused"})
    eventually_sync(lambda: read(api, project)["status"] == "KILLED")
    # The record says so a moment before the wake that found it out is over.
    eventually_sync(lambda: warm(api, project)[1] != "under_way")
    status, answer, reason = warm(api, project)
    assert (status, answer) == (200, "refused")
    assert reason == "it is KILLED, and only a sandbox that sleeps is warmed up"
    after = read(api, project)
    assert (after["generation"], after["recreated"]) == (before["generation"], False)
    assert api.post("/api/sandboxes/unknown/warm").status_code == 404


def test_a_page_warms_up_its_own_sandbox_only_and_the_command_line_any(
    keeper: Keeper, api: httpx.Client, project: str
) -> None:
    put_to_sleep(api, project)
    token = api.post("/api/client-tokens", json={"project": project}).json()["token"]
    with keeper.client(token) as page:
        assert warm(page, project)[1] in {"started", "refused"}
        assert page.post("/api/sandboxes/another/warm").status_code == 403
    said = keeper.run("warm", project, "--json").stdout
    assert '"result"' in said
    assert keeper.run("warm", project).stdout.startswith(f"{project}: ")
    end(api, project)
