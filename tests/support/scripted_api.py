"""A server that says what a test wants it to say: states that a real sandbox reaches rarely.

It serves the real files of the product; only the API's answers are scripted. It runs in the test's
own event loop, counts every request and can refuse, hang up and expire tokens on demand.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from sandkeeper.domain.states import State
from sandkeeper.domain.texts.console import STATE_WORDS
from sandkeeper.domain.texts.presentation import PRESENTATIONS, AppHealth, Truth, word_truth
from sandkeeper.web import web_routes

STEPS = ["resuming", "restoring_files", "starting_app", "waiting_for_port"]

AT = "2026-01-02T03:04:05Z"
EXPLANATION = {
    "since": AT,
    "why": "idle for 3 minutes",
    "actor": "idle-sweep",
    "lastActiveAt": AT,
    "lastActiveClass": "intent",
    "lastActiveSource": "preview",
    "ignoredPassiveCount": 4,
    "ignoredPassiveAt": AT,
    "ignoredPassiveSource": "status",
    "idleTimeoutMs": 250_000,
    "idleTimeoutWhy": "learned 4 min 10 s: 97 % of the 41 gaps were shorter",
    "idlePauses": 4,
    "earlyPauses": 1,
    "idleTailMs": 750_000,
    "nextRule": "nothing by itself",
    "nextAt": None,
    "preventedBy": [],
    "asOf": AT,
}
CHANGE = {
    "seq": 1,
    "at": AT,
    "type": "sandbox.state_changed",
    "version": 2,
    "fromState": "RUNNING",
    "toState": "PAUSED",
    "cause": "reply",
    "reason": "idle for 3 minutes",
    "actor": "idle-sweep",
    "detail": {"lagS": 0.8},
}
POINTS = [[f"2026-01-02T0{hour}:00:00Z", float(hour)] for hour in range(6)]
TRENDS = {
    "since": AT,
    "stepS": 3600,
    "charts": [
        {
            "name": name,
            "title": title,
            "sentence": f"{title}, hour by hour.",
            "unit": unit,
            "series": [{"name": line, "points": POINTS} for line in lines],
        }
        for name, title, unit, lines in [
            ("states", "States over time", "", ["RUNNING", "PAUSED"]),
            ("idle_lag", "Idle enforcement lag", "s", ["p50", "p95"]),
        ]
    ],
}

WORDS = {state.value: word for state, word in STATE_WORDS.items()}
STATES = {state.value: {"badge": words.badge.value} for state, words in PRESENTATIONS.items()}


@asynccontextmanager
async def served(app: ASGIApp) -> AsyncIterator[str]:
    """Serves an application on a free port of the loopback and gives its address."""
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    task = asyncio.create_task(server._serve())  # Without signal handlers: pytest has its own.
    try:
        while not server.started:
            await asyncio.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        server.force_exit = True
        await task


class ScriptedApi:
    """The API of one fleet, as told by the test."""

    def __init__(self) -> None:
        self.url = ""
        self.preview_url = ""
        self.requests: Counter[str] = Counter()
        self.bodies: list[tuple[str, Any]] = []
        self.sandboxes: dict[str, dict[str, Any]] = {}
        self.tokens: set[str] | None = None
        self.stream_refused = False
        self.down = False
        self.role = "operator"
        self.signed_in = True
        self.jobs: list[dict[str, Any]] = []
        self.answers: dict[str, tuple[int, Any]] = {}
        self.parts: list[dict[str, Any]] = []
        self.pages: dict[str, tuple[str, dict[str, str]]] = {}
        self.streams: set[asyncio.Queue[bytes | None]] = set()
        self.streams_opened = 0
        self._seq = 0

    def tell(self, project: str, state: str = "RUNNING", **fields: Any) -> dict[str, Any]:
        """Sets what is true of a sandbox, and tells every stream."""
        status = self._status(project, state, fields)
        self.sandboxes[project] = status
        self._seq += 1
        data = json.dumps(status)
        block = f"id: {self._seq}\nevent: status\ndata: {data}\n\n".encode()
        for queue in self.streams:
            queue.put_nowait(block)
        return status

    def burst(self, project: str, count: int) -> None:
        """Tell of this many changes of a sandbox at once, each with the status it led to."""
        for number in range(count):
            self._seq += 1
            change = CHANGE | {"seq": self._seq, "project": project}
            block = f"id: {self._seq}\nevent: change\ndata: {json.dumps(change)}\n\n".encode()
            for queue in self.streams:
                queue.put_nowait(block)
            state = "PAUSED" if number % 2 else "RUNNING"
            self.tell(project, state, summary=summarize(state, datetime.now(UTC), str(number)))

    def ping(self) -> None:
        for queue in self.streams:
            queue.put_nowait(b": ping\n\n")

    def cut_streams(self) -> None:
        for queue in list(self.streams):
            queue.put_nowait(None)

    def count(self, what: str) -> int:
        """How many requests there were whose method and path contain this text."""
        return sum(n for line, n in self.requests.items() if what in line)

    def _status(self, project: str, state: str, fields: dict[str, Any]) -> dict[str, Any]:
        now = datetime.now(UTC)
        waking = fields.get("waking")
        app = AppHealth.ANSWERS if fields.get("ready", True) else AppHealth.STARTING
        words = word_truth(Truth(State(state), app=app, is_waking=bool(waking)))
        running = state == "RUNNING"
        version = self.sandboxes.get(project, {}).get("version", 0) + 1
        return {
            "id": f"sb_{project}",
            "project": project,
            "owner": {"kind": "project", "id": project},
            "status": state,
            "version": version,
            "ready": running,
            "app": app.value if running else None,
            "summary": summarize(state, now),
            "cause": "automatic",
            "providerDownSince": None,
            "label": words.label,
            "caption": words.caption,
            "badge": words.badge.value,
            "icon": words.icon,
            "pulses": words.pulses,
            "actions": [action.value for action in words.actions],
            "pollAfterMs": words.poll_after_ms,
            "sandboxUrl": self.preview_url if running else None,
            "reason": "scripted",
            "actor": "test",
            "stateSince": now.isoformat(),
            "asOf": now.isoformat(),
            "lastActiveAt": now.isoformat(),
            "lastActiveClass": "intent",
            "lastActiveSource": "test",
            "passiveCount": 0,
            "lastPassiveAt": None,
            "idleTimeoutMs": 180000,
            "lifecycleTimeoutMs": 3600000,
            "sleepsAt": (now + timedelta(minutes=3)).isoformat() if running else None,
            "expiresAt": None,
            "recreated": False,
            "recreationReason": None,
            "waking": None,
            "pausedByScheduler": False,
            "lastVerifiedAt": now.isoformat(),
            "verificationFailures": 0,
            "killedAt": None,
            "killedReason": None,
            "generation": 1,
            "instanceId": "i1",
            "provider": "local",
            "region": "here",
            "template": "base",
            "port": 3000,
            "metadata": {},
            "createdAt": now.isoformat(),
            "updatedAt": now.isoformat(),
            **fields,
        }

    def app(self) -> Starlette:
        methods = ["GET", "POST", "PUT", "DELETE", "PATCH"]
        routes = [
            Route("/page/{name}", self._page),
            *web_routes(),
            Route("/api/{rest:path}", self._api, methods=methods),
        ]
        return Starlette(routes=routes)

    async def _page(self, request: Request) -> Response:
        html, headers = self.pages[request.path_params["name"]]
        return HTMLResponse(html, headers=headers)

    async def _api(self, request: Request) -> Response:
        path = "/" + request.path_params["rest"]
        line = f"{request.method} {path}"
        self.requests[line] += 1
        if self.down:
            return Response("bad gateway", status_code=502)
        if self.tokens is not None:
            given = request.headers.get("authorization", "").removeprefix("Bearer ")
            if given not in self.tokens:
                return problem(401, "unauthenticated", "The token has expired: ask for a new one.")
        body = await request.body()
        if body:
            self.bodies.append((line, json.loads(body)))
        for prefix, (status, answer) in self.answers.items():
            if line.startswith(prefix):
                return JSONResponse(answer, status_code=status)
        if path.endswith("/events"):
            return self._stream()
        if path.startswith("/sandboxes/"):
            return self._sandbox(request, path)
        return self._fleet(request, path)

    def _fleet(self, request: Request, path: str) -> Response:
        if path == "/login" and request.method == "GET":
            return JSONResponse({"provider": None})
        if path == "/login":
            self.signed_in = "right" in self.bodies[-1][1].values()
        if path == "/logout":
            self.signed_in = False
            return Response(status_code=204)
        if not self.signed_in:
            return problem(401, "unauthenticated", "The key or token is not one of ours.")
        me = {"role": self.role, "owner": None}
        nothing = {"items": [], "nextCursor": None}
        answers: dict[str, Callable[[], dict[str, Any]]] = {
            "/me": lambda: me,
            "/login": lambda: me,
            "/sandboxes": lambda: self._list(request),
            "/presentation": lambda: {"states": STATES, "words": WORDS},
            "/fleet/summary": self._summary,
            "/fleet/bulk": self._bulk,
            "/fleet/trends": lambda: TRENDS,
            "/dashboard": lambda: {"jobs": self.jobs},
        }
        return JSONResponse(answers.get(path, lambda: nothing)())

    def _list(self, request: Request) -> dict[str, Any]:
        query = request.query_params
        found = list(self.sandboxes.values())
        if state := query.get("state"):
            found = [one for one in found if one["status"] == state]
        if search := query.get("search"):
            found = [one for one in found if search in one["project"]]
        sort = query.get("sort", "-created")
        keys = {"owner": "project", "state": "status", "active": "lastActiveAt"}
        found.sort(key=lambda one: one[keys.get(sort.removeprefix("-"), "createdAt")])
        if sort.startswith("-"):
            found.reverse()
        start, limit = int(query.get("cursor") or 0), int(query["limit"])
        more = start + limit < len(found)
        items = found[start : start + limit]
        return {"items": items, "nextCursor": str(start + limit) if more else None}

    def _summary(self) -> dict[str, Any]:
        states = Counter(one["status"] for one in self.sandboxes.values())
        now = datetime.now(UTC).isoformat()
        names = {"webhook_failures": 0.05, "stale_records": 0.1, "mismatches": 0.02}
        items = [
            {"name": name, "sentence": "A sentence.", "unit": "ratio", "value": 0.002}
            | {"limit": limit, "ok": True, "lastOkAt": now}
            for name, limit in names.items()
        ]
        items += [
            {"name": name, "sentence": "A sentence.", "unit": "s", "value": None}
            | {"limit": 120.0, "ok": True, "lastOkAt": now}
            for name in ("webhook_silence", "idle_lag_p95")
        ]
        items.append(
            {"name": "background_run", "sentence": "A run took too long.", "unit": "s"}
            | {"value": 95.0, "limit": 90.0, "ok": False, "lastOkAt": now}
        )
        numbers = {"total": states.total(), "states": dict(states), "stale": 0, "overdue": 0}
        parts = [
            {"name": "enforcer", "title": "Enforcer", "state": "ok", "finding": "It runs."}
            | {"meaning": "Pauses idle sandboxes.", "action": "Look in the log.", "since": None},
            {"name": "background_run", "title": "Background runs", "state": "bad"}
            | {"finding": "95.0 seconds; the limit is 90.0 seconds.", "since": None}
            | {"meaning": "A run took too long.", "action": "Look for a slow database."},
            *self.parts,
        ]
        health = {"ok": False, "parts": parts, "items": items}
        return {**numbers, "health": health, "asOf": now}

    def _bulk(self) -> dict[str, Any]:
        asked = self.bodies[-1][1]
        items = []
        for project in asked.get("projects") or self.sandboxes:
            fails = project.startswith("bad")
            status = self.sandboxes[project]["status"]
            item = {"project": project, "ok": True, "status": status, "code": None}
            if fails and not asked["dryRun"]:
                item |= {"ok": False, "status": None, "code": "provider_unavailable"}
            items.append({**item, "detail": "The provider did not answer." if fails else None})
        head = {"action": asked["action"], "dryRun": asked["dryRun"], "count": len(items)}
        return {**head, "matched": len(items), "items": items, "nextCursor": None}

    def _sandbox(self, request: Request, path: str) -> Response:
        _, _, project, *verb = path.split("/")
        status = self.sandboxes.get(project)
        if status is None:
            return problem(404, "sandbox_not_found", f"There is no sandbox of {project}.")
        if not verb and request.method == "DELETE":
            return JSONResponse(self.tell(project, "KILLED"))
        return self._read(request, project, status, verb)

    def _read(
        self, request: Request, project: str, status: dict[str, Any], verb: list[str]
    ) -> Response:
        match verb:
            case ["status"]:
                tag = f'"v{status["version"]}"'
                if request.headers.get("if-none-match") == tag:
                    return Response(status_code=304)
                return JSONResponse(status, headers={"ETag": tag})
            case ["verify"]:
                return JSONResponse(status)
            case ["wake"] if request.method == "POST":
                # As long as the test has not told the end, no caller asks a second time.
                return JSONResponse({"status": "asked", "method": None, "steps": []}, 202)
            case ["explain"]:
                return JSONResponse(EXPLANATION | {"project": project, "status": status["status"]})
            case ["history"]:
                return JSONResponse({"items": [CHANGE | {"project": project}], "nextCursor": None})
            case ["log"]:
                return JSONResponse({"lines": status.get("log", [])})
            case ["activity"] | ["report-mismatch"]:
                return JSONResponse({"accepted": True, "kind": "intent"}, status_code=202)
        return problem(404, "not_found", "The script does not know this.")

    def _stream(self) -> Response:
        if self.stream_refused:
            return problem(503, "too_many_streams", "As many streams as may be.")
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.streams.add(queue)
        self.streams_opened += 1

        async def blocks() -> AsyncIterator[bytes]:
            try:
                yield b"retry: 2000\n\n"
                while (block := await queue.get()) is not None:
                    yield block
            finally:
                self.streams.discard(queue)

        return StreamingResponse(blocks(), media_type="text/event-stream")


def summarize(state: str, now: datetime, note: str = "as the script says") -> dict[str, Any]:
    """Return a sentence as the server might say it, and what can be done in this state."""
    ended = ["wake"]
    operations = {
        "RUNNING": ["pause", "extend", "verify", "kill"],
        "PAUSED": ["wake", "verify", "kill"],
        "UNKNOWN": ["verify"],
        "STARTING": ["verify", "kill"],
    }
    word = WORDS[state]
    return {
        "word": word,
        "sentence": f"It is {word.lower()}, {note}.",
        "since": now.isoformat(),
        "operations": operations.get(state, ended),
    }


def problem(status: int, code: str, detail: str) -> JSONResponse:
    body = {"type": "about:blank", "title": detail, "status": status, "detail": detail}
    body |= {"code": code, "retryable": False, "hint": "", "requestId": "r"}
    return JSONResponse(body, status_code=status, media_type="application/problem+json")


async def _preview(request: Request) -> Response:
    return HTMLResponse("<!doctype html><title>app</title><h1 id=app>It lives</h1>")


def preview_app() -> Starlette:
    """What runs in the sandbox: a page of another origin."""
    return Starlette(routes=[Route("/{rest:path}", _preview)])


def host_app(html: str) -> Starlette:
    """A host application that embeds the pane."""

    async def page(request: Request) -> Response:
        return HTMLResponse(html)

    return Starlette(routes=[Route("/", page)])
