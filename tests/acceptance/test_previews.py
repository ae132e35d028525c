"""Previews at the gateway of a real keeper, with a real app behind it."""

from __future__ import annotations

import base64
import http.client
import secrets
import shlex
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from support.eventually import eventually_sync
from support.keeper_process import Keeper
from support.port_server import SERVER

CODE = base64.b64encode(SERVER.encode()).decode()
COMMAND = f"python3 -c {shlex.quote(f'import base64; exec(base64.b64decode({CODE!r}))')}"
PERSON = {
    "User-Agent": "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 Chrome/140.0 Safari/537.36",
    "Accept": "text/html,application/xhtml+xml",
    "Sec-Fetch-Mode": "navigate",
    "Sec-Fetch-Dest": "document",
    "Sec-Fetch-Site": "none",
    "Sec-Fetch-User": "?1",
}


@dataclass(frozen=True)
class Previewed:
    """A project whose app runs."""

    keeper: Keeper
    project: str
    url: str

    @property
    def host(self) -> str:
        return self.url.removeprefix("http://")

    def ask(self, method: str = "GET", path: str = "/", **more: Any) -> httpx.Response:
        headers = {"Host": self.host, **more.pop("headers", {})}
        url = f"{self.keeper.url}{path}"
        return httpx.request(method, url, headers=headers, timeout=60, **more)

    def status(self) -> dict[str, Any]:
        with self.keeper.client() as api:
            found: dict[str, Any] = api.get(f"/api/sandboxes/{self.project}/status").json()
            return found


def make(keeper: Keeper, project: str, **policy: Any) -> Previewed:
    body = {"port": 3000, "startCommand": COMMAND, "policy": policy}
    with keeper.client() as api:
        made = api.put(f"/api/sandboxes/{project}", json=body)
        assert made.status_code == 201, made.text
        api.post(f"/api/sandboxes/{project}/wake?wait=60", json={}).raise_for_status()
    return Previewed(keeper, project, made.json()["previewUrl"])


@pytest.fixture(scope="module")
def previewed(sqlite_keeper: Keeper) -> Iterator[Previewed]:
    made = make(sqlite_keeper, f"shown-{secrets.token_hex(4)}")
    yield made
    with sqlite_keeper.client() as api:
        api.delete(f"/api/sandboxes/{made.project}")


def test_an_address_follows_from_the_project_and_shows_its_app(previewed: Previewed) -> None:
    port = previewed.keeper.url.rpartition(":")[2]
    assert previewed.url == f"http://{previewed.project}.preview.localhost:{port}"
    answer = previewed.ask(path="/a%20b?c=d")
    assert answer.status_code == 200
    assert answer.json()["path"] == "/a%20b?c=d"
    same = httpx.get(
        f"{previewed.keeper.url}/x", headers={"Host": f"3000--{previewed.host}"}, timeout=60
    )
    assert same.json()["path"] == "/x"


def test_an_app_sees_where_it_is_shown_and_none_of_our_secrets(previewed: Previewed) -> None:
    secret = "sk_" + "c" * 48
    seen = previewed.ask(
        headers={
            "Cookie": "own=1; sandkeeper_login=stolen; __Host-sandkeeper_preview=stolen",
            "X-API-Key": secret,
            "E2b-Sandbox-Id": "other",
            "Origin": previewed.url,
            "Forwarded": "for=6.6.6.6",
            "X-Forwarded-For": "6.6.6.6",
            "X-Own": "kept",
        }
    ).json()["headers"]
    text = str(seen)
    assert "stolen" not in text
    assert secret not in text
    assert "6.6.6.6" not in text
    lowered = {name.lower(): value for name, value in seen.items()}
    assert lowered["cookie"] == "own=1"
    assert lowered["x-own"] == "kept"
    assert lowered["origin"] == f"http://{lowered['host']}"
    assert "e2b-sandbox-id" not in lowered


def test_a_stranger_s_bearer_token_is_the_apps_and_ours_is_not(previewed: Previewed) -> None:
    own = previewed.ask(headers={"Authorization": "Bearer of-the-app"}).json()["headers"]
    assert own["Authorization"] == "Bearer of-the-app"
    ours = previewed.ask(headers={"Authorization": f"Bearer {previewed.keeper.key}"})
    assert ours.status_code == 200
    assert previewed.keeper.key not in ours.text


def test_bodies_streams_and_sockets_pass_both_ways(previewed: Previewed) -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(64):
            yield b"x" * 65536

    assert previewed.ask("POST", content=pieces()).text == str(64 * 65536)
    with (
        httpx.Client(timeout=60) as client,
        client.stream(
            "GET", f"{previewed.keeper.url}/drip", headers={"Host": previewed.host}
        ) as answer,
    ):
        assert next(answer.iter_bytes(5)) == b"drip\n"
    address = previewed.keeper.url.removeprefix("http://").split(":")
    with connect(
        f"ws://{previewed.host}/socket", sock=_dial(address[0], int(address[1])), compression=None
    ) as talk:
        talk.send("hello")
        assert talk.recv(timeout=60) == "hello"


def test_no_api_on_a_previews_host_and_no_preview_on_the_apis(previewed: Previewed) -> None:
    key = {"Authorization": f"Bearer {previewed.keeper.key}"}
    answer = previewed.ask(path="/api/sandboxes", headers=key)
    assert answer.json()["path"] == "/api/sandboxes"  # The app's, which has every path.
    bare = httpx.get(
        f"{previewed.keeper.url}/api/sandboxes",
        headers={**key, "Host": "preview.localhost"},
        timeout=60,
    )
    assert bare.status_code == 404
    assert bare.json()["code"] == "preview_no_preview"
    raw = http.client.HTTPConnection(previewed.keeper.url.removeprefix("http://"), timeout=60)
    raw.putrequest("GET", "/api/sandboxes", skip_host=True)
    for name, value in (("Host", "127.0.0.1"), ("Host", previewed.host), *key.items()):
        raw.putheader(name, value)
    raw.endheaders()
    assert raw.getresponse().status == 404
    raw.close()


@pytest.mark.parametrize(
    "host",
    [
        "unknown-project.preview.localhost",
        "a.b.preview.localhost",
        "0--x.preview.localhost",
        "70000--x.preview.localhost",
        "x--y.preview.localhost",
        "-.preview.localhost",
    ],
)
def test_an_address_of_no_project_has_a_page_of_ours(previewed: Previewed, host: str) -> None:
    answer = httpx.get(previewed.keeper.url, headers={**PERSON, "Host": host}, timeout=60)
    assert answer.status_code == 404
    assert "There is no such preview" in answer.text


def test_a_port_without_a_server_says_so(previewed: Previewed) -> None:
    headers = {**PERSON, "Host": f"4444--{previewed.host}"}
    page = httpx.get(previewed.keeper.url, headers=headers, timeout=60)
    assert (page.status_code, page.headers["x-sandkeeper"]) == (502, "wrong_port")
    assert "Nothing listens on this port" in page.text


def test_only_a_persons_visit_wakes_and_it_becomes_the_app(
    keeper: Keeper, api: httpx.Client, project: str
) -> None:
    shown = make(keeper, project)
    api.post(f"/api/sandboxes/{project}/pause", json={}).raise_for_status()
    for headers in (
        {"User-Agent": "curl/8.0", "Accept": "*/*"},
        {**PERSON, "User-Agent": "Mozilla/5.0 (compatible; Slackbot-LinkExpanding 1.0)"},
        {**PERSON, "Sec-Purpose": "prefetch"},
        {**PERSON, "Sec-Fetch-Dest": "image", "Sec-Fetch-Mode": "no-cors", "Accept": "image/*"},
        {**PERSON, "Sec-Fetch-Site": "same-origin", "Sec-Fetch-User": "?0"},
    ):
        told = shown.ask(headers=headers)
        assert (told.status_code, told.headers["retry-after"]) == (503, "60"), headers
    assert shown.ask("HEAD", headers=PERSON).status_code == 503
    assert shown.ask("POST", headers=PERSON).status_code == 503
    assert shown.ask(path="/favicon.ico").headers["content-type"] == "image/svg+xml"
    with pytest.raises(InvalidStatus):
        open_socket(shown)
    assert shown.status()["status"] == "PAUSED"

    waiting = shown.ask(headers=PERSON)
    assert waiting.status_code == 503
    assert "Waking up" in waiting.text
    with (
        httpx.Client(timeout=60) as client,
        client.stream(
            "GET", f"{keeper.url}/.sandkeeper/events", headers={"Host": shown.host}
        ) as steps,
    ):
        lines = [line for line in steps.iter_lines() if line.startswith("data: ")]
    assert '"ready":true' in lines[-1]
    assert shown.ask(headers=PERSON).json()["path"] == "/"
    api.delete(f"/api/sandboxes/{project}")


def test_visits_count_as_use_and_polls_do_not(keeper: Keeper, project: str) -> None:
    shown = make(keeper, project)
    for _ in range(3):
        shown.ask(headers={**PERSON, "Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"})
    eventually_sync(lambda: shown.status()["lastActiveSource"] != "preview background", within_s=60)
    with keeper.client() as api:

        def explained() -> dict[str, Any]:
            found: dict[str, Any] = api.get(f"/api/sandboxes/{project}/explain").json()
            return found

        eventually_sync(lambda: explained()["ignoredPassiveCount"] >= 3, within_s=60)
        assert explained()["lastActiveSource"] != "preview background"
        shown.ask(headers=PERSON)
        eventually_sync(
            lambda: explained()["lastActiveSource"] == "preview navigation", within_s=60
        )
        api.delete(f"/api/sandboxes/{project}")


def test_a_private_preview_opens_for_its_own_token_only(
    keeper: Keeper, api: httpx.Client, project: str
) -> None:
    shown = make(keeper, project, previewAccess="private")

    def token(of: str) -> dict[str, str]:
        issued = api.post("/api/client-tokens", json={"project": of}).json()
        return {"Authorization": f"Bearer {issued['token']}"}

    stranger = shown.ask(headers=PERSON)
    assert stranger.status_code == 401
    assert shown.ask().json()["code"] == "preview_sign_in"
    own = token(project)
    seen = shown.ask(headers=own)
    assert seen.status_code == 200
    assert own["Authorization"].split()[1] not in seen.text
    assert shown.ask(headers=token("another")).status_code == 403
    assert shown.ask(headers={"Authorization": "Bearer sk_a_viewer"}).status_code == 401
    api.delete(f"/api/sandboxes/{project}")


def test_a_project_with_an_odd_name_has_an_address(keeper: Keeper, api: httpx.Client) -> None:
    project = f"Größe {secrets.token_hex(3)}/A_b"
    shown = make(keeper, project.replace("/", "_"))
    assert shown.ask(path="/odd").json()["path"] == "/odd"
    api.delete(f"/api/sandboxes/{shown.project}")


def open_socket(shown: Previewed) -> None:
    address = shown.keeper.url.removeprefix("http://").split(":")
    with connect(f"ws://{shown.host}/", sock=_dial(address[0], int(address[1]))):
        pass


def _dial(host: str, port: int) -> Any:

    return socket.create_connection((host, port), timeout=60)


def test_a_share_link_is_exchanged_for_a_pass_and_ends_with_its_revocation(
    keeper: Keeper, api: httpx.Client, project: str
) -> None:
    shown = make(keeper, project, previewAccess="private")
    links = f"/api/sandboxes/{project}/links"
    for path in ("//evil.test", "https://evil.test", "/\\evil.test", "/.sandkeeper/events", "a"):
        assert api.post(links, json={"path": path}).is_client_error, path
    made = api.post(links, json={"path": "/deep?a=b", "once": True}).json()
    where = made["url"].removeprefix(shown.url)
    for unfurler in ({"User-Agent": "Slackbot 1.0"}, {**PERSON, "Sec-Purpose": "prefetch"}):
        assert shown.ask(path=where, headers=unfurler).status_code == 401
    opened = shown.ask(path=where, headers=PERSON)
    assert (opened.status_code, opened.headers["location"]) == (303, "/deep?a=b")
    assert "domain" not in opened.headers["set-cookie"].lower()
    assert "HttpOnly" in opened.headers["set-cookie"]
    cookie = {"Cookie": opened.headers["set-cookie"].split(";")[0]}
    seen = shown.ask(path="/deep", headers={**PERSON, **cookie})
    assert seen.status_code == 200
    assert cookie["Cookie"].partition("=")[2] not in seen.text
    assert shown.ask(path=where, headers=PERSON).status_code == 410

    other = {**PERSON, **cookie, "Host": f"8000--{shown.host}"}
    assert httpx.get(keeper.url, headers=other, timeout=60).status_code == 401
    foreign = {**cookie, "Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"}
    assert shown.ask(headers={**foreign, "Origin": "http://x.preview.localhost"}).status_code == 403
    assert shown.ask("POST", headers={**cookie, "Origin": "https://evil.test"}).status_code == 403

    (listed,) = api.get(links).json()["items"]
    assert (listed["uses"], listed["once"], "url" in listed) == (1, True, False)
    assert api.delete(f"{links}/{listed['id']}").status_code == 204
    eventually_sync(lambda: shown.ask(headers={**PERSON, **cookie}).status_code == 401, within_s=60)
    requests = api.get(f"/api/sandboxes/{project}/requests").json()["items"]
    assert {"/deep", "/.sandkeeper/link/…"} <= {one["path"] for one in requests}
    assert where.rpartition("/")[2] not in str(requests)
    api.delete(f"/api/sandboxes/{project}")


def test_a_member_enters_with_a_login_and_leaves_with_it(
    keeper: Keeper, api: httpx.Client, project: str
) -> None:
    shown = make(keeper, project, previewAccess="members")
    page = shown.ask(headers=PERSON)
    assert page.status_code == 401
    assert f"{keeper.dashboard_url}/previews/enter?to=" in page.text
    with keeper.browser() as browser:
        origin = {"Origin": keeper.dashboard_url}
        assert browser.post("/api/login", json={"key": "sk_a_viewer"}, headers=origin).is_success
        asked = browser.post(
            "/api/preview-visits", json={"url": f"{shown.url}/page"}, headers=origin
        )
        where = asked.json()["url"].removeprefix(shown.url)
        entered = shown.ask(path=where, headers=PERSON)
        assert (entered.status_code, entered.headers["location"]) == (303, "/page")
        cookie = {"Cookie": entered.headers["set-cookie"].split(";")[0]}
        assert shown.ask(headers={**PERSON, **cookie}).status_code == 200
        assert shown.ask(path=where, headers=PERSON).status_code == 410
        wrong = browser.post(
            "/api/preview-visits", json={"url": "https://evil.test/"}, headers=origin
        )
        assert wrong.status_code == 422
        assert browser.post("/api/logout", headers=origin).status_code == 204
    eventually_sync(lambda: shown.ask(headers={**PERSON, **cookie}).status_code == 401, within_s=60)
    api.delete(f"/api/sandboxes/{project}")


def test_a_domain_of_its_own_leads_to_a_preview_once_its_dns_does(
    previewed: Previewed, api: httpx.Client
) -> None:
    host = f"shop-{secrets.token_hex(4)}.localhost"
    body = {"host": host, "project": previewed.project}
    for wrong in ("preview.localhost", "a.preview.localhost", "sandkeeper.localhost", "x y", "a"):
        assert api.post("/api/domains", json={**body, "host": wrong}).status_code == 422
    lost = api.post("/api/domains", json={**body, "host": "nowhere.invalid"})
    assert lost.status_code == 422
    assert "CNAME" in lost.text
    ask = "/api/gateway/ask"
    assert api.get(ask, params={"domain": host}).status_code == 404
    assert api.post("/api/domains", json=body).status_code == 201
    assert api.get(ask, params={"domain": host}).status_code == 200
    assert api.get(ask, params={"domain": previewed.host.partition(":")[0]}).status_code == 200
    assert api.get(ask, params={"domain": "no-one.preview.localhost"}).status_code == 404
    shown = httpx.get(f"{previewed.keeper.url}/own", headers={"Host": host}, timeout=60)
    assert shown.json()["path"] == "/own"
    assert host in {one["host"] for one in api.get("/api/domains").json()["items"]}
    assert api.delete(f"/api/domains/{host}").status_code == 204
    assert api.get(ask, params={"domain": host}).status_code == 404
