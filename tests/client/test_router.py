"""The keeper's routes inside a host's FastAPI application, behind the host's own rules."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
from fastapi import FastAPI, HTTPException, Request

from sandkeeper.api.auth import Caller
from sandkeeper.client import AsyncSandkeeper
from sandkeeper.client.in_process import InProcessTransport
from sandkeeper.hosting.local_engine import RunningEngine
from sandkeeper.integrations.fastapi_router import OPERATOR, VIEWER, client_of, make_router
from support.engine_process import Engine

URL = "http://host.example"


async def authorize(request: Request) -> Caller | None:
    """The host's rules: a header or a cookie names the user."""
    user = request.headers.get("x-user") or request.cookies.get("user")
    if user == "banned":
        raise HTTPException(418, "The host says so.")
    return {"root": OPERATOR, "auditor": VIEWER, "ann": client_of("ann-shop")}.get(user or "")


@asynccontextmanager
async def host(engine: Engine, data: Path) -> AsyncIterator[tuple[httpx.AsyncClient, str]]:
    app = FastAPI()
    running = RunningEngine(engine.url, engine.key)
    async with AsyncSandkeeper.embedded(engine=running, data=data, creations_per_s=50) as keeper:
        app.include_router(make_router(keeper, authorize), prefix="/sandboxes")
        async with httpx.AsyncClient(transport=InProcessTransport(app), base_url=URL) as client:
            yield client, keeper.operator_key
            for project in ("ann-shop", "bob-shop"):
                await keeper.project(project).kill()


async def test_the_host_decides_who_may_do_what(engine: Engine, tmp_path: Path) -> None:
    async with host(engine, tmp_path) as (client, operator_key):

        async def ask(user: str, method: str, path: str, **more: str) -> httpx.Response:
            headers = {"X-User": user} | more
            return await client.request(
                method, f"/sandboxes{path}", headers=headers, json={} if method == "PUT" else None
            )

        assert (await ask("root", "PUT", "/api/sandboxes/ann-shop")).status_code == 201
        assert (await ask("root", "PUT", "/api/sandboxes/bob-shop")).status_code == 201
        assert (await ask("ann", "GET", "/api/sandboxes/ann-shop/status")).status_code == 200
        assert (await ask("ann", "GET", "/api/sandboxes/bob-shop/status")).status_code == 403
        assert (await ask("ann", "POST", "/api/sandboxes/ann-shop/pause")).status_code == 200
        assert (await ask("ann", "DELETE", "/api/sandboxes/ann-shop")).status_code == 403
        assert (await ask("auditor", "GET", "/api/fleet/summary")).json()["total"] == 2
        assert (await ask("auditor", "POST", "/api/sandboxes/ann-shop/pause")).status_code == 403
        assert (await ask("banned", "GET", "/api/fleet/summary")).status_code == 418

        for path in ("/api/fleet/summary", "/metrics", "/api/fleet/events?token=x"):
            refused = await ask("", "GET", path)
            assert refused.status_code == 401
            assert refused.json()["code"] == "unauthenticated"
        bearer = await ask("", "GET", "/api/me", Authorization=f"Bearer {operator_key}")
        assert bearer.status_code == 401, "the keeper's own keys mean nothing here"
        webhook = await client.post("/sandboxes/api/webhooks/e2b", content=b"{}")
        assert webhook.json()["code"] == "invalid_signature"


async def test_streams_large_bodies_and_cookies_pass_through_the_host(
    engine: Engine, tmp_path: Path
) -> None:
    async with host(engine, tmp_path) as (client, _):
        root = {"X-User": "root"}
        for project in ("ann-shop", "bob-shop"):
            await client.put(f"/sandboxes/api/sandboxes/{project}", headers=root, json={})
        content = b"x" * 2_000_000
        written = await client.put(
            "/sandboxes/api/sandboxes/ann-shop/files/big.bin", headers=root, content=content
        )
        assert written.status_code == 200
        read = await client.get(
            "/sandboxes/api/sandboxes/ann-shop/files/big.bin", headers={"X-User": "ann"}
        )
        assert read.content == content
        async with client.stream(
            "GET", "/sandboxes/api/sandboxes/ann-shop/events", headers={"X-User": "ann"}
        ) as stream:
            async for line in stream.aiter_lines():
                if line == "event: status":
                    break

        path = "/sandboxes/api/sandboxes/ann-shop/pause"
        foreign = {"Cookie": "user=ann", "Origin": "http://evil.example"}
        assert (await client.post(path, headers=foreign)).status_code == 403
        own = {"Cookie": "user=ann", "Origin": URL}
        assert (await client.post(path, headers=own)).status_code == 200
