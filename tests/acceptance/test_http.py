"""The API's conventions, on the running server: access, errors, idempotency, paging, caching."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

import httpx
import pytest

from sandkeeper.api.auth import Access
from sandkeeper.api.routes import ROUTES
from sandkeeper.api.schemas.base import ApiModel
from sandkeeper.api.schemas.sandboxes import CompactStatus, Status
from support.eventually import eventually_sync
from support.keeper_process import Keeper

VIEWER = "sk_a_viewer"
GUARDED = [
    entry for entry in ROUTES if entry.access not in {Access.PUBLIC, Access.SIGNED, Access.MONITOR}
]
PROBLEM = {"type", "title", "status", "detail", "code", "retryable", "hint", "requestId"}


NO_PROJECTS = ("%2e", "%2e%2e", "%2E.", "pool:base", "session:..", "session:x", "job:x")


def path_of(entry: Any) -> str:
    return re.sub(r"\{\w+\}", "nothing-here", entry.path)


@pytest.fixture
def viewer(keeper: Keeper) -> Iterator[httpx.Client]:
    with keeper.client(VIEWER) as client:
        yield client


def test_no_route_lets_a_stranger_in(keeper: Keeper) -> None:
    with httpx.Client(base_url=keeper.url) as stranger:
        for entry in GUARDED:
            for headers in ({}, {"Authorization": "Bearer wrong"}):
                answer = stranger.request(entry.method, path_of(entry), headers=headers)
                assert answer.status_code == 401, entry
                assert answer.headers["www-authenticate"] == "Bearer"
                assert answer.json().keys() >= PROBLEM


def test_a_viewer_may_look_and_not_act(viewer: httpx.Client) -> None:
    for entry in GUARDED:
        if entry.path.endswith("/events"):
            continue
        body = {"kind": "passive"} if entry.path.endswith("/activity") else {}
        status = viewer.request(entry.method, path_of(entry), json=body).status_code
        if entry.access in {
            Access.WRITE_ONE,
            Access.OPERATE_ONE,
            Access.OPERATE_SOME,
            Access.OPERATE,
            Access.ADMIN,
        }:
            assert status == 403, entry
        else:
            assert status not in {401, 403}, entry


def test_a_client_token_opens_its_own_sandbox_and_no_other(
    keeper: Keeper, api: httpx.Client, project: str
) -> None:
    api.put(f"/api/sandboxes/{project}", json={})
    issued = api.post("/api/client-tokens", json={"project": project, "ttlS": 60})
    assert issued.status_code == 201
    with keeper.client(issued.json()["token"]) as client:
        assert client.get(f"/api/sandboxes/{project}/status").status_code == 200
        assert client.post(f"/api/sandboxes/{project}/activity").status_code == 202
        assert client.get("/api/me").json()["owner"] == {"kind": "project", "id": project}
        for method, path in (
            ("GET", "/api/sandboxes/another/status"),
            ("GET", "/api/sandboxes"),
            ("GET", "/api/fleet/summary"),
            ("DELETE", f"/api/sandboxes/{project}"),
            ("POST", "/api/client-tokens"),
        ):
            assert client.request(method, path, json={}).status_code == 403, path


def test_a_login_is_a_cookie_that_acts_for_our_own_pages_only(keeper: Keeper) -> None:
    with keeper.browser() as browser:
        assert browser.post("/api/login", json={"key": "wrong"}).status_code == 401
        answer = browser.post("/api/login", json={"key": keeper.key})
        assert answer.status_code == 200
        cookie = answer.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert keeper.key not in cookie
        assert browser.get("/api/me").json()["role"] == "operator"
        body = {"sse": True}
        assert browser.patch("/api/switches", json=body).status_code == 403
        ours = {"Origin": keeper.dashboard_url}
        assert browser.patch("/api/switches", json=body, headers=ours).status_code == 200
        theirs = {"Origin": "https://evil.example"}
        assert browser.patch("/api/switches", json=body, headers=theirs).status_code == 403
        assert browser.post("/api/logout").status_code == 403
        assert browser.post("/api/logout", headers=ours).status_code == 204
        assert browser.get("/api/me").status_code == 401


@pytest.mark.parametrize(
    ("method", "path", "content", "status", "code"),
    [
        ("GET", "/api/nothing", None, 404, "route_not_found"),
        ("POST", "/api/sandboxes", b"{}", 405, "method_not_allowed"),
        ("PUT", "/api/sandboxes/p/status", b"{}", 405, "method_not_allowed"),
        ("PUT", "/api/sandboxes/p", b"{", 400, "malformed_request"),
        ("PUT", "/api/sandboxes/p", b'{"port": 0}', 422, "invalid_request"),
        ("PUT", "/api/sandboxes/p", b'{"surprise": 1}', 422, "invalid_request"),
        ("PUT", "/api/sandboxes/p", b'{"policy": {"idleTimeoutMs": -1}}', 422, "invalid_request"),
        ("PUT", "/api/sandboxes/p", b'{"region": "moon"}', 422, "invalid_request"),
        ("PUT", "/api/sandboxes/p", b"x" * 2_000_000, 413, "payload_too_large"),
        *(("PUT", f"/api/sandboxes/{name}", b"{}", 422, "invalid_request") for name in NO_PROJECTS),
        ("POST", "/api/jobs", b'{"job_id": ".."}', 422, "invalid_request"),
        ("POST", "/api/sandboxes/%2e%2e/adopt", b'{"instanceId": "i1"}', 422, "invalid_request"),
        ("POST", "/api/sandboxes/p/activity", b"[]", 422, "invalid_request"),
        ("POST", "/api/sandboxes/p/activity", b"nonsense", 400, "malformed_request"),
        ("GET", "/api/sandboxes?state=AWAKE", None, 422, "invalid_request"),
        ("GET", "/api/sandboxes?cursor=nonsense", None, 422, "invalid_request"),
        ("GET", "/api/sandboxes?sort=luck", None, 422, "invalid_request"),
        ("GET", "/api/sandboxes?limit=100000", None, 422, "invalid_request"),
        ("POST", "/api/tasks/unknown/run", b"", 404, "task_not_found"),
    ],
)
def test_every_error_has_one_shape(
    api: httpx.Client, method: str, path: str, content: bytes | None, status: int, code: str
) -> None:
    headers = {"Content-Type": "application/json", "X-Request-Id": "asked-for-this"}
    answer = api.request(method, path, content=content, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json().keys() >= PROBLEM
    assert answer.json()["requestId"] == "asked-for-this"
    assert answer.headers["x-request-id"] == "asked-for-this"


LAUNCHES = {
    "PUT /api/sandboxes/p": {},
    "POST /api/jobs": {"job_id": "p"},
    "POST /api/sessions/acquire": {"userId": "p"},
    "POST /api/sandboxes/p/adopt": {"instanceId": "i1"},
}


@pytest.mark.parametrize("route", LAUNCHES)
def test_what_no_program_can_be_given_is_refused_at_once(api: httpx.Client, route: str) -> None:
    method, path = route.split()
    commands = {"start_command", "startCommand", "workdir", "workspace_path", "template"}
    asked: list[dict[str, Any]] = [{field: "a\0b"} for field in commands]
    asked += [{"env": {name: "x"}} for name in ("A\nB", "A=B", "A\0B", "", "1A")]
    asked += [{"env": {"A": "\0"}}, {"metadata": {"a": "\0"}}, {"metadata": {"\0": "a"}}]
    for one in asked:
        answer = api.request(method, path, json=LAUNCHES[route] | one)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request"), one
    assert api.get("/api/sandboxes/p/status").status_code == 404


def test_metrics_and_details_are_open_on_loopback_by_this_machines_names_only(
    keeper: Keeper,
) -> None:
    for host in ("127.0.0.1:1", "localhost", "[::1]:1", "sandkeeper.localhost"):
        assert httpx.get(f"{keeper.url}/metrics", headers={"Host": host}).status_code == 200
        assert "tasks" in httpx.get(f"{keeper.url}/readyz", headers={"Host": host}).json()
    for host in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:1"):
        assert httpx.get(f"{keeper.url}/metrics", headers={"Host": host}).status_code == 401
        assert httpx.get(f"{keeper.url}/readyz", headers={"Host": host}).json().keys() == {"status"}
        with keeper.client() as api:
            assert api.get("/metrics", headers={"Host": host}).status_code == 200


def test_status_is_exactly_what_its_schema_says(api: httpx.Client, project: str) -> None:
    made = api.put(f"/api/sandboxes/{project}", json={"metadata": {"team": "a"}, "port": 3000})
    answer = api.get(f"/api/sandboxes/{project}/status")
    names = {field.alias for field in Status.model_fields.values()}
    assert answer.json().keys() == names
    Status.model_validate(answer.json())
    assert answer.headers["etag"] == f'"v{answer.json()["version"]}"'
    assert made.json()["metadata"] == {"team": "a"}
    unchanged = api.get(
        f"/api/sandboxes/{project}/status", headers={"If-None-Match": answer.headers["etag"]}
    )
    assert (unchanged.status_code, unchanged.content) == (304, b"")


def test_a_tenant_is_shown_filtered_by_and_kept_by_the_next_instance(
    api: httpx.Client, project: str
) -> None:
    path, tenant = f"/api/sandboxes/{project}", f"t-{project}"
    for bad in ("", "a/b", "x" * 65, "..", "a\n", 7):
        assert api.put(path, json={"tenant": bad}).status_code == 422, bad
    assert api.get(f"{path}/status").status_code == 404
    assert api.put(path, json={"tenant": tenant}).json()["tenant"] == tenant
    api.delete(path).raise_for_status()
    api.post(f"{path}/wake?wait=60", json={}).raise_for_status()
    again = api.get(f"{path}/status").json()
    assert (again["generation"], again["tenant"]) == (2, tenant)
    for query in ({"tenant": tenant}, {"search": tenant}):
        listed = api.get("/api/sandboxes", params=query).json()["items"]
        assert [one["project"] for one in listed] == [project], query
    assert api.get("/api/sandboxes", params={"tenant": "unknown"}).json()["items"] == []
    job = api.post("/api/jobs", json={"job_id": project, "port": None, "tenant": tenant}).json()
    session = api.post(
        "/api/sessions/acquire", json={"userId": project, "template": "base", "tenant": tenant}
    ).json()
    for slug in (f"job:{job['job_id']}", session["sandbox"]["project"]):
        assert api.get(f"/api/sandboxes/{slug}/status").json()["tenant"] == tenant


def prepare(api: httpx.Client, project: str, path: str) -> str:
    """Make what the path speaks of, and give the session's id if it is one."""
    if "{job}" in path or path == "/api/dashboard":
        body = {"job_id": project, "port": None}
        api.post("/api/jobs", json=body).raise_for_status()
    elif "{session}" in path:
        kind = "desktop" if path.endswith("/stream") else "execution"
        body = {"userId": project, "taskId": "t", "template": "base", "kind": kind}
        return str(api.post("/api/sessions/acquire", json=body).raise_for_status().json()["id"])
    else:
        api.put(f"/api/sandboxes/{project}", json={}).raise_for_status()
    if "{number}" in path:
        api.put(f"/api/sandboxes/{project}/files/a.txt", content=b"x").raise_for_status()
    if path.endswith("/wake"):
        api.post(f"/api/sandboxes/{project}/wake?wait=60", json={}).raise_for_status()
    return ""


@pytest.mark.parametrize(
    ("path", "schema"),
    [
        (entry.path, entry.answer)
        for entry in ROUTES
        if entry.method == "GET" and isinstance(entry.answer, type)
    ],
)
def test_every_answer_is_what_its_schema_says(
    api: httpx.Client, project: str, path: str, schema: type[ApiModel]
) -> None:
    session = prepare(api, project, path)
    named = path.replace("{path:path}", "a.txt")
    answer = api.get(named.format(project=project, job=project, session=session, number=1))
    assert answer.status_code == 200, answer.text
    parsed = schema.model_validate_json(answer.content)
    names = {field.alias or name for name, field in schema.model_fields.items()}
    assert answer.json().keys() == names
    assert parsed


def test_the_same_key_does_the_work_once(api: httpx.Client, project: str) -> None:
    path, key = f"/api/sandboxes/{project}", {"Idempotency-Key": f"key-{project}"}
    first = api.put(path, json={"template": "base"}, headers=key)
    again = api.put(path, json={"template": "base"}, headers=key)
    assert first.status_code == again.status_code == 201
    assert first.json() == again.json()
    assert again.headers["idempotency-replayed"] == "true"
    other = api.put(path, json={"template": "other"}, headers=key)
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_mismatch")


def test_many_who_create_at_once_get_one_sandbox(keeper: Keeper, project: str) -> None:
    def create(_: int) -> dict[str, Any]:
        with keeper.client() as client:
            answer = client.put(f"/api/sandboxes/{project}", json={})
            assert answer.status_code in {200, 201}, answer.text
            made: dict[str, Any] = answer.json()
            return made

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(create, range(8)))
    assert len({one["id"] for one in answers}) == 1
    with keeper.client() as client:
        status = eventually_sync(
            lambda: (
                (seen := client.get(f"/api/sandboxes/{project}/status").json())["status"]
                == "RUNNING"
                and seen
            )
        )
    ours = [one for one in keeper.instances() if project in json.dumps(one["metadata"])]
    assert [one["sandboxID"] for one in ours] == [status["instanceId"]]


def test_a_list_is_sent_short_and_only_if_it_changed(api: httpx.Client, project: str) -> None:
    for number in range(3):
        api.put(f"/api/sandboxes/{project}-{number}", json={}).raise_for_status()
    query = {"search": project, "sort": "owner"}
    plain = api.get("/api/sandboxes", params=query, headers={"Accept-Encoding": "identity"})
    zipped = api.get("/api/sandboxes", params=query, headers={"Accept-Encoding": "gzip"})
    assert zipped.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert int(zipped.headers["content-length"]) < int(plain.headers["content-length"]) / 2
    assert zipped.content == plain.content
    for accepted, sent in (
        ("gzip, zstd", "zstd"),
        ("gzip;q=1.0, ZSTD; q=0.5", "zstd"),
        ("zstd;q=0, gzip", "gzip"),
        ("br, zstd;q=0.000", None),
    ):
        encoded = api.get("/api/sandboxes", params=query, headers={"Accept-Encoding": accepted})
        assert encoded.headers.get("content-encoding") == sent, accepted
        assert len(encoded.json()["items"]) == 3, accepted

    def find_unchanged() -> dict[str, str] | None:
        """Return the name of a list that nothing changed since, such as a capture."""
        tag = {"If-None-Match": api.get("/api/sandboxes", params=query).headers["etag"]}
        again = api.get("/api/sandboxes", params=query, headers=tag)
        return tag if again.status_code == 304 else None

    known = eventually_sync(find_unchanged)
    api.post(f"/api/sandboxes/{project}-1/pause").raise_for_status()
    changed = api.get("/api/sandboxes", params=query, headers=known)
    assert [item["status"] for item in changed.json()["items"]] == ["RUNNING", "PAUSED", "RUNNING"]
    compact = api.get("/api/sandboxes", params={**query, "fields": "compact"}).json()["items"]
    names = {field.alias for field in CompactStatus.model_fields.values()}
    for short, whole in zip(compact, changed.json()["items"], strict=True):
        assert short == {name: whole[name] for name in names}


def test_pages_follow_each_other_without_gap_or_repetition(api: httpx.Client, project: str) -> None:
    names = {f"{project}-{number}" for number in range(5)}
    for name in names:
        api.put(f"/api/sandboxes/{name}", json={})
    for sort in ("owner", "-created", "state"):
        seen: list[str] = []
        cursor = None
        while True:
            query = {"search": project, "sort": sort, "limit": 2}
            page = api.get("/api/sandboxes", params=query | ({"cursor": cursor} if cursor else {}))
            seen += [item["project"] for item in page.json()["items"]]
            cursor = page.json()["nextCursor"]
            if cursor is None:
                break
        assert len(seen) == 5, sort
        assert set(seen) == names


def test_bulk_counts_dry_then_tells_the_result_of_each(api: httpx.Client, project: str) -> None:
    names = [f"{project}-{number}" for number in range(3)]
    for name in names:
        api.put(f"/api/sandboxes/{name}", json={})
    body = {"action": "pause", "projects": [*names, "unknown-one"]}
    dry = api.post("/api/fleet/bulk", json={**body, "dryRun": True}).json()
    assert [item["status"] for item in dry["items"]] == ["RUNNING"] * 3 + [None]
    done = api.post("/api/fleet/bulk", json=body).json()
    assert [item["status"] for item in done["items"]] == ["PAUSED"] * 3 + [None]
    assert done["items"][3]["code"] == "sandbox_not_found"


def test_a_bulk_by_filter_names_each_page_and_counts_all(api: httpx.Client, project: str) -> None:
    for number in range(3):
        api.put(f"/api/sandboxes/{project}-{number}", json={})
    body = {"action": "pause", "filter": {"search": project, "state": "RUNNING"}}
    dry = api.post("/api/fleet/bulk", json={**body, "dryRun": True}).json()
    assert (dry["matched"], dry["count"], dry["nextCursor"]) == (3, 3, None)
    done = api.post("/api/fleet/bulk", json=body).json()
    assert [item["status"] for item in done["items"]] == ["PAUSED"] * 3
    assert api.post("/api/fleet/bulk", json=body).json()["matched"] == 0
    for wrong in ({}, {"projects": [project], "filter": {}}):
        assert api.post("/api/fleet/bulk", json={"action": "pause", **wrong}).status_code == 422
    overdue = api.get("/api/sandboxes", params={"search": project, "overdue": True}).json()
    assert overdue["items"] == []


def test_a_status_says_in_a_sentence_what_is_true_and_what_can_be_done(
    api: httpx.Client, project: str
) -> None:
    made = api.put(f"/api/sandboxes/{project}", json={}).json()["summary"]
    assert (made["word"], made["sentence"]) == ("Running", "It has no port, so no preview.")
    assert made["operations"] == ["pause", "extend", "verify", "kill"]
    paused = api.post(f"/api/sandboxes/{project}/pause").json()["summary"]
    assert (paused["word"], paused["sentence"]) == ("Asleep", "It was paused on request.")
    assert paused["operations"][0] == "wake"
    query = {"project": project, "actor": "operator", "type": "sandbox.state_changed"}
    found = api.get("/api/fleet/history", params=query | {"limit": 1}).json()["items"]
    assert [(one["project"], one["toState"]) for one in found] == [(project, "PAUSED")]
    since = {"since": "2999-01-01T00:00:00Z"}
    assert api.get("/api/fleet/history", params=since).json()["items"] == []
    assert api.get("/api/fleet/history", params={"since": "yesterday"}).status_code == 422


def test_the_health_names_each_part_what_it_is_for_and_what_helps(api: httpx.Client) -> None:
    parts = {part["name"]: part for part in api.get("/api/fleet/health").json()["parts"]}
    assert {"enforcer", "database", "feed", "webhooks", "clocks", "captures"} <= parts.keys()
    assert [part["state"] for name, part in parts.items() if name.startswith("provider:")] == ["ok"]
    assert all(part["finding"] and part["meaning"] and part["action"] for part in parts.values())


def test_a_switch_turns_one_part_off_while_it_runs(api: httpx.Client, project: str) -> None:
    api.put(f"/api/sandboxes/{project}", json={})
    api.patch("/api/switches", json={"webhooks": False, "sse": False})
    try:
        assert api.get("/readyz").json()["switches"]["webhooks"] is False
        refused = api.post("/api/webhooks/e2b", content=b"{}")
        assert (refused.status_code, refused.json()["code"]) == (503, "feature_disabled")
        stream = api.get(f"/api/sandboxes/{project}/events")
        assert (stream.status_code, stream.json()["code"]) == (503, "feature_disabled")
        assert api.get(f"/api/sandboxes/{project}/status").status_code == 200
    finally:
        api.patch("/api/switches", json={"webhooks": True, "sse": True})


def test_a_mismatch_report_is_counted_and_written_down(api: httpx.Client, project: str) -> None:
    api.put(f"/api/sandboxes/{project}", json={})
    body = {"shown": "PAUSED", "actual": "RUNNING", "evidence": "the frame loaded"}
    assert api.post(f"/api/sandboxes/{project}/report-mismatch", json=body).status_code == 202
    view = {"kind": "passive", "source": "pane", "pageView": True}
    assert api.post(f"/api/sandboxes/{project}/activity", json=view).status_code == 202
    page = api.get("/metrics").text
    assert re.search(r"^sandkeeper_status_mismatches_total [1-9]", page, re.MULTILINE)
    assert re.search(r"^sandkeeper_page_views_total [1-9]", page, re.MULTILINE)
    items = api.get(f"/api/sandboxes/{project}/history").json()["items"]
    assert any(one["type"] == "sandbox.mismatch_reported" for one in items)


def test_metrics_name_no_owner(api: httpx.Client, project: str) -> None:
    api.put(f"/api/sandboxes/{project}", json={})
    page = api.get("/metrics")
    assert page.headers["content-type"].startswith("text/plain")
    assert project not in page.text
    assert 'sandkeeper_sandboxes{state="RUNNING"}' in page.text


def test_extend_moves_the_end_and_not_past_the_cap(api: httpx.Client, project: str) -> None:
    made = api.put(f"/api/sandboxes/{project}", json={}).json()
    later = api.post(f"/api/sandboxes/{project}/extend", json={"byMs": 7_200_000}).json()
    gained = datetime.fromisoformat(later["expiresAt"]) - datetime.fromisoformat(made["expiresAt"])
    assert gained.total_seconds() > 3000
    refused = api.post(f"/api/sandboxes/{project}/extend", json={"byMs": 86_400_000})
    assert refused.status_code in {200, 403}


def test_a_login_code_is_exchanged_once_for_a_login(keeper: Keeper, api: httpx.Client) -> None:
    token = api.post("/api/login-codes").json()["token"]
    with keeper.browser() as browser:
        assert browser.post("/api/login", json={"code": token}).status_code == 200
        assert browser.get("/api/me").json()["role"] == "operator"
    with keeper.browser() as another:
        assert another.post("/api/login", json={"code": token}).status_code == 401
        for body in ({}, {"key": keeper.key, "code": token}, {"code": 7}):
            assert another.post("/api/login", json=body).status_code == 422, body
        bearer = {"Authorization": f"Bearer {token}"}
        assert another.get("/api/me", headers=bearer).status_code == 401
