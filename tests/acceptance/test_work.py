"""Work that the keeper did not start: the official SDK's own commands, and our own files API."""

from __future__ import annotations

from typing import Any

import httpx
from e2b import Sandbox

from support.databases import on_both_databases
from support.eventually import eventually_sync
from support.keeper_process import Keeper

pytestmark = on_both_databases


def create(api: httpx.Client, project: str, **policy: object) -> dict[str, Any]:
    answer = api.put(f"/api/sandboxes/{project}", json={"policy": policy})
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


def is_paused(api: httpx.Client, project: str) -> bool:
    status: dict[str, Any] = api.get(f"/api/sandboxes/{project}/status").json()
    return bool(status["status"] == "PAUSED")


def test_a_command_of_the_official_sdk_is_not_cut_off_by_the_idle_pause(
    keeper: Keeper, api: httpx.Client, project: str
) -> None:
    made = create(api, project, idleTimeoutMs=1000)
    sdk = Sandbox.connect(made["instanceId"], **keeper.sdk_options())
    line = "until [ -e /tmp/end ]; do sleep 0.1; done; echo done"
    running = sdk.commands.run(line, background=True)
    told = eventually_sync(lambda: api.get(f"/api/sandboxes/{project}/explain").json()["work"])
    assert told.startswith(f"`{line}` (pid {running.pid})")
    said = keeper.run("explain", project).stdout
    assert f"Running inside: `{line}`" in said
    assert "check whether its work still runs, and pause if it does not" in said
    assert "No activity since it was started" in said
    assert api.get(f"/api/sandboxes/{project}/status").json()["sleepsAt"] is None
    sdk.files.write("/tmp/end", "")
    assert running.wait().stdout == "done\n"
    assert eventually_sync(lambda: is_paused(api, project))
    assert " after its work ended" in api.get(f"/api/sandboxes/{project}/explain").json()["why"]


def test_a_busy_program_that_no_command_holds_is_seen_before_the_first_pause(
    keeper: Keeper, api: httpx.Client, project: str
) -> None:
    made = create(api, project, idleTimeoutMs=2000)
    sdk = Sandbox.connect(made["instanceId"], **keeper.sdk_options())
    sdk.commands.run("setsid sh -c 'until [ -e /tmp/end ]; do :; done' >/dev/null 2>&1 &")
    told = eventually_sync(lambda: api.get(f"/api/sandboxes/{project}/explain").json()["work"])
    assert told.startswith("a busy processor")
    sdk.files.write("/tmp/end", "")
    assert eventually_sync(lambda: is_paused(api, project))
    history = api.get(f"/api/sandboxes/{project}/history").json()["items"]
    assert [one["toState"] for one in history].count("PAUSED") == 1


def test_a_forgotten_command_is_paused_when_its_time_is_over(
    keeper: Keeper, api: httpx.Client, project: str
) -> None:
    made = create(api, project, idleTimeoutMs=1000, workMaxMs=2000)
    sdk = Sandbox.connect(made["instanceId"], **keeper.sdk_options())
    sdk.commands.run("sleep 600", background=True)
    assert eventually_sync(lambda: is_paused(api, project))


def test_the_routes_of_files_are_activity_and_the_list_is_not(
    api: httpx.Client, project: str
) -> None:
    create(api, project)
    base = f"/api/sandboxes/{project}"

    def find_active_at() -> str:
        return str(api.get(f"{base}/explain").json()["lastActiveAt"] or "")

    before = find_active_at()
    assert api.get(f"{base}/files").status_code == 200
    assert find_active_at() == before
    assert api.get(f"{base}/explain").json()["ignoredPassiveSource"] == "files"
    for method, path, content in (
        ("PUT", "files/a.txt", b"one"),
        ("GET", "files/a.txt", None),
        ("GET", "archive", None),
        ("POST", "capture", None),
        ("DELETE", "files/a.txt", None),
    ):
        assert api.request(method, f"{base}/{path}", content=content).status_code == 200
        after = find_active_at()
        assert after > before, (method, path)
        before = after
    assert api.get(f"{base}/explain").json()["lastActiveSource"] == "files"
