"""What a sandbox can learn from, and plant in, a browser or a program that visits it."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import jwt
import pytest
from e2b import Sandbox
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from sandkeeper.api.auth import COOKIE, HOST_COOKIE, HOST_SIGN_IN_COOKIE, SIGN_IN_COOKIE
from sandkeeper.relay.cookies import OUR_COOKIES
from sandkeeper.services.gateway.passes import HOST_PASS_COOKIE, PASS_COOKIE
from support.eventually import eventually_sync
from support.hostile_app import APP, Hostile
from support.keeper_process import keeping

BROWSERS = [
    {"Sec-Fetch-Site": "same-origin"},
    {"Sec-Fetch-Dest": "empty"},
    {"Origin": "http://127.0.0.1:7421"},
    {"Origin": "null"},
]
OPERATOR_KEY = "sk_" + "a" * 48
CLOUD_KEY = "e2b_" + "b" * 40


def test_the_engine_and_the_keeper_agree_on_the_logins_cookies() -> None:
    logins = (COOKIE, HOST_COOKIE, SIGN_IN_COOKIE, HOST_SIGN_IN_COOKIE)
    names = (*logins, PASS_COOKIE, HOST_PASS_COOKIE)
    assert {name.encode() for name in names} == OUR_COOKIES


def visit(hostile: Hostile, headers: dict[str, str], query: str = "") -> httpx.Response:
    url = f"{hostile.engine.url}/{query}"
    return httpx.get(url, headers={"Host": hostile.host, **headers}, timeout=60)


def secrets_of(hostile: Hostile) -> dict[str, str]:
    """All that a caller of ours may carry."""
    token = hostile.sandbox._envd_access_token
    assert token
    return {
        "X-API-Key": hostile.engine.key,
        "X-Access-Token": token,
        "Authorization": f"Bearer {hostile.engine.key}",
        "E2B-Traffic-Access-Token": "t",
        "Cookie": f"theme=dark; {COOKIE}=a.b.c; {HOST_COOKIE}=d.e.f; cart=1",
    }


def check_seen(seen: list[list[str]], hostile: Hostile) -> None:
    """Nothing of ours arrived, and the app's own cookies did."""
    names = {name for name, _ in seen}
    assert not names & {
        "x-api-key",
        "x-access-token",
        "authorization",
        "e2b-traffic-access-token",
        "e2b-sandbox-id",
    }
    assert [value for name, value in seen if name == "cookie"] == ["theme=dark; cart=1"]
    text = json.dumps(seen)
    assert hostile.engine.key not in text
    assert "a.b.c" not in text


def test_an_app_sees_neither_our_login_nor_our_keys(hostile: Hostile) -> None:
    by_host = visit(hostile, secrets_of(hostile))
    check_seen(by_host.json(), hostile)
    by_header = httpx.get(
        hostile.engine.url, headers=hostile.headers() | secrets_of(hostile), timeout=60
    )
    check_seen(by_header.json(), hostile)


def test_an_app_sees_neither_of_them_over_a_websocket(hostile: Hostile) -> None:
    url = f"ws://127.0.0.1:{hostile.engine.port}/"
    headers = secrets_of(hostile) | hostile.headers()
    with connect(url, additional_headers=headers) as opened:
        check_seen(json.loads(opened.recv(timeout=60)), hostile)
        assert opened.response is not None
        assert "set-cookie" not in opened.response.headers


@pytest.mark.parametrize(
    "credential",
    [
        {"Authorization": f"Bearer {OPERATOR_KEY}"},
        {"Authorization": f"bearer  {CLOUD_KEY}"},
        {"X-API-Key": CLOUD_KEY},
        {"X-API-Key": OPERATOR_KEY},
    ],
)
def test_a_key_of_another_keeper_or_of_the_cloud_stays_outside(
    hostile: Hostile, credential: dict[str, str]
) -> None:
    seen = {name for name, _ in visit(hostile, credential).json()}
    assert not seen & {"authorization", "x-api-key"}


def sign_as_a_keeper(use: str) -> str:
    """Return a token of some keeper: a key that the engine does not know signed it."""
    claims = {"sub": "shop", "aud": f"sandkeeper-{use}", "exp": 2**31}
    return jwt.encode(claims, "k" * 32, "HS256")


@pytest.mark.parametrize("use", ["client", "login", "login-code", "stream"])
def test_a_token_of_a_keeper_stays_outside(hostile: Hostile, use: str) -> None:
    seen = {
        name
        for name, _ in visit(
            hostile, {"Authorization": f"Bearer {sign_as_a_keeper(use)}", "X-API-Key": "its-own"}
        ).json()
    }
    assert "authorization" not in seen
    assert "x-api-key" in seen


CHOSEN = {
    "operator_key": "correct-horse-battery",
    "other_operator_keys": "older-horse",
    "viewer_keys": "only/looks+",
}


def test_a_key_that_its_operator_chose_stays_outside(tmp_path: Path) -> None:
    with (
        keeping(tmp_path / "data", **CHOSEN) as keeper,
        keeper.client(CHOSEN["operator_key"]) as api,
    ):
        made = api.put("/api/sandboxes/hostile", json={}).json()["instanceId"]
        sandbox = Sandbox.connect(made, **keeper.sdk_options())
        sandbox.files.write("app.py", APP)
        sandbox.commands.run("python3 app.py", background=True, timeout=0)
        headers = {"E2b-Sandbox-Id": made, "E2b-Sandbox-Port": "3000"}
        with httpx.Client(base_url=keeper.engine_url, headers=headers, timeout=60) as visitor:
            eventually_sync(lambda: visitor.get("/").status_code == 200, within_s=60)
            for key in CHOSEN.values():
                for sent in ({"X-API-Key": key}, {"Authorization": f"Bearer\t{key}"}):
                    assert key not in visitor.get("/", headers=sent).text
                near = {"Authorization": f"Bearer {key}x", "X-API-Key": key.upper()}
                seen = dict(visitor.get("/", headers=near).json())
                assert {name.lower(): value for name, value in near.items()}.items() <= seen.items()
        environment = sandbox.commands.run("cat /proc/*/environ || true", user="root").stdout
        assert "DIGESTS" not in environment


def test_an_apps_own_credentials_and_cookies_pass(hostile: Hostile) -> None:
    own = {
        "Authorization": f"Bearer {jwt.encode({'aud': 'the-app'}, 'k' * 32, 'HS256')}",
        "X-API-Key": "of-the-app",
        "Cookie": 'session=1; sandkeeper_login_theme=x; quoted="a b"',
    }
    seen = dict(visit(hostile, own).json())
    assert {name.lower(): value for name, value in own.items()}.items() <= seen.items()


def test_our_cookie_alone_leaves_no_empty_header(hostile: Hostile) -> None:
    seen = dict(visit(hostile, {"Cookie": f"{COOKIE}=x"}).json())
    assert "cookie" not in seen


@pytest.mark.parametrize(
    "planted",
    [
        f"{COOKIE}=evil",
        f"{COOKIE.upper()}=evil; Path=/api",
        f" {HOST_COOKIE} = evil; Secure; Path=/",
        f"={COOKIE}=evil",
        COOKIE,
        "wide=1; Domain=localhost",
        "wide=1; domain=.LOCALHOST; Path=/",
        "wide=1; Domain=own; Domain=localhost",
        "wide=1; Domain = other.localhost",
    ],
)
def test_an_app_cannot_plant_our_cookie_or_one_for_other_hosts(
    hostile: Hostile, planted: str
) -> None:
    query = str(httpx.QueryParams({"set": planted}))
    answer = visit(hostile, {}, f"?{query}&set=own%3D1")
    assert answer.headers.get_list("set-cookie") == ["own=1"]


def test_an_app_sets_cookies_of_its_own_host(hostile: Hostile) -> None:
    name = hostile.host.partition(":")[0]
    own = ["a=1", f"b=2; Domain={name}", f"c=3; domain=.{name.upper()}; Path=/", "d=4; Domain="]
    query = httpx.QueryParams([("set", one) for one in own])
    assert visit(hostile, {}, f"?{query}").headers.get_list("set-cookie") == own


@pytest.mark.parametrize("marks", BROWSERS)
@pytest.mark.parametrize("port", [3000, 49983])
def test_a_browser_cannot_name_a_sandbox_by_headers(
    hostile: Hostile, marks: dict[str, str], port: int
) -> None:
    headers = hostile.headers(port) | marks
    answer = httpx.get(f"{hostile.engine.url}/health", headers=headers, timeout=60)
    assert answer.status_code == 403
    assert answer.json()["code"] == 403
    assert "Host" in answer.json()["message"]
    assert visit(hostile, marks).status_code == 200, "by its own host it can"


def test_a_browsers_websocket_cannot_name_a_sandbox_by_headers(hostile: Hostile) -> None:
    headers = hostile.headers() | {"Sec-Fetch-Site": "same-origin"}
    with pytest.raises(InvalidStatus) as refused:
        connect(f"ws://127.0.0.1:{hostile.engine.port}/", additional_headers=headers)
    assert refused.value.response.status_code == 403


def test_a_server_side_fetch_may_name_it(hostile: Hostile) -> None:
    """Node's own fetch says `sec-fetch-mode`, and nothing else of what browsers say."""
    headers = hostile.headers() | {"Sec-Fetch-Mode": "cors"}
    assert httpx.get(hostile.engine.url, headers=headers, timeout=60).status_code == 200


@pytest.mark.parametrize("name", ["evil.html", "evil.svg", 'ü "q"; a=b\n.html', "plain"])
def test_a_file_is_a_download_and_never_a_page(hostile: Hostile, name: str) -> None:
    page = "<script>document.title = 'run'</script>"
    hostile.sandbox.files.write(f"/home/user/{name}", page)
    answer = httpx.get(hostile.sandbox.download_url(f"/home/user/{name}"), timeout=60)
    assert (answer.status_code, answer.text) == (200, page)
    assert answer.headers["content-disposition"].startswith("attachment; filename*=utf-8''")
    assert answer.headers["content-disposition"].isascii()
    policy = answer.headers["content-security-policy"].split("; ")
    assert {"sandbox", "default-src 'none'"} <= set(policy)
    assert answer.headers["x-content-type-options"] == "nosniff"
    same = {"If-None-Match": answer.headers["etag"]}
    again = httpx.get(answer.request.url, headers=same, timeout=60)
    assert again.status_code == 304
    assert "sandbox" in again.headers["content-security-policy"]
