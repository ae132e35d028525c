"""The clients against a whole keeper and real sandboxes."""

from __future__ import annotations

import inspect
import secrets
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, aclosing
from pathlib import Path
from typing import Any

import e2b
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from sandkeeper.client import (
    AsyncProject,
    AsyncSandkeeper,
    ChangeOut,
    Project,
    Sandkeeper,
    SandkeeperError,
    Status,
)
from sandkeeper.client.blocking import SyncFiles, SyncJobs, SyncPools, SyncSessions
from sandkeeper.client.files import AsyncFiles
from sandkeeper.client.in_process import InProcessTransport
from sandkeeper.client.jobs import AsyncJobs
from sandkeeper.client.pools import AsyncPools
from sandkeeper.client.sessions import AsyncSessions
from sandkeeper.domain.errors import (
    ForbiddenError,
    InvalidRequestError,
    SandboxNotFoundError,
    SavedFileNotFoundError,
    SessionNotFoundError,
    UnauthenticatedError,
)
from sandkeeper.hosting.local_engine import RunningEngine
from support.engine_process import Engine
from support.eventually import eventually


async def test_a_project_is_created_watched_put_to_sleep_woken_and_ended_over_http(
    engine: Engine, tmp_path: Path, serving: Callable[[ASGIApp], AbstractAsyncContextManager[str]]
) -> None:
    running = RunningEngine(engine.url, engine.key)
    async with (
        AsyncSandkeeper.embedded(engine=running, data=tmp_path, creations_per_s=50) as embedded,
        serving(embedded.asgi) as url,
        AsyncSandkeeper(url, embedded.operator_key) as keeper,
    ):
        shop = keeper.project("shop: ünïcode")
        with pytest.raises(InvalidRequestError):
            keeper.project("shop/ünïcode")
        with pytest.raises(SandboxNotFoundError):
            await shop.status()
        made = await shop.create(env={"A": "1"}, metadata={"team": "red"}, idle_timeout_s=3600)
        assert made.project == "shop: ünïcode"
        assert made.idle_timeout_ms == 3_600_000
        assert (await shop.create()).id == made.id, "the second finds the first one's"
        await eventually(lambda: _is(shop, "RUNNING"))

        seen: list[Status | ChangeOut] = []
        async with aclosing(shop.events()) as events:
            async for event in events:
                seen.append(event)
                if isinstance(event, Status) and event.status == "RUNNING":
                    await shop.pause()
                if isinstance(event, Status) and event.status == "PAUSED":
                    break
        changes = [one for one in seen if isinstance(one, ChangeOut) and one.to_state == "PAUSED"]
        assert [one.from_state for one in changes] == ["RUNNING"]

        written = await shop.files.write("notes/todo.txt", "wake up", mode=0o600)
        assert not written.inside, "it sleeps: the file waits for it"
        woken = await shop.wake()
        assert woken.status == "succeeded"
        assert woken.receipt
        assert woken.receipt.restored == 1
        async with shop.lease() as sandbox:
            assert isinstance(sandbox, e2b.AsyncSandbox)
            found = await sandbox.commands.run("find /home -name todo.txt | xargs cat")
            assert found.stdout == "wake up"
        assert await shop.files.read("notes/todo.txt") == b"wake up"
        assert "notes/todo.txt" in [one.path for one in await shop.files.list("notes/")]
        archive = b"".join([piece async for piece in shop.files.read_archive()])
        assert b"wake up" in archive
        await shop.files.delete("notes/todo.txt")
        with pytest.raises(SavedFileNotFoundError):
            await shop.files.read("notes/todo.txt")

        assert (await shop.touch("passive")).kind == "passive"
        assert (await shop.explain()).status == "RUNNING"
        assert (await shop.extend(1800)).expires_at
        assert (await keeper.summary()).total == 1
        assert [one.id async for one in keeper.list(states=["RUNNING"])] == [made.id]
        await _check_that_a_token_is_good_for_one_project(keeper, url)
        assert (await shop.kill()).status == "KILLED"
        assert (await shop.history())[0].to_state == "KILLED"


async def _is(project: AsyncProject, state: str) -> bool:
    return (await project.status()).status == state


async def _check_that_a_token_is_good_for_one_project(keeper: AsyncSandkeeper, url: str) -> None:
    token = await keeper.issue_client_token("shop: ünïcode", ttl_s=60)
    async with AsyncSandkeeper(url, token.token) as page:
        assert (await page.project("shop: ünïcode").status()).status == "RUNNING"
        with pytest.raises(ForbiddenError):
            await page.project("another").status()
        await keeper.revoke_client_token(token.id)
        with pytest.raises(UnauthenticatedError, match="revoked"):
            await page.project("shop: ünïcode").status()
    async with AsyncSandkeeper(url, "sk_wrong") as stranger:
        with pytest.raises(UnauthenticatedError) as refused:
            await stranger.summary()
    assert refused.value.fields["status"] == 401
    assert refused.value.fields["request_id"]
    assert not refused.value.retryable
    assert refused.value.hint


def test_the_sync_client_does_the_same_without_an_event_loop(keeper: Sandkeeper) -> None:
    name = f"sync-{secrets.token_hex(4)}"
    project = keeper.project(name)
    with pytest.raises(SandboxNotFoundError) as missing:
        project.status()
    assert missing.value.code == "sandbox_not_found"
    project.create()
    states: list[str] = []
    for event in project.events():
        if isinstance(event, Status):
            states.append(event.status)
            if event.status == "RUNNING":
                break
    assert states[-1] == "RUNNING"
    assert project.pause().status == "PAUSED"
    assert [wake.status for wake in project.waking()][-1] == "succeeded"
    with project.lease() as sandbox:
        assert isinstance(sandbox, e2b.Sandbox)
        assert sandbox.commands.run("echo here").stdout == "here\n"
    assert name in [one.project for one in keeper.list(search=name)]
    project.kill()


def test_a_lease_hands_over_one_native_sandbox_for_one_conversation(keeper: Sandkeeper) -> None:
    user = f"user-{secrets.token_hex(4)}"
    with keeper.lease(user, "task: with ünïcode") as sandbox:
        assert isinstance(sandbox, e2b.Sandbox)
        sandbox.files.write("/home/user/kept.txt", "still here")
        first = sandbox.sandbox_id
    with keeper.lease(user, "task: with ünïcode") as sandbox:
        assert sandbox.sandbox_id == first
        assert sandbox.files.read("/home/user/kept.txt") == "still here"
    with keeper.lease(user, "another") as sandbox:
        assert sandbox.sandbox_id != first
    mine = {one.task_id: one for one in keeper.sessions.list(user_id=user)}
    assert set(mine) == {"task: with ünïcode", "another"}
    moved = keeper.sessions.transfer(mine["another"].id, task_id="a third")
    assert moved.task_id == "a third"
    for session in keeper.sessions.list(user_id=user):
        keeper.sessions.close(session.id)
    with pytest.raises(SessionNotFoundError):
        keeper.sessions.show(moved.id)
    assert keeper.sessions.metrics().totals.total_created >= 2


@pytest.mark.parametrize(
    "asked",
    [
        {"user_id": ""},
        {"user_id": "u", "task_id": "x" * 10_000},
        {"user_id": "u", "kind": "submarine"},
        {"user_id": "u", "idle_timeout_s": -1},
    ],
)
def test_what_cannot_be_asked_is_refused_and_leaves_no_session(
    keeper: Sandkeeper, asked: dict[str, Any]
) -> None:
    before = keeper.sessions.metrics().totals.total_created
    with pytest.raises(InvalidRequestError), keeper.lease(**asked):
        pass
    assert keeper.sessions.metrics().totals.total_created == before


async def test_a_lease_is_renewed_while_its_holder_works_and_given_back_at_the_end(
    engine: Engine, tmp_path: Path
) -> None:
    running = RunningEngine(engine.url, engine.key)
    asked: list[str] = []
    async with AsyncSandkeeper.embedded(engine=running, data=tmp_path) as embedded:

        async def listening(scope: Scope, receive: Receive, send: Send) -> None:
            asked.append(f"{scope['method']} {scope['path']}")
            await embedded.asgi(scope, receive, send)

        keeper = AsyncSandkeeper(
            "http://keeper", embedded.operator_key, transport=InProcessTransport(listening)
        )
        async with keeper, keeper.sessions.hold("u", "t", lease_s=6, on_idle="kill") as held:
            renewal = f"POST /api/leases/{held.lease.id}"
            await eventually(lambda: asked.count(renewal) >= 2, within_s=60)
        assert f"DELETE /api/leases/{held.lease.id}" in asked
        await embedded.sessions.close(held.id)


@pytest.mark.parametrize(
    ("behind", "front"),
    [
        (AsyncSandkeeper, Sandkeeper),
        (AsyncProject, Project),
        (AsyncSessions, SyncSessions),
        (AsyncFiles, SyncFiles),
        (AsyncJobs, SyncJobs),
        (AsyncPools, SyncPools),
    ],
)
def test_every_method_of_the_async_client_is_there_for_callers_that_wait(
    behind: type, front: type
) -> None:
    for name, method in inspect.getmembers(behind, callable):
        if not name.startswith("_"):
            assert hasattr(front, name), f"{front.__name__} has no {name}"
            assert getattr(front, name).__doc__, f"{front.__name__}.{name} says nothing"
            assert method.__doc__


def test_errors_are_one_tree() -> None:
    import sandkeeper.client
    import sandkeeper.integrations.backend

    for module in (sandkeeper.integrations.backend, sandkeeper.client):
        for name in module.__all__:
            one = getattr(module, name)
            if isinstance(one, type) and issubclass(one, Exception):
                assert issubclass(one, SandkeeperError)
                assert one.is_abstract or one.code
                assert one.hint
