"""A desktop session's live view and health, on the real template."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import e2b
import httpx
import pytest
from e2b_desktop import Sandbox as Desktop
from websockets.sync.client import connect

from sandkeeper.api.schemas.sessions import SdkConnection
from sandkeeper.client import Sandkeeper
from sandkeeper.client.sdk_handles import build_sdk_sandbox
from sandkeeper.engine.templates import desktop
from support.eventually import eventually_sync
from support.keeper_process import Keeper

MISSING = desktop.find_missing()
needs_desktop = pytest.mark.skipif(
    bool(MISSING), reason=f"`make desktop` was not run: {', '.join(MISSING)} missing"
)


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keeper]:
    """A keeper that gives a slow machine's desktop time."""
    limits = {"stream_ready_timeout_ms": 50_000, "session_check_timeout_s": 30}
    running = Keeper(tmp_path_factory.mktemp("stream") / "data", **limits)
    try:
        yield running.start()
    finally:
        running.stop()


def open_native(found: dict[str, Any]) -> e2b.Sandbox:
    return build_sdk_sandbox(e2b.Sandbox, SdkConnection(**found["connection"]))


@needs_desktop
def test_a_desktop_is_streamed_once_for_all_who_ask_and_stops(patient: Keeper) -> None:
    asked = {"userId": "ada", "taskId": "view", "kind": "desktop"}
    with patient.client() as api:
        found = api.post("/api/sessions/acquire", json=asked).json()
        path = f"/api/sessions/{found['id']}/stream"
        assert api.get(path).json() == {"running": False, "url": None}

        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda _: api.post(path), range(4)))

        assert {answer.status_code for answer in answers} == {200}, answers[0].text
        assert len({answer.json()["url"] for answer in answers}) == 1
        stream = answers[0].json()
        assert api.get(path).json() == stream
        url = urlsplit(stream["url"])
        instance = found["connection"]["instanceId"]
        assert (url.scheme, url.path) == ("http", "/vnc.html")
        assert str(url.hostname).startswith(f"6081-{instance}.")
        headers = {"E2b-Sandbox-Id": instance, "E2b-Sandbox-Port": "6081"}
        assert "noVNC" in httpx.get(f"{patient.engine_url}{url.path}", headers=headers).text
        with connect(
            f"ws://127.0.0.1:{urlsplit(patient.engine_url).port}/websockify",
            additional_headers=headers,
            subprotocols=["binary"],  # type: ignore[list-item]  # a NewType of str
        ) as socket:
            assert socket.recv(timeout=60) == b"RFB 003.008\n"
        native = open_native(found)
        assert native.commands.run("pgrep -cx x11vnc").stdout == "1\n"

        assert [api.delete(path).status_code for _ in range(2)] == [204, 204]

        assert api.get(path).json() == {"running": False, "url": None}
        assert native.commands.run("pgrep -x x11vnc || echo none").stdout == "none\n"
        assert api.post("/api/sessions/acquire", json=asked).json()["source"] == "reused"
        again = api.post(path).json()
        assert again["running"]
        assert again["url"] != stream["url"]


@needs_desktop
def test_a_lease_of_a_desktop_hands_over_the_sdks_own_desktop_with_its_screen_on(
    patient: Keeper,
) -> None:
    with Sandkeeper(patient.url, patient.key) as keeper:
        with keeper.lease("ada", "screen", kind="desktop") as desktop:
            assert isinstance(desktop, Desktop)
            assert bytes(desktop.screenshot()).startswith(b"\x89PNG")
            desktop.move_mouse(321, 123)
            assert desktop.get_cursor_position() == (321, 123)
            assert f"6080-{desktop.sandbox_id}." in desktop.stream.get_url()
            desktop.commands.run("pkill -x Xvfb")
        with keeper.lease("ada", "screen", kind="desktop") as again:
            assert again.sandbox_id == desktop.sandbox_id, "a screen that ended is started again"
            assert again.get_screen_size() == (1024, 768)
            assert again.commands.run("pgrep -cx Xvfb").stdout == "1\n"


@needs_desktop
def test_a_desktop_from_the_pool_has_its_screen_on(patient: Keeper) -> None:
    with patient.client() as api:
        api.put("/api/pools", json={"template": "desktop", "target": 1})

        def is_warm() -> bool:
            items = api.get("/api/pools").json()["items"]
            return any(one["template"] == "desktop" and one["ready"] == 1 for one in items)

        eventually_sync(is_warm, within_s=90)
        asked = {"userId": "ada", "taskId": "warm", "kind": "desktop"}
        found = api.post("/api/sessions/acquire", json=asked).json()
        api.put("/api/pools", json={"template": "desktop", "target": 0})
        assert found["source"] == "pool"
        inside = open_native(found).commands.run("echo $DISPLAY; xdotool getdisplaygeometry")
        assert inside.stdout == ":0\n1024 768\n"


@needs_desktop
def test_a_desktop_whose_screen_hangs_is_replaced(patient: Keeper) -> None:
    asked = {"userId": "ada", "taskId": "hung", "kind": "desktop"}
    with patient.client() as api:
        found = api.post("/api/sessions/acquire", json=asked).json()
        assert api.post(f"/api/sessions/{found['id']}/stream").status_code == 200
        open_native(found).commands.run("pkill -STOP -x Xvfb")

        again = api.post("/api/sessions/acquire", json=asked).json()

        assert again["source"] == "replaced"
        assert again["connection"]["instanceId"] != found["connection"]["instanceId"]


@needs_desktop
def test_a_desktop_whose_browser_does_not_answer_is_replaced(patient: Keeper) -> None:
    asked = {"userId": "ada", "taskId": "deaf", "kind": "desktop"}
    with patient.client() as api:
        native = open_native(api.post("/api/sessions/acquire", json=asked).json())
        server = native.commands.run("python3 -m http.server 9222", background=True, timeout=0)
        native.commands.run("cp /bin/bash /tmp/chrome")
        browser = "/tmp/chrome -c 'echo up; sleep 900; :' --remote-debugging-port=9222"
        native.commands.run(browser, background=True, timeout=0)
        assert api.post("/api/sessions/acquire", json=asked).json()["source"] == "reused"
        server.kill()
        assert api.post("/api/sessions/acquire", json=asked).json()["source"] == "replaced"


def test_a_session_without_a_screen_has_no_stream(
    api: httpx.Client, acquire: Callable[..., dict[str, Any]]
) -> None:
    path = f"/api/sessions/{acquire()['id']}/stream"
    for answer in (api.post(path), api.get(path), api.delete(path)):
        assert (answer.status_code, answer.json()["code"]) == (409, "not_a_desktop_session")
        assert "desktop" in answer.json()["hint"]
    missing = api.post("/api/sessions/se-0000000000000000/stream")
    assert (missing.status_code, missing.json()["code"]) == (404, "session_not_found")
