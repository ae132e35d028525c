"""The terminal: a real shell in a real sandbox, over the keeper's WebSocket."""

from __future__ import annotations

import hashlib
import json
import socket
import time
from collections.abc import Iterator
from typing import Any, Self

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from support.eventually import eventually_sync
from support.keeper_process import Keeper

WITHIN_S = 60
PASTE = [bytes([65 + number % 26]) * 16384 for number in range(64)]


class Shell:
    """A terminal as its user sees it: what was written, and the server's messages."""

    def __init__(
        self, keeper: Keeper, project: str, *, headers: dict[str, str] | None = None, **query: int
    ) -> None:
        url = f"{keeper.dashboard_url.replace('http', 'ws', 1)}/api/sandboxes/{project}/terminal"
        if query:
            url += "?" + "&".join(f"{name}={value}" for name, value in query.items())
        given = headers or {"Authorization": f"Bearer {keeper.key}"}
        place = ("127.0.0.1", int(keeper.url.rpartition(":")[2]))
        self._connection = connect(
            url,
            sock=socket.create_connection(place),
            additional_headers=given,
            open_timeout=WITHIN_S,
            max_size=None,
        )
        self.written = b""
        self.told: dict[str, Any] = {}

    def __enter__(self) -> Self:
        self._socket = self._connection.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def type(self, text: str | bytes) -> None:
        self._socket.send(text.encode() if isinstance(text, str) else text)

    def resize(self, cols: int, rows: int) -> None:
        self._socket.send(json.dumps({"cols": cols, "rows": rows}))

    def read_until(self, wanted: str) -> bytes:
        """Read until a text was written, and forget what was read."""
        ends = time.monotonic() + WITHIN_S
        while wanted.encode() not in self.written:
            self._read(ends)
        written, self.written = self.written, b""
        return written

    def hear(self, name: str) -> Any:
        """Return what the server says under this name."""
        ends = time.monotonic() + WITHIN_S
        while name not in self.told:
            self._read(ends)
        return self.told[name]

    def _read(self, ends: float) -> None:
        message = self._socket.recv(timeout=max(0.0, ends - time.monotonic()))
        if isinstance(message, bytes):
            self.written += message
        else:
            self.told |= json.loads(message)


@pytest.fixture
def sandbox(api: httpx.Client, project: str) -> Iterator[str]:
    assert api.put(f"/api/sandboxes/{project}", json={}).status_code == 201
    yield project
    api.delete(f"/api/sandboxes/{project}")


def test_a_shell_is_a_real_terminal(keeper: Keeper, api: httpx.Client, sandbox: str) -> None:
    with Shell(keeper, sandbox, cols=100, rows=30) as shell:
        pid = shell.hear("pid")
        # The echo of what is typed contains no result.
        shell.type("stty size; tty\n")
        shell.read_until("30 100")
        shell.read_until("/dev/pts/")
        shell.resize(132, 43)
        shell.type("while [ \"$(stty size)\" != '43 132' ]; do sleep 0.1; done; echo di''d\n")
        shell.read_until("did")
        shell.type("sleep 1000\n")
        shell.read_until("sleep 1000")
        shell.type("\x03")
        shell.type("echo interrup''ted\n")
        shell.read_until("interrupted")
        # A paste of a megabyte arrives whole and in order.
        shell.type("stty raw -echo; echo rea''dy; head -c 1048576 | sha256sum; stty sane\n")
        shell.read_until("ready")
        for block in PASTE:
            shell.type(block)
        shell.read_until(hashlib.sha256(b"".join(PASTE)).hexdigest())
        shell.type("exit 7\n")
        assert shell.hear("exit") == 7
    events = api.get("/api/audit", params={"limit": 50}).json()["items"]
    opened = [one for one in events if one["action"] == "terminal_opened"]
    assert any(sandbox in one["subject"] and one["data"]["pid"] == pid for one in opened)

    def was_used() -> bool:
        status = api.get(f"/api/sandboxes/{sandbox}/status").json()
        return bool(status["lastActiveSource"] == "terminal")

    eventually_sync(was_used)


def test_a_terminal_wakes_its_sandbox_and_survives_a_lost_connection(
    keeper: Keeper, api: httpx.Client, sandbox: str
) -> None:
    assert api.post(f"/api/sandboxes/{sandbox}/pause").json()["status"] == "PAUSED"
    with Shell(keeper, sandbox) as shell:
        pid = shell.hear("pid")
        shell.type("kept=here; echo se''t\n")
        shell.read_until("set")
    with Shell(keeper, sandbox, pid=pid) as shell:
        assert shell.hear("pid") == pid
        shell.type('echo "it is $kept"\n')
        shell.read_until("it is here")
    # The pid of a process that is no terminal of ours is not taken up: it gets a shell of its own.
    with Shell(keeper, sandbox, pid=1) as shell:
        assert shell.hear("pid") not in {1, pid}


def test_only_an_operator_from_the_dashboards_own_page_gets_one(
    keeper: Keeper, api: httpx.Client, sandbox: str
) -> None:
    refused: list[dict[str, str]] = [{"Authorization": "Bearer sk_a_viewer"}, {"Cookie": "x=y"}]
    token = api.post("/api/client-tokens", json={"project": sandbox}).json()["token"]
    refused.append({"Authorization": f"Bearer {token}"})
    with keeper.browser() as browser:
        browser.post("/api/login", json={"key": keeper.key})
        (cookie,) = [f"{name}={value}" for name, value in browser.cookies.items()]
        foreign = {"Cookie": cookie, "Origin": "http://evil.localhost"}
        refused.append(foreign)
        for headers in refused:
            with pytest.raises(InvalidStatus) as answer, Shell(keeper, sandbox, headers=headers):
                pass
            assert answer.value.response.status_code in {401, 403}
        with pytest.raises(InvalidStatus) as answer, Shell(keeper, "no-such-project"):
            pass
        assert answer.value.response.status_code == 404

        with Shell(keeper, sandbox, headers=foreign | {"Origin": keeper.dashboard_url}) as shell:
            shell.hear("pid")
            browser.post("/api/logout", headers={"Origin": keeper.dashboard_url})
            assert shell.hear("error")["code"] == "unauthenticated"

            def is_closed() -> bool:
                try:
                    shell.type("\n")
                except ConnectionClosed:
                    return True
                return False

            eventually_sync(is_closed)
