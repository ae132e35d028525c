"""Who may come in, with what, and for how long."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from sandkeeper.api.auth import COOKIE, Access, Caller, Gate, Role, admit, refuse_foreign_pages
from sandkeeper.domain.errors import ForbiddenError, UnauthenticatedError
from sandkeeper.folder import operator_key

if TYPE_CHECKING:
    from pathlib import Path

OPERATOR = "sk_operator"
VIEWER = "sk_viewer"


@pytest.fixture
def gate() -> Gate:
    return Gate(operator_key=OPERATOR, viewer_keys=[VIEWER])


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def test_keys_name_their_role(gate: Gate) -> None:
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
def test_anything_else_is_nobody(gate: Gate, headers: dict[str, str]) -> None:
    with pytest.raises(UnauthenticatedError):
        gate.identify(headers)


def test_a_client_token_is_good_for_its_owner_only(gate: Gate) -> None:
    token = gate.issue_client_token(kind="project", owner_id="shop", ttl_s=60).token
    caller = gate.identify(bearer(token))
    admit(caller, Access.LOOK, owner_kind="project", owner_id="shop")
    admit(caller, Access.ACT, owner_kind="project", owner_id="shop")
    for access, kind, owner in (
        (Access.LOOK, "project", "other"),
        (Access.ACT, "job", "shop"),
        (Access.OVERSEE, "", None),
        (Access.OPERATE, "project", "shop"),
    ):
        with pytest.raises(ForbiddenError):
            admit(caller, access, owner_kind=kind, owner_id=owner)


def test_an_expired_token_says_so(gate: Gate) -> None:
    token = gate.issue_client_token(kind="project", owner_id="shop", ttl_s=-1).token
    with pytest.raises(UnauthenticatedError, match="expired"):
        gate.identify(bearer(token))


def test_a_token_for_one_use_is_no_token_for_another(gate: Gate) -> None:
    login = gate.issue_login(Caller(Role.OPERATOR), ttl_s=60).token
    ticket = gate.issue_ticket(Caller(Role.OPERATOR)).token
    for token in (login, ticket):
        with pytest.raises(UnauthenticatedError):
            gate.identify(bearer(token))


def test_replicas_with_one_key_accept_each_others_tokens_and_others_do_not(gate: Gate) -> None:
    token = gate.issue_client_token(kind="project", owner_id="shop", ttl_s=60).token
    assert Gate(operator_key=OPERATOR).identify(bearer(token)).owner_id == "shop"
    with pytest.raises(UnauthenticatedError):
        Gate(operator_key="sk_changed").identify(bearer(token))


def test_a_stream_ticket_is_spent_by_its_use_and_keeps_its_callers_rights(gate: Gate) -> None:
    client = Caller(Role.CLIENT, "project", "shop")
    ticket = gate.issue_ticket(client).token
    assert gate.identify({}, ticket=ticket) == client
    with pytest.raises(UnauthenticatedError, match="used"):
        gate.identify({}, ticket=ticket)


def test_viewers_look_and_do_not_act() -> None:
    viewer = Caller(Role.VIEWER)
    for access in (Access.LOOK, Access.OVERSEE, Access.CALLER):
        admit(viewer, access, owner_id="any")
    for access in (Access.ACT, Access.OPERATE):
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
    gate: Gate, headers: dict[str, str], allowed: bool
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
        keys = set(pool.map(lambda _: operator_key(data), range(16)))
    assert len(keys) == 1
    assert keys.pop().startswith("sk_")
    assert stat.S_IMODE((data / "operator.key").stat().st_mode) == 0o600
    assert [path.name for path in data.iterdir()] == ["operator.key"]
