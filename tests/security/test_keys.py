"""Named keys: what each scope may do, how one ends, and what the audit log says about it."""

from __future__ import annotations

import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from sandkeeper.domain.access import AuditAction, Scope
from sandkeeper.domain.errors import InvalidRequestError, KeyExistsError
from sandkeeper.services.access.api_keys import ApiKeyRegistry
from sandkeeper.store import open_store
from sandkeeper.testing.providers import SimulatedProvider
from support.deps import MovableClock, make_deps
from support.eventually import eventually_sync
from support.keeper_process import Keeper

FILES_AND_PREVIEWS = {
    AuditAction.FILES_RESTORED,
    AuditAction.PROJECT_FORKED,
    AuditAction.CHECKPOINT_ADDED,
    AuditAction.CHECKPOINT_REMOVED,
    AuditAction.LINK_CREATED,
    AuditAction.LINK_REVOKED,
    AuditAction.DOMAIN_ADDED,
    AuditAction.DOMAIN_REMOVED,
}
SHELLS = {AuditAction.TERMINAL_OPENED}
"""Looked for by the terminal's own test."""


def create(keeper: Keeper, scope: str, **options: Any) -> dict[str, Any]:
    with keeper.client() as admin:
        body = {"name": f"k-{uuid.uuid4().hex[:8]}", "scope": scope, **options}
        answer = admin.post("/api/keys", json=body)
        assert answer.status_code == 201, answer.text
        found: dict[str, Any] = answer.json()
        return found


def statuses(client: httpx.Client, *calls: tuple[str, str]) -> list[int]:
    return [client.request(method, path, json={}).status_code for method, path in calls]


def test_a_scope_allows_exactly_what_it_says(keeper: Keeper) -> None:
    mine, theirs = f"team-{uuid.uuid4().hex[:6]}", f"other-{uuid.uuid4().hex[:6]}"
    calls = (
        ("PUT", f"/api/sandboxes/{mine}"),
        ("PUT", f"/api/sandboxes/{theirs}"),
        ("GET", "/api/sandboxes"),
        ("GET", "/api/keys"),
        ("GET", "/api/audit"),
    )
    expected = {
        "read": [403, 403, 200, 403, 403],
        "operate:team-": [201, 403, 403, 403, 403],
        "operate": [200, 201, 200, 403, 403],
        "admin": [200, 200, 200, 200, 200],
    }
    for scope, wanted in expected.items():
        with keeper.client(create(keeper, scope)["key"]) as client:
            assert statuses(client, *calls) == wanted, scope
    with keeper.client() as admin:
        for name in (mine, theirs):
            assert admin.delete(f"/api/sandboxes/{name}").is_success


def test_a_key_of_one_prefix_stays_there(keeper: Keeper) -> None:
    with keeper.client(create(keeper, "operate:team-")["key"]) as client:
        outside = (
            ("GET", "/api/sandboxes/job:team-1/status"),
            ("GET", "/api/sandboxes/Team-1/status"),
            ("GET", "/api/sandboxes/team/status"),
            ("POST", "/api/sandboxes/team-1/adopt"),
            ("POST", "/api/sessions/acquire"),
            ("POST", "/api/fleet/bulk"),
            ("POST", "/api/login-codes"),
            ("GET", "/api/fleet/events"),
        )
        assert statuses(client, *outside) == [403] * len(outside)
        own = client.post("/api/client-tokens", json={"project": "team-a"})
        assert own.status_code == 201
        for body in ({"project": "other"}, {"project": "team-a", "kind": "job"}):
            assert client.post("/api/client-tokens", json=body).status_code == 403
        with keeper.browser() as browser:
            key = client.headers["authorization"].removeprefix("Bearer ")
            assert browser.post("/api/login", json={"key": key}).status_code == 403


def test_a_revoked_key_takes_its_logins_and_tokens_along(keeper: Keeper) -> None:
    made = create(keeper, "admin")
    with keeper.client(made["key"]) as holder, keeper.browser() as browser:
        assert browser.post("/api/login", json={"key": made["key"]}).json()["name"] == (
            f"key:{made['name']}"
        )
        token = holder.post("/api/client-tokens", json={"project": "shop"}).json()["token"]
        with keeper.client(token) as page, keeper.client() as admin:
            assert page.get("/api/me").status_code == 200
            assert admin.delete(f"/api/keys/{made['id']}").status_code == 204
            answers = [client.get("/api/me").status_code for client in (holder, browser, page)]
            assert answers == [401, 401, 401]
            assert admin.delete(f"/api/keys/{made['id']}").status_code == 204
            assert admin.delete("/api/keys/key_none").status_code == 404


def test_two_keys_are_valid_during_a_rotation(keeper: Keeper) -> None:
    made = create(keeper, "read")
    new = keeper.run("keys", "rotate", made["name"], "--overlap", "1h").stdout.strip()
    with keeper.client(made["key"]) as old, keeper.client(new) as fresh, keeper.client() as admin:
        assert [one.get("/api/me").json()["name"] for one in (old, fresh)] == [
            f"key:{made['name']}"
        ] * 2
        listed = [
            one for one in admin.get("/api/keys").json()["items"] if one["name"] == made["name"]
        ]
        assert [one["expiresAt"] is None for one in listed] == [False, True]
    last = keeper.run("keys", "rotate", made["name"], "--overlap", "1ms").stdout.strip()
    with keeper.client(new) as fresh, keeper.client(last) as latest:
        assert [one.get("/api/me").status_code for one in (fresh, latest)] == [401, 200]
    keeper.run("keys", "revoke", made["name"])
    assert made["name"] not in keeper.run("keys", "list").stdout


def test_an_expired_key_is_refused(keeper: Keeper) -> None:
    made = create(keeper, "read", expiresInS=1)
    with keeper.client(made["key"]) as client:
        eventually_sync(lambda: client.get("/api/me").status_code == 401, within_s=10)


def test_the_database_holds_no_key(keeper: Keeper) -> None:
    text = create(keeper, "admin")["key"].encode()
    with keeper.client(text.decode()) as client:
        assert client.get("/api/me").is_success
    stored = b"".join(path.read_bytes() for path in keeper.data.glob("sandkeeper.db*"))
    assert text not in stored
    assert text.decode() not in keeper.output


def test_the_audit_log_names_who_did_what(keeper: Keeper) -> None:
    made = create(keeper, "operate")
    actor, project = f"key:{made['name']}", f"audited-{uuid.uuid4().hex[:6]}"
    with (
        keeper.client(made["key"]) as client,
        keeper.browser() as browser,
        keeper.client() as admin,
    ):
        assert browser.post("/api/login", json={"key": made["key"]}).is_success
        assert browser.post("/api/login", json={"key": "sk_wrong"}).status_code == 401
        same = {"Origin": keeper.dashboard_url}
        assert browser.post("/api/logout", headers=same).is_success
        assert browser.post("/api/login", json={"key": made["key"]}).is_success
        login = admin.get("/api/logins").json()["items"][0]["id"]
        assert admin.delete(f"/api/logins/{login}").is_success
        assert client.put(f"/api/sandboxes/{project}", json={}).is_success
        assert client.put(f"/api/sandboxes/{project}/files/a.txt", content=b"x").is_success
        assert client.delete(f"/api/sandboxes/{project}/files/a.txt").is_success
        token = client.post("/api/client-tokens", json={"project": project}).json()["id"]
        assert admin.delete(f"/api/client-tokens/{token}").is_success
        assert client.post(f"/api/sandboxes/{project}/pause").is_success
        assert client.delete(f"/api/sandboxes/{project}").is_success
        second = admin.post(f"/api/keys/{made['id']}/rotate", json={"overlapS": 60}).json()["id"]
        assert admin.delete(f"/api/keys/{second}").is_success
        items = admin.get("/api/audit", params={"limit": 20}).json()["items"]
        done = [one["action"] for one in items if one["actor"] == actor]
        assert done == [
            "token_issued",
            "files_deleted",
            "files_written",
            "login",
            "logout",
            "login",
        ]
        by_operator = [one["action"] for one in items if one["actor"] == "operator"]
        assert by_operator[:3] == ["key_revoked", "key_rotated", "token_revoked"]
        assert "login_revoked" in by_operator
        assert {one["action"] for one in items} == set(AuditAction) - FILES_AND_PREVIEWS - SHELLS
        failed = next(one for one in items if one["action"] == "login_failed")
        assert "sk_wrong" not in str(failed)
        assert failed["address"] == "127.0.0.1"
        created = next(one for one in items if one["action"] == "key_created")
        assert (created["actor"], created["subject"]) == ("operator", made["name"])
        events = admin.get(f"/api/sandboxes/{project}/history").json()["items"]
        verbs = {one["toState"]: one["actor"] for one in events if one["toState"]}
        assert verbs == dict.fromkeys(("RUNNING", "PAUSED", "KILLED"), actor)


def test_the_audit_log_names_what_was_done_to_files_and_previews(keeper: Keeper) -> None:
    project = f"audited-{uuid.uuid4().hex[:6]}"
    path, host = f"/api/sandboxes/{project}", f"{project}.localhost"
    with keeper.client() as admin:
        admin.put(path, json={}).raise_for_status()
        admin.put(f"{path}/files/a.txt", content=b"x").raise_for_status()
        admin.post(f"{path}/checkpoints", json={"name": "before"}).raise_for_status()
        admin.post(f"{path}/restore", json={"version": 1}).raise_for_status()
        admin.post(f"{path}/fork", json={"project": f"{project}-2"}).raise_for_status()
        admin.delete(f"{path}/checkpoints/before").raise_for_status()
        link = admin.post(f"{path}/links", json={}).raise_for_status().json()["id"]
        admin.delete(f"{path}/links/{link}").raise_for_status()
        admin.post("/api/domains", json={"host": host, "project": project}).raise_for_status()
        admin.delete(f"/api/domains/{host}").raise_for_status()
        items = admin.get("/api/audit", params={"limit": 20}).json()["items"]
        about = {one["action"] for one in items if project in one["subject"]}
        assert about == FILES_AND_PREVIEWS | {AuditAction.FILES_WRITTEN}
        for one in (project, f"{project}-2"):
            admin.delete(f"/api/sandboxes/{one}").raise_for_status()


async def test_every_replica_learns_of_a_key_and_of_its_end(tmp_path: Path) -> None:
    url, clock = f"sqlite:///{tmp_path}/keeper.db", MovableClock()
    async with open_store(url) as one, open_store(url) as two:
        first = ApiKeyRegistry(make_deps(one, SimulatedProvider(), clock=clock))
        second = ApiKeyRegistry(make_deps(two, SimulatedProvider(), clock=clock))
        await second.refresh()
        key, text = await first.create(
            "ci", Scope.parse("operate:team-"), actor="operator", expires_in=timedelta(days=1)
        )
        await second.refresh()
        found = second.find(text)
        assert found is not None
        assert found.id == key.id
        with pytest.raises(KeyExistsError):
            await second.create("ci", Scope.parse("read"), actor="operator")
        await first.revoke(key.id, actor="operator")
        assert first.is_revoked(key.id)
        await second.refresh()
        assert second.is_revoked(key.id)
        assert second.find(text) is None
        short, text = await first.create(
            "soon", Scope.parse("read"), actor="operator", expires_in=timedelta(hours=1)
        )
        clock.advance(hours=2)
        assert first.find(text) is None
        assert first.is_revoked(short.id)


@pytest.mark.parametrize("scope", ["", "root", "read:team", "admin:", "operate:", "operate:../x "])
def test_what_is_not_a_scope_is_refused(scope: str) -> None:
    with pytest.raises(InvalidRequestError):
        Scope.parse(scope)
