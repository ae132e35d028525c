"""Sessions from outside: HTTP and the official SDK against a running keeper and real sandboxes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import e2b
import httpx
import pytest

from sandkeeper.api.schemas.sessions import SdkConnection
from sandkeeper.client.sdk_handles import build_sdk_sandbox
from support.eventually import eventually_sync
from support.keeper_process import Keeper

Acquire = Callable[..., dict[str, Any]]


def open_native(found: dict[str, Any]) -> e2b.Sandbox:
    """The official SDK's own object, made from the answer alone."""
    return build_sdk_sandbox(e2b.Sandbox, SdkConnection(**found["connection"]))


def test_sixty_four_acquires_of_one_key_make_one_sandbox(
    sessions: Keeper, api: httpx.Client, user: str, acquire: Acquire
) -> None:
    with ThreadPoolExecutor(64) as pool:
        found = list(pool.map(lambda _: acquire(), range(64)))
    assert len({one["connection"]["instanceId"] for one in found}) == 1
    assert len({one["id"] for one in found}) == 1
    assert sorted(one["source"] for one in found) == ["created", *["reused"] * 63]
    assert len({one["lease"]["id"] for one in found}) == 64
    ours = [one for one in sessions.instances() if one["metadata"].get("session_user") == user]
    assert len(ours) == 1


def test_the_next_request_of_a_conversation_finds_its_files(acquire: Acquire, user: str) -> None:
    first = acquire(None, conversationId="local-42")
    assert (first["source"], first["key"]) == ("created", f"{user}:local-42")
    assert first["taskIdSource"] == "conversation"
    open_native(first).files.write("/home/user/notes.txt", "kept")
    second = acquire(None, conversationId="local-42")
    assert second["source"] == "reused"
    assert open_native(second).files.read("/home/user/notes.txt") == "kept"
    assert second["uses"] == 2
    assert acquire("other")["connection"]["instanceId"] != first["connection"]["instanceId"]
    generated = acquire(None)
    assert generated["taskIdSource"] == "generated"
    assert generated["key"].startswith(f"{user}:")


def test_a_dead_sandbox_is_replaced_within_one_acquire_and_keeps_its_files(
    sessions: Keeper, api: httpx.Client, acquire: Acquire
) -> None:
    first = acquire()
    open_native(first).files.write("/home/user/work.txt", "precious")
    captured = api.post(f"/api/sandboxes/{first['sandbox']['project']}/capture", json={})
    assert captured.status_code == 200, captured.text
    with sessions.engine_client() as engine:
        engine.delete(f"/sandboxes/{first['connection']['instanceId']}")
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: acquire(), range(8)))
    assert len({one["connection"]["instanceId"] for one in found}) == 1
    assert found[0]["connection"]["instanceId"] != first["connection"]["instanceId"]
    assert {one["id"] for one in found} == {first["id"]}
    assert "replaced" in {one["source"] for one in found}
    assert open_native(found[0]).files.read("/home/user/work.txt") == "precious"


def test_a_sleeping_session_is_woken_and_one_with_the_pause_policy_only_sleeps(
    api: httpx.Client, acquire: Acquire
) -> None:
    first = acquire(onIdle="pause", idleTimeoutMs=1000, leaseMs=1000)
    open_native(first).files.write("/home/user/notes.txt", "kept")
    path = f"/api/sandboxes/{first['sandbox']['project']}/status"
    eventually_sync(lambda: api.get(path).json()["status"] == "PAUSED", within_s=60)
    assert api.get(f"/api/sessions/{first['id']}").json()["sandbox"]["status"] == "PAUSED"
    again = acquire()
    assert (again["id"], again["source"]) == (first["id"], "woken")
    assert again["connection"]["instanceId"] == first["connection"]["instanceId"]
    assert open_native(again).files.read("/home/user/notes.txt") == "kept"


def test_a_release_without_a_lease_names_those_that_remain_and_so_does_explain(
    api: httpx.Client, acquire: Acquire
) -> None:
    held = acquire("held")
    lease = held["lease"]["id"]
    path = f"/api/sessions/{held['id']}/release"
    for body in ({"json": {}}, {}):
        remaining = api.post(path, **body).json()["leases"]
        assert [one["id"] for one in remaining] == [lease]
    explained = api.get(f"/api/sandboxes/{held['sandbox']['project']}/explain").json()
    assert [(one["id"], one["holder"]) for one in explained["leases"]] == [
        (lease, held["lease"]["holder"])
    ]
    assert api.post(path, json={"leaseId": lease}).json()["leases"] == []


def test_clean_up_closes_exactly_the_idle(api: httpx.Client, acquire: Acquire) -> None:
    idle = acquire("idle", idleTimeoutMs=1000, leaseMs=1000)
    held = acquire("held", idleTimeoutMs=1000, leaseMs=600_000)
    busy = acquire("busy", idleTimeoutMs=600_000)
    released = acquire("released", idleTimeoutMs=1000, leaseMs=600_000)
    done = api.post(
        f"/api/sessions/{released['id']}/release", json={"leaseId": released["lease"]["id"]}
    )
    assert done.status_code == 200
    for one in (idle, released):
        path = f"/api/sessions/{one['id']}"
        eventually_sync(lambda path=path: api.get(path).status_code == 404, within_s=60)
        status = f"/api/sandboxes/{one['sandbox']['project']}/status"
        eventually_sync(
            lambda path=status: api.get(path).json()["status"] == "TERMINATED", within_s=60
        )
    for one in (held, busy):
        assert api.get(f"/api/sessions/{one['id']}").json()["sandbox"]["status"] == "RUNNING"
    again = acquire("idle")
    assert (again["source"], again["id"] != idle["id"]) == ("created", True)


def test_a_lease_keeps_a_silent_commands_sandbox_awake_until_its_holder_dies(
    api: httpx.Client, acquire: Acquire
) -> None:
    """Ten minutes of idle time are one second here, so that its six stand for an hour."""
    found = acquire(idleTimeoutMs=1000, leaseMs=3000, onIdle="pause")
    path = f"/api/sandboxes/{found['sandbox']['project']}/status"
    lease = f"/api/leases/{found['lease']['id']}"
    silent = open_native(found).commands.run("sleep 6; echo done", background=True)
    for _ in range(3):
        # The sandbox would be asleep after a second; what would end it has many chances to.
        silent_for = open_native(found).commands.run("sleep 1.5; echo still", timeout=60)
        assert silent_for.stdout == "still\n"
        assert api.get(path).json()["status"] == "RUNNING"
        assert api.post(lease, json={"leaseMs": 3000}).status_code == 200
    assert silent.wait().stdout == "done\n"
    eventually_sync(lambda: api.get(path).json()["status"] == "PAUSED", within_s=60)
    gone = api.post(lease, json={})
    assert (gone.status_code, gone.json()["code"]) == (404, "lease_not_found")


def test_a_sandbox_is_handed_to_another_conversation_with_its_files(
    api: httpx.Client, acquire: Acquire, user: str
) -> None:
    first = acquire("old")
    open_native(first).files.write("/home/user/draft.txt", "a draft")
    taken = acquire("taken")
    path = f"/api/sessions/{first['id']}/transfer"
    refused = api.post(path, json={"taskId": "taken"})
    assert (refused.status_code, refused.json()["code"]) == (409, "session_exists")
    moved = api.post(path, json={"conversationId": "new"})
    assert moved.json()["key"] == f"{user}:new"
    there = acquire("new")
    assert (there["id"], there["source"]) == (first["id"], "reused")
    assert open_native(there).files.read("/home/user/draft.txt") == "a draft"
    assert acquire("old")["source"] == "created"
    assert api.delete(f"/api/sessions/{taken['id']}").status_code == 204
    assert api.post(path, json={"taskId": "taken"}).json()["key"] == f"{user}:taken"


def test_conversations_share_a_sandbox_and_have_a_folder_each(
    api: httpx.Client, acquire: Acquire
) -> None:
    one, two = acquire("one", shared=True), acquire("täsk: two/..", shared=True)
    assert one["connection"]["instanceId"] == two["connection"]["instanceId"]
    assert one["workdir"] != two["workdir"]
    native = open_native(two)
    for found in (one, two):
        assert native.commands.run("pwd", cwd=found["workdir"]).stdout == f"{found['workdir']}\n"
    assert api.delete(f"/api/sessions/{one['id']}").status_code == 204
    status = f"/api/sandboxes/{two['sandbox']['project']}/status"
    assert api.get(status).json()["status"] == "RUNNING"
    assert api.delete(f"/api/sessions/{two['id']}").status_code == 204
    # A provider that refuses at that moment is asked again by the clean-up.
    eventually_sync(lambda: api.get(status).json()["status"] == "TERMINATED", within_s=90)


def test_a_sandbox_that_fails_its_check_is_replaced_and_no_other(
    api: httpx.Client, acquire: Acquire
) -> None:
    """For the provider it runs; but its shell ends at once, so it is no use to anybody."""
    failures = api.get("/api/sessions/metrics").json()["execution"]["health_check_failures"]
    first, other = acquire("sick"), acquire("other")
    open_native(first).commands.run("echo 'exit 1' > /home/user/.bash_profile")
    again = acquire("sick")
    assert (again["id"], again["source"]) == (first["id"], "replaced")
    assert open_native(again).commands.run("echo well").stdout == "well\n"
    assert acquire("other")["connection"]["instanceId"] == other["connection"]["instanceId"]
    after = api.get("/api/sessions/metrics").json()["execution"]["health_check_failures"]
    assert after > failures


ODD = [
    ({"userId": "", "taskId": "t"}, "empty"),
    ({"userId": "   ", "taskId": "t"}, "empty"),
    ({"userId": "u", "taskId": "x" * 10_240}, "10240 characters"),
    ({"userId": "u", "taskId": "a\nb"}, "cannot be printed"),
    ({"userId": "u", "taskId": "t", "kind": "spaceship"}, "execution"),
    ({"userId": "u", "taskId": "t", "colour": "red"}, "colour"),
    ({"taskId": "t"}, "userId"),
]


@pytest.mark.parametrize(("body", "said"), ODD)
def test_bad_input_is_refused_in_clear_words(
    api: httpx.Client, body: dict[str, Any], said: str
) -> None:
    before = api.get("/api/sessions/metrics").json()["totals"]["total_created"]
    answer = api.post("/api/sessions/acquire", json=body)
    assert answer.status_code == 422
    assert said in answer.json()["detail"]
    assert api.get("/api/sessions/metrics").json()["totals"]["total_created"] >= before


def test_an_unknown_template_is_an_error_and_leaves_no_session_open(
    api: httpx.Client, user: str
) -> None:
    body = {"userId": user, "taskId": "t", "template": "no-such-template"}
    for _ in range(2):
        answer = api.post("/api/sessions/acquire", json=body)
        assert answer.status_code == 422, answer.text
        assert "no-such-template" in answer.json()["detail"]


def test_odd_keys_stay_apart(api: httpx.Client, user: str) -> None:
    """A colon in either part must not make two keys one."""
    keys = [(f"{user}:a", "b"), (user, "a:b"), (user, "日本語 🐍"), (user, "a%3Ab")]
    found = [
        api.post("/api/sessions/acquire", json={"userId": one, "taskId": task}).json()
        for one, task in keys
    ]
    assert len({one["connection"]["instanceId"] for one in found}) == len(keys)
    assert [one["key"] for one in found] == [f"{one}:{task}" for one, task in keys]
