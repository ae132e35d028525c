"""People sign in with an identity provider: a real one, and one that lies."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from joserfc import jwt
from joserfc.jwk import RSAKey

from sandkeeper.api.auth import COOKIE, SIGN_IN_COOKIE
from sandkeeper.services.access.identity_provider import read_client_secret
from sandkeeper.settings import Settings
from support.engine_process import Engine
from support.eventually import eventually_sync
from support.identity_provider import (
    CLIENT_ID,
    CLIENT_SECRET,
    LyingProvider,
    RealProvider,
    free_port,
    keeping_people,
    lying,
    make_settings,
)
from support.keeper_process import Keeper, keeping

CALLBACK = "/login/oidc/callback"
WITHIN_S = 10


@pytest.fixture(scope="module")
def real(
    engine: Engine, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RealProvider, Keeper]]:
    port = free_port()
    provider = RealProvider(f"http://sandkeeper.localhost:{port}{CALLBACK}").start()
    folder = tmp_path_factory.mktemp("people")
    try:
        with keeping_people(folder / "data", provider.issuer, port, engine=engine) as keeper:
            yield provider, keeper
    finally:
        provider.stop()


@pytest.fixture(scope="module")
def deceived(
    engine: Engine, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[LyingProvider, Keeper]]:
    folder = tmp_path_factory.mktemp("deceived")
    with (
        lying() as provider,
        keeping_people(
            folder / "data", provider.issuer, free_port(), engine=engine, failed_logins_max=1000
        ) as keeper,
    ):
        yield provider, keeper


def begin(browser: httpx.Client, page: str = "/") -> str:
    """Begin a sign-in; return where the browser is sent."""
    answer = browser.get("/login/oidc", params={"next": page})
    assert answer.status_code == 303, answer.text
    return str(answer.headers["location"])


def find_query(address: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}


def come_back(browser: httpx.Client, address: str) -> httpx.Response:
    """Follow the provider's redirect to the keeper."""
    parts = urlsplit(address)
    return browser.get(f"{parts.path}?{parts.query}")


def sign_in(provider: RealProvider, browser: httpx.Client, person: str) -> httpx.Response:
    return come_back(browser, provider.sign_in(begin(browser), person))


def read_audit(keeper: Keeper, key: str | None = None) -> list[dict[str, Any]]:
    with keeper.client(key) as admin:
        items: list[dict[str, Any]] = admin.get("/api/audit", params={"limit": 50}).json()["items"]
        return items


def test_a_person_signs_in_acts_and_signs_out_under_their_name(
    real: tuple[RealProvider, Keeper],
) -> None:
    provider, keeper = real
    project = f"of-ada-{secrets.token_hex(4)}"
    ours = {"Origin": keeper.dashboard_url}
    with keeper.browser() as browser, keeper.client() as admin:
        assert browser.get("/api/login").json() == {
            "provider": {"name": "Example", "path": "/login/oidc"}
        }
        asked = begin(browser, "/sandboxes/a?tab=files")
        sent = find_query(asked)
        assert (sent["response_type"], sent["code_challenge_method"]) == ("code", "S256")
        assert {"state", "nonce", "code_challenge"} <= sent.keys()
        back = come_back(browser, provider.sign_in(asked, "ada"))
        assert (back.status_code, back.headers["location"]) == (303, "/sandboxes/a?tab=files")
        set_cookies = back.headers.get_list("set-cookie")
        login = next(one for one in set_cookies if one.startswith(f"{COOKIE}=")).lower()
        assert "httponly" in login
        assert "samesite=strict" in login
        assert SIGN_IN_COOKIE not in browser.cookies, "it was good once"

        me = browser.get("/api/me").json()
        assert (me["role"], me["name"]) == ("operator", "person:ada@example.test")
        assert browser.put(f"/api/sandboxes/{project}", json={}, headers=ours).is_success
        assert browser.delete(f"/api/sandboxes/{project}", headers=ours).is_success
        events = admin.get(f"/api/sandboxes/{project}/history").json()["items"]
        assert "person:ada@example.test" in {one["actor"] for one in events}
        listed = admin.get("/api/logins").json()["items"]
        assert listed[0]["holder"] == "person:ada@example.test"
        cookie = {"Cookie": f"{COOKIE}={browser.cookies[COOKIE]}"}
        assert browser.post("/api/logout", headers=ours).status_code == 204
        assert httpx.get(f"{keeper.url}/api/me", headers=cookie).status_code == 401
    logout, login_entry = read_audit(keeper)[:2]
    assert (logout["action"], logout["actor"]) == ("logout", "person:ada@example.test")
    assert login_entry["action"] == "login"
    assert login_entry["data"] == {"issuer": provider.issuer, "sub": "ada"}


def test_a_role_decides_and_an_unverified_address_is_no_name(
    real: tuple[RealProvider, Keeper],
) -> None:
    provider, keeper = real
    with keeper.browser() as browser:
        assert sign_in(provider, browser, "bob").status_code == 303
        me = browser.get("/api/me").json()
        assert (me["role"], me["name"]) == ("viewer", "person:bob")
        assert browser.get("/api/sandboxes").status_code == 200
        refused = browser.put("/api/sandboxes/x", json={}, headers={"Origin": keeper.dashboard_url})
        assert refused.status_code == 403
    with keeper.browser() as browser:
        page = sign_in(provider, browser, "eve")
        assert page.status_code == 403
        assert "eve@example.test has no role" in page.text
        assert COOKIE not in browser.cookies
    failed = read_audit(keeper)[0]
    assert (failed["action"], failed["actor"]) == ("login_failed", "person:eve@example.test")


def test_a_refusal_at_the_provider_is_told_on_a_page(real: tuple[RealProvider, Keeper]) -> None:
    _, keeper = real
    with keeper.browser() as browser:
        state = find_query(begin(browser))["state"]
        page = browser.get(CALLBACK, params={"error": "access_denied", "state": state})
        assert page.status_code == 401
        assert "Example refused the sign-in (access_denied)." in page.text
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert "script" not in page.headers["content-security-policy"]
        state = find_query(begin(browser))["state"]
        page = browser.get(CALLBACK, params={"error": "<script>alert(1)</script>", "state": state})
        assert "<script>" not in page.text


def test_new_keys_of_the_provider_are_found_and_its_absence_is_told(
    tmp_path: Path, engine: Engine
) -> None:
    port = free_port()
    provider = RealProvider(f"http://sandkeeper.localhost:{port}{CALLBACK}").start()
    try:
        with (
            keeping_people(tmp_path / "data", provider.issuer, port, engine=engine) as keeper,
            keeper.browser() as browser,
        ):
            assert sign_in(provider, browser, "ada").status_code == 303
            asked = begin(browser)
            provider.stop()
            # What it said about itself is known, so its absence shows when the code is exchanged.
            query = {"code": "any", "state": find_query(asked)["state"]}
            page = browser.get(CALLBACK, params=query)
            assert page.status_code == 503
            assert "identity provider cannot be used now" in page.text
            assert page.headers["retry-after"]
            with keeper.client() as api:
                assert api.get("/api/me").status_code == 200, "keys do not need it"
            provider.start()
            # Its keys are read again at most every ten seconds.
            eventually_sync(
                lambda: sign_in(provider, browser, "ada").status_code == 303,
                within_s=60,
                every_s=1,
            )
    finally:
        provider.stop()


def test_a_provider_that_was_never_there_is_told_and_keys_still_work(
    tmp_path: Path, engine: Engine
) -> None:
    issuer = f"http://127.0.0.1:{free_port()}"
    with (
        keeping_people(tmp_path / "data", issuer, free_port(), engine=engine) as keeper,
        keeper.browser() as browser,
    ):
        page = browser.get("/login/oidc")
        assert page.status_code == 503
        assert "Try again later, or sign in with a key." in page.text
        assert browser.post("/api/login", json={"key": keeper.key}).status_code == 200


def test_without_a_provider_nothing_is_there(tmp_path: Path, engine: Engine) -> None:
    with keeping(tmp_path / "data", engine=engine) as keeper, keeper.browser() as browser:
        assert browser.get("/api/login").json() == {"provider": None}
        for path in ("/login/oidc", CALLBACK):
            missing = browser.get(path)
            assert missing.status_code == 404
            assert missing.headers["content-type"] == "application/problem+json"


def encode_part(part: object) -> str:
    raw = part if isinstance(part, bytes) else json.dumps(part).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def sign_with(secret: bytes) -> Callable[[LyingProvider, dict[str, Any]], str]:
    """Forge a signature with a secret that everyone knows, or that is not meant for it."""

    def sign(provider: LyingProvider, claims: dict[str, Any]) -> str:
        header = {"alg": "HS256", "kid": provider.key.kid}
        signed = f"{encode_part(header)}.{encode_part(claims)}"
        used = secret or provider.key.as_pem(private=False)
        return f"{signed}.{encode_part(hmac.digest(used, signed.encode(), 'sha256'))}"

    return sign


def leave_unsigned(alg: str) -> Callable[[LyingProvider, dict[str, Any]], str]:
    return lambda _, claims: f"{encode_part({'alg': alg})}.{encode_part(claims)}."


def sign_by_another(provider: LyingProvider, claims: dict[str, Any]) -> str:
    other = LyingProvider(provider.port, RSAKey.generate_key(2048, {"kid": provider.key.kid or ""}))
    return other.sign_honestly(**claims)


def change(**changes: Any) -> Callable[[LyingProvider, dict[str, Any]], str]:
    return lambda provider, _: provider.sign_honestly(**changes)


def embed_key(provider: LyingProvider, claims: dict[str, Any]) -> str:
    """Bring the key along in the header, as `jwk`."""
    own = RSAKey.generate_key(2048)
    header = {"alg": "RS256", "jwk": own.as_dict(private=False), "kid": "mine"}
    return jwt.encode(header, claims, own)


FORGERIES: dict[str, Callable[[LyingProvider, dict[str, Any]], Any]] = {
    "another nonce": change(nonce="another"),
    "no nonce": change(nonce=None),
    "alg none": leave_unsigned("none"),
    "alg None": leave_unsigned("None"),
    "no alg": lambda _, claims: f"{encode_part({})}.{encode_part(claims)}.",
    "HS256 with the public key": sign_with(b""),
    "HS256 with the client secret": sign_with(CLIENT_SECRET.encode()),
    "HS256 with nothing": sign_with(b"\x00"),
    "another audience": change(aud="another-client"),
    "no audience": change(aud=None),
    "two audiences and no azp": change(aud=[CLIENT_ID, "another-client"]),
    "another azp": change(azp="another-client"),
    "another issuer": change(iss="http://127.0.0.1:1"),
    "an issuer with a slash": lambda provider, _: provider.sign_honestly(iss=provider.issuer + "/"),
    "expired": change(iat=int(time.time()) - 900, exp=int(time.time()) - 600),
    "never expires": change(exp=None),
    "expires as text": change(exp="never"),
    "of the future": change(iat=int(time.time()) + 3600, exp=int(time.time()) + 7200),
    "no subject": change(sub=None),
    "a subject that is no text": change(sub=["ada"]),
    "another access token": change(at_hash=encode_part(hashlib.sha256(b"x").digest()[:16])),
    "another key": sign_by_another,
    "a key of its own": embed_key,
    "no token": lambda *_: None,
    "not a token": lambda *_: "a.b.c",
    "a number": lambda *_: 7,
    "five parts": lambda *_: "a.b.c.d.e",
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_token_signs_no_one_in(deceived: tuple[LyingProvider, Keeper], name: str) -> None:
    provider, keeper = deceived
    provider.sign = lambda claims: FORGERIES[name](provider, claims)
    with keeper.browser() as browser:
        sent = find_query(begin(browser))
        provider.nonce = sent["nonce"]
        page = browser.get(CALLBACK, params={"code": "c", "state": sent["state"]})
        assert page.status_code == 401, page.text
        assert COOKIE not in browser.cookies
        assert browser.get("/api/me").status_code == 401
    assert read_audit(keeper)[0]["action"] == "login_failed"


def answer_honestly(provider: LyingProvider) -> None:
    provider.sign = lambda _: provider.sign_honestly()


def test_what_the_forgeries_change_is_all_that_is_wrong_with_them(
    deceived: tuple[LyingProvider, Keeper],
) -> None:
    provider, keeper = deceived
    answer_honestly(provider)
    with keeper.browser() as browser:
        sent = find_query(begin(browser))
        provider.nonce = sent["nonce"]
        back = browser.get(CALLBACK, params={"code": "c", "state": sent["state"]})
        assert back.status_code == 303, back.text
        assert browser.get("/api/me").json()["name"] == "person:mallory@example.test"


def test_an_answer_counts_once_and_only_in_the_browser_that_asked(
    deceived: tuple[LyingProvider, Keeper],
) -> None:
    provider, keeper = deceived
    answer_honestly(provider)
    with keeper.browser() as victim, keeper.browser() as attacker:
        own = find_query(begin(attacker))
        provider.nonce = own["nonce"]
        answer = {"code": "of-the-attacker", "state": own["state"]}
        before = len(provider.codes)
        assert victim.get(CALLBACK, params=answer).status_code == 401, "began nowhere"
        begin(victim)
        assert victim.get(CALLBACK, params=answer).status_code == 401, "began another one"
        begin(victim)
        assert victim.get(CALLBACK, params={"code": "c"}).status_code == 401, "no state"
        assert len(provider.codes) == before, "no code was exchanged"
        assert COOKIE not in victim.cookies

        kept = {"Cookie": f"{SIGN_IN_COOKIE}={attacker.cookies[SIGN_IN_COOKIE]}"}
        other = {**answer, "iss": "http://another.example"}
        assert attacker.get(CALLBACK, params=other).status_code == 401
        own = find_query(begin(attacker))
        provider.nonce = own["nonce"]
        kept = {"Cookie": f"{SIGN_IN_COOKIE}={attacker.cookies[SIGN_IN_COOKIE]}"}
        answer = {"code": "c", "state": own["state"]}
        assert attacker.get(CALLBACK, params=answer).status_code == 303
        with keeper.browser() as thief:
            assert thief.get(CALLBACK, params=answer, headers=kept).status_code == 401
            assert COOKIE not in thief.cookies


@pytest.mark.parametrize(
    "page",
    [
        "//evil.example",
        "/\\evil.example",
        "https://evil.example/",
        "javascript:alert(1)",
        "/\t/evil.example",
        "/\r\nSet-Cookie: a=b",
        "evil",
        "",
        "/" + "a" * 1000,
    ],
)
def test_no_sign_in_ends_at_another_site(deceived: tuple[LyingProvider, Keeper], page: str) -> None:
    provider, keeper = deceived
    answer_honestly(provider)
    with keeper.browser() as browser:
        sent = find_query(begin(browser, page))
        provider.nonce = sent["nonce"]
        back = browser.get(CALLBACK, params={"code": "c", "state": sent["state"]})
        assert (back.status_code, back.headers["location"]) == (303, "/")


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_site_cannot_begin_a_sign_in(
    deceived: tuple[LyingProvider, Keeper], site: str
) -> None:
    _, keeper = deceived
    with keeper.browser() as browser:
        refused = browser.get("/login/oidc", headers={"Sec-Fetch-Site": site})
        assert refused.status_code == 403
        assert "set-cookie" not in refused.headers


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_sign_in_needs_the_dashboards_own_host(
    deceived: tuple[LyingProvider, Keeper], host: str
) -> None:
    _, keeper = deceived
    for path in ("/login/oidc", CALLBACK):
        refused = httpx.get(keeper.url + path, headers={"Host": host})
        assert refused.status_code == 403
        assert "set-cookie" not in refused.headers


DESCRIPTIONS: dict[str, Callable[[dict[str, Any]], object]] = {
    "another issuer": lambda found: {**found, "issuer": "https://accounts.example"},
    "no TLS": lambda found: {**found, "token_endpoint": "http://accounts.example/token"},
    "a file": lambda found: {**found, "jwks_uri": "file:///etc/passwd"},
    "no endpoint": lambda found: {**found, "authorization_endpoint": None},
    "too large": lambda found: {**found, "padding": "x" * 300_000},
    "too deep": lambda _: b"[" * 100_000,
    "no JSON": lambda _: b"<html>",
    "a list": lambda _: [],
}


@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_a_provider_that_describes_itself_wrongly_is_not_used(
    engine: Engine, tmp_path: Path, name: str
) -> None:
    with lying() as provider:
        provider.describe = DESCRIPTIONS[name]
        with (
            keeping_people(
                tmp_path / "data", provider.issuer, free_port(), engine=engine
            ) as keeper,
            keeper.browser() as browser,
        ):
            pages = [browser.get("/login/oidc") for _ in range(20)]
            assert {one.status_code for one in pages} == {503}
            assert "set-cookie" not in pages[0].headers


def test_a_provider_that_hangs_does_not_hang_the_keeper(engine: Engine, tmp_path: Path) -> None:
    with (
        lying() as provider,
        keeping_people(tmp_path / "data", provider.issuer, free_port(), engine=engine) as keeper,
        keeper.browser() as browser,
    ):
        provider.delay = threading.Event()
        state = find_query(begin(browser))["state"]
        page = browser.get(CALLBACK, params={"code": "c", "state": state})
        assert page.status_code == 503


def test_sign_ins_that_fail_are_limited_like_wrong_keys(engine: Engine, tmp_path: Path) -> None:
    with (
        lying() as provider,
        keeping_people(
            tmp_path / "data", provider.issuer, free_port(), engine=engine, failed_logins_max=3
        ) as keeper,
        keeper.browser() as browser,
    ):
        pages = [browser.get(CALLBACK, params={"code": "c"}) for _ in range(10)]
        assert {one.status_code for one in pages} == {401, 429}
        assert provider.asked == []


def test_a_login_of_a_person_is_good_and_over_on_every_replica(
    own_database: str, engine: Engine, tmp_path: Path
) -> None:
    ports = (free_port(), free_port())
    with lying() as provider, ExitStack() as stack:
        answer_honestly(provider)
        first, second = (
            stack.enter_context(
                keeping_people(
                    tmp_path / str(port),
                    provider.issuer,
                    port,
                    *("--database", own_database),
                    engine=engine,
                    operator_key="sk_shared",
                    files_url=(tmp_path / "files").as_uri(),
                )
            )
            for port in ports
        )
        one, two = stack.enter_context(first.browser()), stack.enter_context(second.browser())
        sent = find_query(begin(one))
        provider.nonce = sent["nonce"]
        kept = {"Cookie": f"{SIGN_IN_COOKIE}={one.cookies[SIGN_IN_COOKIE]}"}
        answer = {"code": "c", "state": sent["state"]}
        # It may come back at another replica than it began at.
        assert two.get(CALLBACK, params=answer, headers=kept).status_code == 303
        cookie = {"Cookie": f"{COOKIE}={two.cookies[COOKIE]}"}
        for browser in (one, two):
            assert browser.get("/api/me", headers=cookie).json()["role"] == "operator"
        assert one.get(CALLBACK, params=answer, headers=kept).status_code == 401, "replayed"
        ours = {"Origin": second.dashboard_url, **cookie}
        assert two.post("/api/logout", headers=ours).status_code == 204
        eventually_sync(
            lambda: one.get("/api/me", headers=cookie).status_code == 401, within_s=WITHIN_S
        )


@pytest.mark.parametrize(
    "missing", ["oidc_client_id", "oidc_redirect_url", "oidc_roles", "oidc_scopes"]
)
def test_a_setting_that_is_missing_is_named(missing: str) -> None:
    given = make_settings("https://accounts.example", 7420)
    given["oidc_roles"] = {"keepers": "admin"}
    empty = {"oidc_roles": {}}.get(missing, "")
    with pytest.raises(ValueError, match=missing):
        Settings(**(given | {missing: empty}))  # type: ignore[arg-type]


@pytest.mark.parametrize("issuer", ["http://accounts.example", "accounts.example", "ftp://x"])
def test_an_issuer_without_tls_is_refused(issuer: str) -> None:
    given = make_settings(issuer, 7420) | {"oidc_roles": {"keepers": "admin"}}
    with pytest.raises(ValueError, match="oidc_issuer must be an https URL"):
        Settings(**given)  # type: ignore[arg-type]


def test_a_role_of_one_prefix_is_refused_because_it_has_no_dashboard() -> None:
    given = make_settings("https://accounts.example", 7420)
    with pytest.raises(ValueError, match="oidc_roles"):
        Settings(**(given | {"oidc_roles": {"team": "operate:team-"}}))  # type: ignore[arg-type]


def test_the_secret_may_be_in_a_file(tmp_path: Path) -> None:
    given = make_settings("https://accounts.example", 7420) | {"oidc_roles": {"keepers": "admin"}}
    del given["oidc_client_secret"]
    file = tmp_path / "secret"
    with pytest.raises(ValueError, match="oidc_client_secret_file"):
        Settings(**given, oidc_client_secret_file=file)  # type: ignore[arg-type]
    file.write_text("of the file\n")
    settings = Settings(**given, oidc_client_secret_file=file)  # type: ignore[arg-type]
    assert read_client_secret(settings) == "of the file"
