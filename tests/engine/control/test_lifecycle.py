"""What may happen to a sandbox, driven over the wire and by the official SDK."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

import httpx
import pytest
from e2b import CommandExitException, Sandbox

from support.engine_process import Engine
from support.eventually import eventually_sync


@pytest.fixture
def api(engine: Engine) -> Iterator[httpx.Client]:
    with engine.client() as client:
        yield client


@pytest.fixture
def box(engine: Engine) -> Iterator[Sandbox]:
    sandbox = Sandbox.create(timeout=600, **engine.sdk_options())
    yield sandbox
    sandbox.kill()


def create(api: httpx.Client, **body: Any) -> dict[str, Any]:
    answer = api.post("/v2/sandboxes", json={"templateID": "base", "timeout": 600, **body})
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


def event_types(api: httpx.Client, sandbox_id: str) -> list[str]:
    events = api.get(f"/events/sandboxes/{sandbox_id}", params={"limit": 100, "orderAsc": "true"})
    return [event["type"].rpartition(".")[2] for event in events.json()]


def test_files_of_every_run_are_there_after_every_resume(engine: Engine, box: Sandbox) -> None:
    """Twenty pauses, an edit before each; every fourth ends the processes as well."""
    for cycle in range(20):
        box.files.write(f"cycle-{cycle}.txt", str(cycle))
        box.files.write("newest.txt", str(cycle))
        assert box.pause(mode="filesystem" if cycle % 4 == 3 else "full")
        box = Sandbox.connect(box.sandbox_id, timeout=600, **engine.sdk_options())
        kept = box.commands.run("cat newest.txt; echo; echo cycle-*.txt | wc -w").stdout.split()
        assert kept == [str(cycle), str(cycle + 1)]
    names = " ".join(f"cycle-{cycle}.txt" for cycle in range(20))
    assert box.commands.run(f"cat {names}").stdout == "".join(map(str, range(20)))


def test_files_tell_a_program_which_sandbox_it_is_in(engine: Engine, box: Sandbox) -> None:
    """Also without the variables, as in a service, and in a fork its own."""
    fork = box.fork(timeout=600)[0]
    for one in (box, fork):
        for name in ("E2B_SANDBOX", "E2B_SANDBOX_ID", "E2B_TEMPLATE_ID"):
            known = one.commands.run(f"printenv {name}").stdout.strip()
            assert one.commands.run(f"cat /run/e2b/.{name}").stdout == known
        assert one.commands.run("cat /run/e2b/.E2B_SANDBOX_ID").stdout == one.sandbox_id
    fork.kill()
    box.pause(mode="filesystem")
    again = Sandbox.connect(box.sandbox_id, timeout=600, **engine.sdk_options())
    assert again.commands.run("cat /run/e2b/.E2B_SANDBOX_ID").stdout == box.sandbox_id


def test_a_pause_with_memory_keeps_the_processes(engine: Engine, box: Sandbox) -> None:
    handle = box.commands.run("sleep 1000", background=True)
    box.pause()
    back = Sandbox.connect(box.sandbox_id, timeout=600, **engine.sdk_options())
    assert handle.pid in [process.pid for process in back.commands.list()]


def test_a_pause_without_memory_keeps_the_disk_and_the_identity(
    engine: Engine, api: httpx.Client, box: Sandbox
) -> None:
    box.commands.run("sleep 1000", background=True)
    box.files.write("kept.txt", "kept")
    before = api.get(f"/sandboxes/{box.sandbox_id}").json()
    box.pause(mode="filesystem")
    assert api.get(f"/sandboxes/{box.sandbox_id}").json()["pauseMode"] == "filesystem"
    back = Sandbox.connect(box.sandbox_id, timeout=600, **engine.sdk_options())
    assert back.commands.list() == []
    assert back.files.read("kept.txt") == "kept"
    after = api.get(f"/sandboxes/{box.sandbox_id}").json()
    assert after["envdAccessToken"] == before["envdAccessToken"]
    assert "pauseMode" not in after


def test_each_run_has_an_execution_id_of_its_own(api: httpx.Client, box: Sandbox) -> None:
    box.pause()
    api.post(f"/sandboxes/{box.sandbox_id}/connect", json={"timeout": 60}).raise_for_status()
    events = api.get(f"/events/sandboxes/{box.sandbox_id}", params={"orderAsc": "true"}).json()
    created, paused, resumed = events
    assert created["sandboxExecutionId"] == paused["sandboxExecutionId"]
    assert created["sandboxExecutionId"] != resumed["sandboxExecutionId"]


def test_a_second_pause_is_told_that_the_first_did_it(api: httpx.Client, box: Sandbox) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = pool.map(lambda _: api.post(f"/sandboxes/{box.sandbox_id}/pause"), range(8))
        assert sorted(answer.status_code for answer in answers) == [204] + [409] * 7
    assert event_types(api, box.sandbox_id) == ["created", "paused"]


def test_many_connects_of_a_paused_sandbox_make_one_resume(api: httpx.Client, box: Sandbox) -> None:
    box.pause()
    with ThreadPoolExecutor(8) as pool:
        answers = list(
            pool.map(
                lambda _: api.post(f"/v2/sandboxes/{box.sandbox_id}/connect", json={}), range(8)
            )
        )
    assert sorted(answer.status_code for answer in answers) == [200] * 7 + [201]
    assert event_types(api, box.sandbox_id).count("resumed") == 1


def test_a_connect_never_shortens_a_run(api: httpx.Client, box: Sandbox) -> None:
    before = api.get(f"/sandboxes/{box.sandbox_id}").json()["endAt"]
    answer = api.post(f"/v2/sandboxes/{box.sandbox_id}/connect", json={"timeout": 5})
    assert answer.status_code == 200
    assert api.get(f"/sandboxes/{box.sandbox_id}").json()["endAt"] == before
    api.post(f"/sandboxes/{box.sandbox_id}/connect", json={"timeout": 6000})
    assert api.get(f"/sandboxes/{box.sandbox_id}").json()["endAt"] > before
    api.post(f"/sandboxes/{box.sandbox_id}/timeout", json={"timeout": 300})
    assert api.get(f"/sandboxes/{box.sandbox_id}").json()["endAt"] < before
    api.post(f"/sandboxes/{box.sandbox_id}/refreshes", json={"duration": 1})
    assert api.get(f"/sandboxes/{box.sandbox_id}").json()["endAt"] < before


def test_a_resume_of_a_running_sandbox_is_refused(api: httpx.Client, box: Sandbox) -> None:
    assert api.post(f"/sandboxes/{box.sandbox_id}/resume", json={}).status_code == 409
    box.pause()
    assert api.post(f"/sandboxes/{box.sandbox_id}/timeout", json={"timeout": 9}).status_code == 404
    assert api.post(f"/sandboxes/{box.sandbox_id}/resume", json={}).status_code == 201


def test_a_run_that_is_over_ends_in_a_kill(api: httpx.Client) -> None:
    made = create(api, timeout=1)
    eventually_sync(lambda: api.get(f"/sandboxes/{made['sandboxID']}").status_code == 404)
    (killed, _) = api.get(f"/events/sandboxes/{made['sandboxID']}").json()
    assert killed["type"] == "sandbox.lifecycle.killed"
    assert killed["eventData"]["kill_reason"] == "timeout"
    assert killed["eventData"]["execution"]["execution_time"] >= 1000


def test_a_run_that_is_over_ends_in_a_pause_where_that_was_asked_for(api: httpx.Client) -> None:
    made = create(api, timeout=1, autoPause=True)
    path = f"/sandboxes/{made['sandboxID']}"
    eventually_sync(lambda: api.get(path).json()["state"] == "paused")
    assert api.get(path).json()["lifecycle"] == {"autoResume": False, "onTimeout": "pause"}
    # The policy outlives the resume.
    assert api.post(path + "/connect", json={"timeout": 1}).status_code == 201
    eventually_sync(lambda: api.get(path).json()["state"] == "paused")
    assert api.delete(path).status_code == 204


def test_a_timeout_of_zero_ends_the_run_at_once(api: httpx.Client) -> None:
    made = create(api)
    path = f"/sandboxes/{made['sandboxID']}"
    assert api.post(path + "/timeout", json={"timeout": 0}).status_code == 204
    eventually_sync(lambda: api.get(path).status_code == 404)


@pytest.mark.parametrize(("path", "seconds"), [("/sandboxes", 15), ("/v2/sandboxes", 300)])
def test_each_version_of_create_has_its_own_default(
    api: httpx.Client, path: str, seconds: int
) -> None:
    made = api.post(path, json={"templateID": "base"}).json()
    told = api.get(f"/sandboxes/{made['sandboxID']}").json()
    started, end = (datetime.fromisoformat(told[name]) for name in ("startedAt", "endAt"))
    assert (end - started).total_seconds() == pytest.approx(seconds)
    api.delete(f"/sandboxes/{made['sandboxID']}")


def test_rules_for_the_network_are_kept_or_refused(api: httpx.Client) -> None:
    body = {"templateID": "base", "network": {"denyOut": ["not a range"]}}
    refused = api.post("/v2/sandboxes", json=body)
    assert refused.status_code == 400
    assert "network" in refused.json()["message"]
    asked = {"allowOut": ["192.0.2.1/32"], "denyOut": ["0.0.0.0/0"]}
    answer = api.post("/v2/sandboxes", json={"templateID": "base", "network": asked})
    if answer.status_code == 400:
        assert "network" in answer.json()["message"]
        return
    path = f"/sandboxes/{answer.json()['sandboxID']}"
    assert api.get(path).json()["network"] == asked
    assert api.put(path + "/network", json={"denyOut": ["192.0.2.0/24"]}).status_code == 204
    assert api.get(path).json()["network"] == {"denyOut": ["192.0.2.0/24"]}
    assert api.put(path + "/network", json={"dnsServers": ["192.0.2.1"]}).status_code == 400
    api.delete(path)


def test_a_killed_sandbox_is_gone_everywhere(
    engine: Engine, api: httpx.Client, box: Sandbox
) -> None:
    box.pause()
    assert box.kill()
    assert not box.kill()
    assert api.get(f"/sandboxes/{box.sandbox_id}").status_code == 404
    assert box.sandbox_id not in [one["sandboxID"] for one in api.get("/v2/sandboxes").json()]
    assert not (engine.data / "sandboxes" / box.sandbox_id).exists()
    # E2B is silent about the end of a paused sandbox; this engine is not.
    assert event_types(api, box.sandbox_id) == ["created", "paused", "killed"]


def envd(engine: Engine, made: dict[str, Any], token: str | None) -> httpx.Response:
    headers = {"E2b-Sandbox-Id": made["sandboxID"], "E2b-Sandbox-Port": "49983"}
    if token is not None:
        headers["X-Access-Token"] = token
    return httpx.get(f"{engine.url}/envs", headers=headers, timeout=60)


def test_traffic_wakes_a_sandbox_that_wants_it(engine: Engine, api: httpx.Client) -> None:
    made = create(api, autoPause=True, autoResume={"enabled": True})
    path = f"/sandboxes/{made['sandboxID']}"
    assert api.post(path + "/pause").status_code == 204
    assert envd(engine, made, "wrong").status_code in (401, 403, 502)
    assert api.get(path).json()["state"] == "paused"
    assert envd(engine, made, made["envdAccessToken"]).status_code == 200
    assert api.get(path).json()["state"] == "running"
    assert event_types(api, made["sandboxID"]) == ["created", "paused", "resumed"]
    api.delete(path)


def test_traffic_does_not_wake_a_sandbox_that_sleeps(engine: Engine, api: httpx.Client) -> None:
    made = create(api)
    path = f"/sandboxes/{made['sandboxID']}"
    api.post(path + "/pause")
    answer = envd(engine, made, made["envdAccessToken"])
    assert (answer.status_code, answer.json()) == (
        502,
        {"sandboxId": made["sandboxID"], "message": "The sandbox was not found", "code": 502},
    )
    assert api.get(path).json()["state"] == "paused"
    api.delete(path)


def test_a_snapshot_outlives_its_source(engine: Engine, api: httpx.Client, box: Sandbox) -> None:
    box.files.write("then.txt", "then")
    box.commands.run("rm -f .profile")
    snapshot = box.create_snapshot()
    box.files.write("then.txt", "later")
    listed = api.get("/snapshots", params={"sandboxID": box.sandbox_id}).json()
    assert [one["snapshotID"] for one in listed] == [snapshot.snapshot_id]
    box.kill()
    restored = Sandbox.create(snapshot.snapshot_id, timeout=60, **engine.sdk_options())
    assert restored.files.read("then.txt") == "then"
    assert not restored.files.exists(".profile")
    assert Sandbox.delete_snapshot(snapshot.snapshot_id, **engine.sdk_options())
    assert not Sandbox.delete_snapshot(snapshot.snapshot_id, **engine.sdk_options())
    assert restored.files.read("then.txt") == "then"
    restored.kill()


def test_a_snapshot_never_claims_to_hold_memory(api: httpx.Client, box: Sandbox) -> None:
    path = f"/sandboxes/{box.sandbox_id}/snapshots"
    answer = api.post(path, json={"memory": True})
    assert answer.status_code == 400
    assert "memory" in answer.json()["message"]
    name = f"named-{time.time_ns()}"
    named = api.post(path, json={"name": name}).json()
    assert named == {"snapshotID": f"local/{name}:default", "names": [f"local/{name}:default"]}
    (_, checkpointed) = api.get(
        f"/events/sandboxes/{box.sandbox_id}", params={"orderAsc": "true"}
    ).json()
    assert checkpointed["eventData"] == {"memory": False}


def test_forks_are_independent_twins(engine: Engine, api: httpx.Client, box: Sandbox) -> None:
    box.files.write("shared.txt", "shared")
    forks = box.fork(count=2, timeout=60)
    for number, fork in enumerate(forks):
        assert isinstance(fork, Sandbox)
        assert fork.files.read("shared.txt") == "shared"
        fork.files.write("shared.txt", f"fork {number}")
    assert box.files.read("shared.txt") == "shared"
    assert [fork.files.read("shared.txt") for fork in forks] == ["fork 0", "fork 1"]
    for fork in forks:
        fork.kill()
    box.pause()
    assert api.post(f"/sandboxes/{box.sandbox_id}/fork", json={}).status_code == 409


def test_the_same_key_gives_the_same_sandbox(api: httpx.Client) -> None:
    body = {"templateID": "base", "timeout": 60}
    headers = {"Idempotency-Key": f"key-{time.time_ns()}"}
    with ThreadPoolExecutor(4) as pool:
        answers = list(
            pool.map(lambda _: api.post("/v2/sandboxes", json=body, headers=headers), range(4))
        )
    made = [answer.json()["sandboxID"] for answer in answers if answer.status_code == 201]
    assert len(set(made)) == 1
    for answer in answers:
        if answer.status_code != 201:
            assert answer.status_code == 409
            assert answer.json()["error_code"] == "idempotency_in_progress"
    again = api.post("/v2/sandboxes", json=body, headers=headers)
    assert again.json()["sandboxID"] == made[0]
    other = api.post("/v2/sandboxes", json={**body, "timeout": 61}, headers=headers)
    assert (other.status_code, other.json()["error_code"]) == (
        409,
        "idempotency_request_mismatch",
    )
    api.delete(f"/sandboxes/{made[0]}")


def test_a_sandbox_without_internet_reaches_nothing(engine: Engine) -> None:
    box = Sandbox.create(timeout=60, allow_internet_access=False, **engine.sdk_options())
    with contextlib.suppress(CommandExitException):
        box.commands.run("timeout 5 bash -c '</dev/tcp/192.0.2.1/80'")
        raise AssertionError("the network is there")
    assert box.get_info().allow_internet_access is False
    box.kill()


def test_the_first_question_about_the_processor_sees_a_busy_sandbox(
    engine: Engine, api: httpx.Client
) -> None:
    burn = "python3 -c 'import time\nwhile time.process_time() < 1.5: pass'"
    box = Sandbox.create(timeout=60, **engine.sdk_options())
    for _ in range(2):
        box.commands.run(burn)
        asked = api.get("/sandboxes/metrics", params={"sandbox_ids": box.sandbox_id}).json()
        assert asked["sandboxes"][box.sandbox_id]["cpuUsedPct"] > 10
        box.pause()
        box.connect(timeout=60)
    box.kill()


def test_metrics_and_logs_tell_of_a_sandbox(api: httpx.Client, box: Sandbox) -> None:
    path = f"/sandboxes/{box.sandbox_id}"
    eventually_sync(lambda: api.get(path + "/metrics").json())
    (metric, *_) = api.get(path + "/metrics").json()
    assert metric["memTotal"] > 0
    assert api.get(path + "/metrics", params={"start": int(time.time()) + 60}).json() == []
    many = api.get("/sandboxes/metrics", params={"sandbox_ids": f"{box.sandbox_id},inone"}).json()
    assert list(many["sandboxes"]) == [box.sandbox_id]
    assert '"sandbox created"' in api.get(path + "/logs").json()["logs"][0]["line"]
    assert api.get("/v2" + path + "/logs").json()["logs"][0]["level"] == "info"
