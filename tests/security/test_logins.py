"""Logins and client tokens: where a login is taken, and how it ends, here and on other replicas."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from sandkeeper.api.auth import COOKIE, HOST_COOKIE
from support.engine_process import Engine
from support.eventually import eventually_sync
from support.keeper_process import Keeper, keeping

WITHIN_S = 10
"""The promise is two seconds; the machine may be busy with other tests."""


@pytest.fixture
def replicas(
    engine: Engine, postgres_url: str, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[tuple[Keeper, Keeper]]:
    database = request.getfixturevalue("own_database")
    with ExitStack() as stack:
        pair = [
            stack.enter_context(
                keeping(
                    tmp_path / name,
                    "--database",
                    database,
                    engine=engine,
                    operator_key="sk_shared",
                    files_url=(tmp_path / "files").as_uri(),
                )
            )
            for name in ("first", "second")
        ]
        yield pair[0], pair[1]


def sign_in(keeper: Keeper, browser: httpx.Client, key: str | None = None) -> str:
    """Sign in; give the cookie."""
    answer = browser.post("/api/login", json={"key": key or keeper.key})
    assert answer.status_code == 200, answer.text
    return answer.cookies[COOKIE]


def ours(keeper: Keeper) -> dict[str, str]:
    return {"Origin": keeper.dashboard_url}


def is_refused(client: httpx.Client, path: str = "/api/me", **options: object) -> bool:
    return client.get(path, **options).status_code == 401  # type: ignore[arg-type]


def test_a_stolen_cookie_is_worth_nothing_after_the_logout(keeper: Keeper) -> None:
    with keeper.browser() as browser, keeper.browser() as thief:
        cookie = sign_in(keeper, browser)
        stolen = {"Cookie": f"{COOKIE}={cookie}"}
        assert thief.get("/api/me", headers=stolen).status_code == 200
        assert browser.post("/api/logout", headers=ours(keeper)).status_code == 204
        assert is_refused(thief, headers=stolen)
        again = thief.post("/api/logout", headers=stolen)
        assert again.status_code == 204, "what is over may be ended again"


def test_logouts_and_revocations_act_on_every_replica(replicas: tuple[Keeper, Keeper]) -> None:
    first, second = replicas
    with first.browser() as one, second.browser() as two, first.client("sk_shared") as api:
        cookie = {"Cookie": f"{COOKIE}={sign_in(first, one, 'sk_shared')}"}
        assert two.get("/api/me", headers=cookie).json()["role"] == "operator"
        token = api.post("/api/client-tokens", json={"project": "shop"}).json()
        bearer = {"Authorization": f"Bearer {token['token']}"}
        assert two.get("/api/me", headers=bearer).status_code == 200

        assert one.post("/api/logout", headers=ours(first)).status_code == 204
        assert is_refused(one, headers=cookie), "at once where it was asked for"
        eventually_sync(lambda: is_refused(two, headers=cookie), within_s=WITHIN_S)
        assert two.get("/api/me", headers=bearer).status_code == 200
        api.delete(f"/api/client-tokens/{token['id']}").raise_for_status()
        eventually_sync(lambda: is_refused(two, headers=bearer), within_s=WITHIN_S)

        given = api.post("/api/login-codes").json()["token"]
        assert one.post("/api/login", json={"code": given}).status_code == 200
        spent = two.post("/api/login", json={"code": given})
        assert spent.status_code == 401, "a login code is good once on all replicas"


def test_a_revocation_outlives_a_restart(tmp_path: Path, engine: Engine) -> None:
    keeper = Keeper(tmp_path / "data", engine=engine)
    try:
        with keeper.start().browser() as browser:
            cookie = {"Cookie": f"{COOKIE}={sign_in(keeper, browser)}"}
            browser.post("/api/logout", headers=ours(keeper))
        keeper.kill9()
        with keeper.start().browser() as browser:
            assert is_refused(browser, headers=cookie)
    finally:
        keeper.stop()


def test_the_operator_lists_logins_and_ends_one(keeper: Keeper) -> None:
    with keeper.client() as api, keeper.browser() as one, keeper.browser() as viewer:
        sign_in(keeper, one)
        before = {item["id"] for item in api.get("/api/logins").json()["items"]}
        sign_in(keeper, viewer, "sk_a_viewer")
        (made,) = [
            item for item in api.get("/api/logins").json()["items"] if item["id"] not in before
        ]
        assert (made["role"], made["current"]) == ("viewer", False)
        assert [item["current"] for item in one.get("/api/logins").json()["items"]].count(True) == 1
        assert viewer.get("/api/logins").status_code == 403
        refused = viewer.delete(f"/api/logins/{made['id']}", headers=ours(keeper))
        assert refused.status_code == 403
        assert api.delete(f"/api/logins/{made['id']}").status_code == 204
        assert is_refused(viewer)
        assert one.get("/api/me").status_code == 200
        assert api.delete(f"/api/logins/{made['id']}").status_code == 204
        unknown = api.delete("/api/logins/none-of-ours")
        assert (unknown.status_code, unknown.json()["code"]) == (404, "token_not_found")
        assert api.delete(f"/api/client-tokens/{made['id'][:-1]}%20").status_code == 422


def test_client_tokens_are_listed_page_by_page_and_revoked_alone(keeper: Keeper) -> None:
    project = f"tokens-{secrets.token_hex(4)}"
    with keeper.client() as api:
        made = [api.post("/api/client-tokens", json={"project": project}).json() for _ in range(3)]
        ids, cursor = [], None
        while True:
            query = {"limit": 2} | ({"cursor": cursor} if cursor else {})
            page = api.get("/api/client-tokens", params=query).json()
            ids += [item["id"] for item in page["items"] if item["project"] == project]
            cursor = page["nextCursor"]
            if cursor is None:
                break
        assert ids == [one["id"] for one in reversed(made)]
        assert not any(one["token"] in json.dumps(page) for one in made)
        api.delete(f"/api/client-tokens/{ids[0]}")
        with keeper.client(made[-1]["token"]) as revoked, keeper.client(made[0]["token"]) as kept:
            assert is_refused(revoked)
            assert kept.get("/api/me").status_code == 200
            assert kept.get("/api/client-tokens").status_code == 403
        # One that a host application signed itself is in no list, and revoked by its id as well.
        assert api.delete("/api/client-tokens/signed-elsewhere").status_code == 204


def test_a_login_cannot_outlive_itself_in_another_one(keeper: Keeper) -> None:
    with keeper.browser() as browser:
        sign_in(keeper, browser)
        asked = browser.post("/api/login-codes", headers=ours(keeper))
        assert asked.status_code == 403
        assert "key" in asked.json()["detail"]


def test_a_revoked_token_loses_its_open_stream(keeper: Keeper) -> None:
    project = f"stream-{secrets.token_hex(4)}"
    with keeper.client() as api:
        api.put(f"/api/sandboxes/{project}", json={})
        token = api.post("/api/client-tokens", json={"project": project}).json()
        ended = threading.Event()
        with keeper.client(token["token"]) as client:
            stream_token = client.post("/api/stream-tokens").json()["token"]

        def listen() -> None:
            address = f"{keeper.url}/api/sandboxes/{project}/events?token={stream_token}"
            with httpx.stream("GET", address, timeout=60) as stream:
                for line in stream.iter_lines():
                    if line == "event: status":
                        opened.set()
            ended.set()

        opened = threading.Event()
        threading.Thread(target=listen, daemon=True).start()
        assert opened.wait(30)
        api.delete(f"/api/client-tokens/{token['id']}")
        assert ended.wait(WITHIN_S)
        api.delete(f"/api/sandboxes/{project}")


def test_the_command_line_lists_and_revokes(keeper: Keeper) -> None:
    issued = json.loads(keeper.run("token", "issue", "cli-shop", "--json").stdout)
    listed = keeper.run("token", "list").stdout.splitlines()
    assert any(line.startswith(f"{issued['id']}\tcli-shop\t") for line in listed)
    keeper.run("token", "revoke", issued["id"])
    assert issued["id"] not in keeper.run("token", "list", "-q").stdout
    with keeper.client(issued["token"]) as client:
        assert is_refused(client)
    with keeper.browser() as browser:
        sign_in(keeper, browser)
        newest = keeper.run("login", "list", "-q").stdout.splitlines()[0]
        keeper.run("login", "revoke", newest)
        assert is_refused(browser)
    assert keeper.run("login", "revoke", "nothing", check=False).returncode == 3


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "[::1]", "0.0.0.0"])
def test_a_login_is_taken_on_the_dashboards_own_host_only(keeper: Keeper, name: str) -> None:
    port = keeper.url.rpartition(":")[2]
    there = f"http://sandkeeper.localhost:{port}"
    host = {"Host": f"{name}:{port}"}
    with httpx.Client(base_url=keeper.url, headers=host) as browser:
        page = browser.get("/sandboxes/a%20b?tab=files")
        assert (page.status_code, page.headers["location"]) == (
            307,
            f"{there}/sandboxes/a%20b?tab=files",
        )
        refused = browser.post("/api/login", json={"key": keeper.key})
        assert refused.status_code == 403
        assert f"{there}/" in refused.json()["detail"]
        assert "set-cookie" not in refused.headers
        key = {"Authorization": f"Bearer {keeper.key}"}
        assert browser.get("/api/me", headers=key).status_code == 200, "keys work on any name"
        assert browser.get("/embed/pane.js").headers["location"].startswith("/static/")
    with keeper.browser() as browser:
        assert browser.get("/").status_code == 200


def test_the_cookie_is_of_its_host_alone_and_marked_where_tls_is(
    tmp_path: Path, engine: Engine
) -> None:
    def cookie_of(keeper: Keeper, **headers: str) -> list[str]:
        body = {"key": keeper.key}
        answer = httpx.post(f"{keeper.url}/api/login", json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        name, *attributes = answer.headers["set-cookie"].lower().split("; ")
        assert {"httponly", "samesite=strict", "path=/"} <= set(attributes)
        assert not any(one.startswith("domain") for one in attributes)
        return [name.partition("=")[0], *attributes]

    trusting = {"trusted_proxies": "127.0.0.1", "failed_logins_max": 3}
    with keeping(tmp_path / "plain", engine=engine, **trusting) as keeper:
        here = keeper.dashboard_url.removeprefix("http://")
        assert cookie_of(keeper, Host=here)[0] == COOKIE
        assert "secure" not in cookie_of(keeper, Host=here)
        # A proxy that is trusted says that it ends TLS, and for whom it asks.
        proxied = cookie_of(keeper, **{"Host": "keeper.test", "X-Forwarded-Proto": "https"})
        assert (proxied[0], "secure" in proxied) == (HOST_COOKIE.lower(), True)
        with keeper.client("sk_wrong") as proxy:

            def guess(address: str) -> set[int]:
                header = {"X-Forwarded-For": address}
                return {proxy.get("/api/me", headers=header).status_code for _ in range(8)}

            assert guess("203.0.113.1") == {401, 429}
            assert guess("203.0.113.1, 203.0.113.2") == {401, 429}, "what the proxy itself added"
            header = {"X-Forwarded-For": "203.0.113.2, 203.0.113.3"}
            assert proxy.get("/api/me", headers=header).status_code == 401
    public = {"public_url": "https://keeper.test", "webhooks": False}
    with keeping(tmp_path / "public", engine=engine, **public) as keeper:
        marked = cookie_of(keeper, Host="keeper.test")
        assert (marked[0], "secure" in marked) == (HOST_COOKIE.lower(), True)
        assert httpx.get(keeper.url).status_code == 200, "no other host than the public one"
        with httpx.Client(base_url=keeper.url, headers={"Host": "keeper.test"}) as browser:
            body = {"key": keeper.key}
            value = browser.post("/api/login", json=body).cookies[HOST_COOKIE]
            sent = {"Cookie": f"{HOST_COOKIE}={value}", "Origin": "https://keeper.test"}
            assert browser.get("/api/me", headers=sent).status_code == 200
            ended = browser.post("/api/logout", headers=sent)
            assert ended.headers["set-cookie"].startswith(f'{HOST_COOKIE}=""')
            assert "Secure" in ended.headers["set-cookie"]
            assert is_refused(browser, headers=sent)
