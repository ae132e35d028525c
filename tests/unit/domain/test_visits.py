"""What becomes of a request to a preview."""

from __future__ import annotations

import itertools

import pytest

from sandkeeper.domain.activity import ActivityClass
from sandkeeper.domain.gateway.requests import (
    RequestKind,
    classify_request,
    find_use,
    is_use_of_socket,
)
from sandkeeper.domain.gateway.visits import (
    Admission,
    AnswerHere,
    PassOn,
    PreviewDefaults,
    PreviewProblem,
    Target,
    decide_visit,
)
from sandkeeper.domain.policy import Policy, PreviewAccess, PreviewUse
from sandkeeper.domain.states import State

PERSON = {
    "user-agent": "Mozilla/5.0 (X11; Linux x86_64) Chrome/140.0",
    "accept": "text/html,*/*",
    "sec-fetch-mode": "navigate",
    "sec-fetch-dest": "document",
    "sec-fetch-site": "none",
    "sec-fetch-user": "?1",
}


@pytest.mark.parametrize(
    ("method", "changes", "kind"),
    [
        ("GET", {}, RequestKind.NAVIGATION),
        ("GET", {"sec-fetch-dest": "iframe", "sec-fetch-site": "cross-site"}, "navigation"),
        ("GET", {"sec-fetch-site": "same-origin", "sec-fetch-user": ""}, RequestKind.RELOAD),
        ("GET", {"sec-purpose": "prefetch;prerender"}, RequestKind.MACHINE),
        ("GET", {"user-agent": "Mozilla/5.0 (compatible; Googlebot/2.1)"}, RequestKind.MACHINE),
        ("GET", {"user-agent": "facebookexternalhit/1.1"}, RequestKind.MACHINE),
        ("GET", {"user-agent": "Mozilla/5.0+(compatible; UptimeRobot/2.0)"}, RequestKind.MACHINE),
        ("GET", {"sec-fetch-mode": "cors", "sec-fetch-dest": "empty"}, RequestKind.BACKGROUND),
        ("GET", {"sec-fetch-dest": "image", "sec-fetch-mode": "no-cors"}, RequestKind.BACKGROUND),
        ("HEAD", {}, RequestKind.BACKGROUND),
        ("OPTIONS", {}, RequestKind.BACKGROUND),
        ("POST", {"sec-fetch-mode": "cors"}, RequestKind.WRITE),
        ("POST", {"sec-fetch-mode": "no-cors"}, RequestKind.BACKGROUND),
        ("DELETE", {}, RequestKind.WRITE),
    ],
)
def test_a_request_is_what_its_browser_says(
    method: str, changes: dict[str, str], kind: RequestKind
) -> None:
    assert classify_request(method, "/", PERSON | changes) == kind


def test_a_browser_without_the_newer_headers_is_a_person_too() -> None:
    old = {name: value for name, value in PERSON.items() if not name.startswith("sec-")}
    assert classify_request("GET", "/", old) is RequestKind.NAVIGATION


@pytest.mark.parametrize(
    ("path", "protocol", "kind"),
    [
        ("/", "vite-hmr", RequestKind.DEV_SOCKET),
        ("/_next/webpack-hmr", "", RequestKind.DEV_SOCKET),
        ("/ws", "", RequestKind.DEV_SOCKET),
        ("/chat", "", RequestKind.SOCKET),
    ],
)
def test_sockets_of_development_servers_are_told_apart(
    path: str, protocol: str, kind: RequestKind
) -> None:
    headers = {"sec-websocket-protocol": protocol}
    assert classify_request("GET", path, headers, is_socket=True) is kind


@pytest.mark.parametrize(
    "beat", [b"", b"2", b"3", b"ping", b'{"type":"ping"}', b'{"event":"ping"}']
)
def test_a_heartbeat_is_no_use(beat: bytes) -> None:
    assert not is_use_of_socket(beat, None)


def test_what_is_said_again_is_no_use() -> None:
    assert is_use_of_socket(b"move 1", None)
    assert is_use_of_socket(b"move 2", b"move 1")
    assert not is_use_of_socket(b"move 2", b"move 2")


def test_policy_says_what_counts() -> None:
    used = {
        counts: {kind for kind in RequestKind if find_use(kind, counts) is ActivityClass.INTENT}
        for counts in PreviewUse
    }
    assert used[PreviewUse.NONE] == set()
    assert used[PreviewUse.NAVIGATION] == {RequestKind.NAVIGATION}
    assert used[PreviewUse.INTERACTION] == {RequestKind.NAVIGATION, RequestKind.WRITE}
    assert RequestKind.MACHINE not in used[PreviewUse.ALL]


def target(state: State, *, is_waking: bool = False, port: int | None = 3000) -> Target:
    return Target(state, is_waking=is_waking, is_ready=state is State.RUNNING, port=port)


def test_a_stranger_learns_the_same_whether_or_not_there_is_a_project() -> None:
    found = {
        decide_visit(RequestKind.NAVIGATION, Admission.UNKNOWN, one, may_wake=True)
        for one in (None, *(target(state) for state in State))
    }
    assert found == {AnswerHere(PreviewProblem.SIGN_IN)}


def test_only_an_admitted_persons_navigation_wakes() -> None:
    asleep = [target(state) for state in State if state is not State.RUNNING]
    for kind, admission, one, may in itertools.product(
        RequestKind, Admission, asleep, (True, False)
    ):
        decision = decide_visit(kind, admission, one, may_wake=may)
        assert isinstance(decision, AnswerHere)
        wants = kind is RequestKind.NAVIGATION and admission is Admission.ADMITTED and may
        assert decision.wakes == (wants and one.state is not State.STARTING)


@pytest.mark.parametrize("kind", RequestKind)
def test_a_running_app_gets_everything(kind: RequestKind) -> None:
    decision = decide_visit(kind, Admission.ADMITTED, target(State.RUNNING), may_wake=False)
    assert decision == PassOn()


def test_a_page_waits_while_the_app_starts_and_the_rest_is_tried() -> None:
    one = Target(State.RUNNING, is_waking=True, is_ready=False, port=3000)
    page = decide_visit(RequestKind.NAVIGATION, Admission.ADMITTED, one, may_wake=True)
    assert page == AnswerHere(PreviewProblem.WAKING)
    assert decide_visit(RequestKind.WRITE, Admission.ADMITTED, one, may_wake=True) == PassOn()


@pytest.mark.parametrize(
    ("access", "own", "wakes"),
    [
        ("private", None, True),
        ("members", None, True),
        ("public", None, False),
        ("public", True, True),
        ("private", False, False),
    ],
)
def test_a_visit_wakes_unless_the_preview_is_public_or_the_policy_says_otherwise(
    access: str, own: bool | None, *, wakes: bool
) -> None:
    defaults = PreviewDefaults(PreviewAccess.PRIVATE, wakes_public=False)
    policy = Policy(preview_access=PreviewAccess(access), wake_on_visit=own)
    assert defaults.may_wake(policy) is wakes
