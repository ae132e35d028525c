"""`sandkeeper doctor --url` looks at a deployment from outside, and names what a proxy breaks."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx

from support.keeper_process import Keeper


class BufferingLoginProxy(ThreadingHTTPServer):
    """A proxy that keeps streams until they end, asks webhooks to log in, and has a wrong clock."""

    daemon_threads = True
    keeper = ""
    is_over = threading.Event()


class Handler(BaseHTTPRequestHandler):
    server: BufferingLoginProxy

    def do_GET(self) -> None:
        if self.path == "/api/fleet/events":
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            self.server.is_over.wait(30)
            return
        headers = {"Authorization": self.headers.get("Authorization", "")}
        answer = httpx.get(self.server.keeper + self.path, headers=headers)
        self.send_response(answer.status_code)
        self.send_header("X-Request-Id", answer.headers["x-request-id"])
        self.send_header("Content-Length", str(len(answer.content)))
        self.end_headers()
        self.wfile.write(answer.content)

    def do_POST(self) -> None:
        page = b"<html>Please log in</html>"
        self.send_response(200)
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def date_time_string(self, timestamp: float | None = None) -> str:
        return super().date_time_string((timestamp or time.time()) + 3600)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # Its own name.
        """Say nothing."""


@contextmanager
def behind_a_bad_proxy(keeper: Keeper) -> Iterator[str]:
    server = BufferingLoginProxy(("127.0.0.1", 0), Handler)
    server.keeper = keeper.url
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.is_over.set()
        server.shutdown()
        server.server_close()
        thread.join()


def examine(keeper: Keeper, url: str) -> dict[str, Any]:
    said = keeper.run("doctor", "--json", "--url", url, check=False)
    return {one["name"]: one for one in map(json.loads, said.stdout.splitlines())}


def test_a_good_way_to_the_keeper_has_no_finding(keeper: Keeper) -> None:
    found = examine(keeper, keeper.url)
    for name in ("TLS", "health", "clock", "version", "webhooks", "metrics", "live streams"):
        assert found[name]["ok"], found[name]


def test_a_proxy_that_buffers_asks_for_a_login_and_has_a_wrong_clock_is_found_out(
    keeper: Keeper,
) -> None:
    with behind_a_bad_proxy(keeper) as url:
        found = examine(keeper, url)
    assert "a proxy collects it" in found["live streams"]["finding"]
    assert "without a login page" in found["webhooks"]["fix"]
    for name in ("live streams", "webhooks", "clock"):
        assert not found[name]["ok"]
    assert found["health"]["ok"]


def test_an_address_without_a_keeper_is_named(keeper: Keeper) -> None:
    found = examine(keeper, "https://127.0.0.1:9")
    assert not found["TLS"]["ok"]
    assert "does not answer" in found["health"]["finding"]
