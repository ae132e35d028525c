"""Who may come in, with what, and for how long."""

from __future__ import annotations

import hmac
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jwt
import pytest

from sandkeeper.api.auth import (
    COOKIE,
    HOST_COOKIE,
    Access,
    Authenticator,
    Caller,
    Role,
    admit,
    refuse_foreign_pages,
)
from sandkeeper.api.deps import is_open_to_monitoring
from sandkeeper.domain.errors import ForbiddenError, UnauthenticatedError
from sandkeeper.hosting.data_dir import load_or_create_operator_key
from sandkeeper.settings import Settings

OPERATOR = "sk_operator"
VIEWER = "sk_viewer"


@pytest.fixture
def gate() -> Authenticator:
    return Authenticator(operator_key=OPERATOR, viewer_keys=[VIEWER])


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def test_keys_name_their_role(gate: Authenticator) -> None:
    assert gate.identify(bearer(OPERATOR)).role is Role.OPERATOR
    assert gate.identify(bearer(VIEWER)).role is Role.VIEWER


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer"},
        {"authorization": "Bearer "},
        {"authorization": f"Basic {OPERATOR}"},
        {"authorization": OPERATOR},
        bearer("sk_other"),
        bearer("a.b.c"),
        {"cookie": f"{COOKIE}=nonsense"},
        {"cookie": "other=1"},
    ],
)
def test_any_other_credential_is_refused(gate: Authenticator, headers: dict[str, str]) -> None:
    with pytest.raises(UnauthenticatedError):
        gate.identify(headers)


@pytest.mark.parametrize(
    ("settings", "host", "is_open"),
    [
        ({}, "127.0.0.1:7420", True),
        ({}, "keeper.example", False),
        ({}, "", False),
        ({"public_url": "https://keeper.example/base"}, "Keeper.example:443", True),
        ({"public_url": "https://keeper.example"}, "evil.example", False),
        ({"public_metrics": True}, "evil.example", True),
        ({"host": "0.0.0.0", "public_url": "https://keeper.example"}, "keeper.example", False),
    ],
)
def test_monitoring_without_a_key_needs_loopback_and_a_name_of_ours(
    settings: dict[str, Any], host: str, *, is_open: bool
) -> None:
    assert is_open_to_monitoring(Settings(**settings), {"host": host}) is is_open


def test_a_client_token_is_good_for_its_owner_only(gate: Authenticator) -> None:
    token = gate.issue_client_token(kind="project", owner_id="shop", ttl_s=60).token
    caller = gate.identify(bearer(token))
    admit(caller, Access.READ_ONE, owner_kind="project", owner_id="shop")
    admit(caller, Access.WRITE_ONE, owner_kind="project", owner_id="shop")
    for access, kind, owner in (
        (Access.READ_ONE, "project", "other"),
        (Access.WRITE_ONE, "job", "shop"),
        (Access.READ_ALL, "", None),
        (Access.ADMIN, "project", "shop"),
    ):
        with pytest.raises(ForbiddenError):
            admit(caller, access, owner_kind=kind, owner_id=owner)


def test_an_expired_token_says_so(gate: Authenticator) -> None:
    token = gate.issue_client_token(kind="project", owner_id="shop", ttl_s=-1).token
    with pytest.raises(UnauthenticatedError, match="expired"):
        gate.identify(bearer(token))


def test_a_token_for_one_use_is_no_token_for_another(gate: Authenticator) -> None:
    login = gate.issue_login(Caller(Role.OPERATOR), ttl_s=60).token
    stream_token = gate.issue_stream_token(Caller(Role.OPERATOR)).token
    for token in (login, stream_token):
        with pytest.raises(UnauthenticatedError):
            gate.identify(bearer(token))


def test_replicas_with_one_key_accept_each_others_tokens_and_others_do_not(
    gate: Authenticator,
) -> None:
    token = gate.issue_client_token(kind="project", owner_id="shop", ttl_s=60).token
    assert Authenticator(operator_key=OPERATOR).identify(bearer(token)).owner_id == "shop"
    with pytest.raises(UnauthenticatedError):
        Authenticator(operator_key="sk_changed").identify(bearer(token))


def test_a_stream_token_is_spent_by_its_use_and_keeps_its_callers_rights(
    gate: Authenticator,
) -> None:
    client = Caller(Role.CLIENT, "project", "shop")
    token = gate.issue_stream_token(client).token
    assert gate.identify({}, stream_token=token) == client
    with pytest.raises(UnauthenticatedError, match="used"):
        gate.identify({}, stream_token=token)


def test_viewers_look_and_do_not_act() -> None:
    viewer = Caller(Role.VIEWER)
    for access in (Access.READ_ONE, Access.READ_ALL, Access.CALLER):
        admit(viewer, access, owner_id="any")
    for access in (Access.WRITE_ONE, Access.ADMIN):
        with pytest.raises(ForbiddenError):
            admit(viewer, access, owner_id="any")


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({"host": "a:1", "origin": "http://a:1"}, True),
        ({"host": "a:1", "origin": "http://evil"}, False),
        ({"host": "a:1", "origin": "null"}, False),
        ({"host": "a:1", "sec-fetch-site": "same-origin"}, True),
        ({"host": "a:1", "sec-fetch-site": "cross-site"}, False),
        ({"host": "a:1"}, False),
    ],
)
def test_a_login_acts_only_for_the_dashboards_own_pages(
    gate: Authenticator, headers: dict[str, str], allowed: bool
) -> None:
    login = gate.issue_login(Caller(Role.OPERATOR), ttl_s=60).token
    caller = gate.identify({"cookie": f"{COOKIE}={login}"})
    refuse_foreign_pages(caller, "GET", headers)
    if allowed:
        refuse_foreign_pages(caller, "POST", headers)
    else:
        with pytest.raises(ForbiddenError):
            refuse_foreign_pages(caller, "POST", headers)


def test_processes_that_start_at_once_agree_on_one_key(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with ThreadPoolExecutor(8) as pool:
        keys = set(pool.map(lambda _: load_or_create_operator_key(data), range(16)))
    assert len(keys) == 1
    assert keys.pop().startswith("sk_")
    assert stat.S_IMODE((data / "operator.key").stat().st_mode) == 0o600
    assert [path.name for path in data.iterdir()] == ["operator.key"]


def test_a_revoked_login_or_token_opens_nothing_and_neither_does_what_came_of_it() -> None:
    revoked: set[str] = set()
    gate = Authenticator(operator_key=OPERATOR, is_revoked=revoked.__contains__)
    login = gate.issue_login(Caller(Role.OPERATOR), ttl_s=60)
    cookie = {"cookie": f"{COOKIE}={login.token}"}
    token = gate.issue_client_token(kind="project", owner_id="shop", ttl_s=60)
    signed_in, client = gate.identify(cookie), gate.identify(bearer(token.token))
    assert (signed_in.token_id, client.token_id) == (login.id, token.id)
    stream_tokens = [gate.issue_stream_token(one).token for one in (signed_in, client)]
    login_code = gate.issue_login_code(signed_in).token
    kept = gate.issue_client_token(kind="project", owner_id="shop", ttl_s=60)

    revoked |= {login.id, token.id}
    for headers in (cookie, bearer(token.token)):
        with pytest.raises(UnauthenticatedError, match="revoked"):
            gate.identify(headers)
    for stream_token in stream_tokens:
        with pytest.raises(UnauthenticatedError, match="revoked"):
            gate.identify({}, stream_token=stream_token)
    with pytest.raises(UnauthenticatedError, match="revoked"):
        gate.redeem_login_code(login_code)
    assert gate.identify(bearer(kept.token)).owner_id == "shop"


def test_a_token_without_an_id_or_with_a_life_beyond_the_limit_is_refused() -> None:
    gate = Authenticator(operator_key=OPERATOR, client_ttl_max_s=60)
    key = hmac.digest(OPERATOR.encode(), b"sandkeeper client", "sha256")
    now = int(time.time())
    whole = {
        "sub": "shop",
        "kind": "project",
        "aud": "sandkeeper-client",
        "iat": now,
        "exp": now + 60,
        "jti": "made-by-the-host",
    }
    made = gate.identify(bearer(jwt.encode(whole, key, "HS256")))
    assert (made.owner_id, made.token_id) == ("shop", "made-by-the-host")
    for changed in ({"jti": None}, {"iat": None}, {"exp": now + 61}, {"iat": now + 999}):
        claims = {name: value for name, value in (whole | changed).items() if value is not None}
        with pytest.raises(UnauthenticatedError):
            gate.identify(bearer(jwt.encode(claims, key, "HS256")))


def test_the_cookie_that_only_our_own_host_can_set_comes_first(gate: Authenticator) -> None:
    planted = gate.issue_login(Caller(Role.VIEWER), ttl_s=60).token
    own = gate.issue_login(Caller(Role.OPERATOR), ttl_s=60).token
    for header in (
        f"{COOKIE}={planted}; {HOST_COOKIE}={own}",
        f"{HOST_COOKIE}={own}; {COOKIE}={planted}",
    ):
        assert gate.identify({"cookie": header}).role is Role.OPERATOR
