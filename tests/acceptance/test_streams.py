"""Live streams of the running server, as a browser's EventSource reads them."""

from __future__ import annotations

import json
import socket
import threading
from typing import Any, Self

import httpx

from support.eventually import eventually_sync
from support.keeper_process import Keeper


class Listener:
    """Reads one stream in a thread, and keeps what came."""

    def __init__(self, client: httpx.Client, path: str, **headers: str) -> None:
        self._client = client
        self._path = path
        self._headers = headers
        self.events: list[tuple[str, Any]] = []
        self.last_id = ""
        self.response: httpx.Response | None = None
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.response is not None:
            # Hanging up by the socket wakes the thread that waits on it.
            stream = self.response.extensions["network_stream"]
            stream.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
        self._thread.join(30)

    def names(self) -> list[str]:
        return [name for name, _ in self.events]

    def states(self) -> list[str]:
        return [data["status"] for name, data in self.events if name == "status"]

    def _read(self) -> None:
        try:
            with self._client.stream("GET", self._path, headers=self._headers) as response:
                self.response = response
                self._parse(response)
        except (httpx.HTTPError, RuntimeError, OSError):
            pass  # The test hung up, or the server did.

    def _parse(self, response: httpx.Response) -> None:
        name = "message"
        for line in response.iter_lines():
            if line.startswith("id: "):
                self.last_id = line[4:]
            elif line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: "):
                self.events.append((name, json.loads(line[6:])))


def test_a_stream_tells_the_state_at_once_and_every_change_after_it(
    keeper: Keeper, api: httpx.Client, project: str
) -> None:
    api.put(f"/api/sandboxes/{project}", json={})
    with keeper.client() as other, Listener(other, f"/api/sandboxes/{project}/events") as heard:
        eventually_sync(lambda: heard.states() == ["RUNNING"])
        assert heard.response is not None
        assert heard.response.headers["content-type"].startswith("text/event-stream")
        assert heard.response.headers["cache-control"] == "no-store"
        assert heard.response.headers["x-accel-buffering"] == "no"
        assert "content-encoding" not in heard.response.headers
        api.post(f"/api/sandboxes/{project}/pause")
        eventually_sync(lambda: heard.states()[-1] == "PAUSED")
        kept, change = (data for name, data in heard.events if name == "change")
        assert kept["type"] == "sandbox.files_captured"
        assert (change["fromState"], change["toState"]) == ("RUNNING", "PAUSED")
        versions = [data["version"] for name, data in heard.events if name == "status"]
        assert versions == sorted(versions)


def test_a_returning_reader_hears_what_it_missed(
    keeper: Keeper, api: httpx.Client, project: str
) -> None:
    api.put(f"/api/sandboxes/{project}", json={})
    path = f"/api/sandboxes/{project}/events"
    with keeper.client() as client, Listener(client, path) as heard:
        eventually_sync(lambda: heard.last_id and heard.states())
        last = heard.last_id
    api.post(f"/api/sandboxes/{project}/pause")
    headers = {"Last-Event-ID": last}
    with keeper.client() as client, Listener(client, path, **headers) as again:
        eventually_sync(lambda: again.states() == ["PAUSED"])
        missed = [data["type"] for name, data in again.events if name == "change"]
        assert missed == ["sandbox.files_captured", "sandbox.state_changed"]
        assert int(again.last_id) > int(last)


def test_one_stream_carries_many_projects_and_nothing_else(
    keeper: Keeper, api: httpx.Client, project: str
) -> None:
    names = [f"{project}-{number}" for number in range(3)]
    for name in names:
        api.put(f"/api/sandboxes/{name}", json={})
    query = f"/api/fleet/events?project={names[0]}&project={names[1]}"
    with keeper.client() as client, Listener(client, query) as heard:
        eventually_sync(lambda: heard.names().count("status") == 2)
        for name in names:
            api.post(f"/api/sandboxes/{name}/pause")
        eventually_sync(lambda: heard.states().count("PAUSED") >= 2)
        told = {data["project"] for name, data in heard.events if name in {"status", "change"}}
        assert told == set(names[:2])


def test_activity_of_one_tab_reaches_the_others(
    keeper: Keeper, api: httpx.Client, project: str
) -> None:
    made = api.put(f"/api/sandboxes/{project}", json={}).json()
    with keeper.client() as other, Listener(other, f"/api/sandboxes/{project}/events") as heard:
        eventually_sync(heard.states)
        api.post(f"/api/sandboxes/{project}/activity", json={"source": "editor"})
        eventually_sync(lambda: heard.events[-1][1].get("lastActiveSource") == "editor")
        assert heard.events[-1][1]["sleepsAt"] > made["sleepsAt"]


def test_a_page_of_another_origin_listens_with_a_stream_token(
    keeper: Keeper, api: httpx.Client, project: str
) -> None:
    api.put(f"/api/sandboxes/{project}", json={})
    token = api.post("/api/client-tokens", json={"project": project}).json()["token"]
    with keeper.client(token) as client:
        token = client.post("/api/stream-tokens").json()["token"]
    path = f"/api/sandboxes/{project}/events?token={token}"
    with httpx.Client(base_url=keeper.url) as page:
        with Listener(page, path) as heard:
            eventually_sync(heard.states)
        assert page.get(path).status_code == 401
        other = path.replace(project, "another")
        assert page.get(other).status_code == 401
