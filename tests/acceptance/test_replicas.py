"""Two servers on one PostgreSQL: what one does the other shows, and either may die."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.databases import named, run_statement
from support.engine_process import Engine
from support.eventually import eventually_sync
from support.keeper_process import Keeper


@pytest.fixture
async def shared_database(postgres_url: str) -> str:
    name = f"replicas_{uuid.uuid4().hex}"
    await run_statement(postgres_url, f'CREATE DATABASE "{name}"')
    return named(postgres_url, name)


@pytest.fixture
def replicas(
    engine: Engine, shared_database: str, tmp_path: Path
) -> Iterator[tuple[Keeper, Keeper]]:
    """Two on one empty database, with one operator's key."""
    with ExitStack() as stack:
        pair = []
        for name in ("first", "second"):
            keeper = Keeper(
                tmp_path / name,
                "--database",
                shared_database,
                engine=engine,
                operator_key="sk_shared",
                newborn_grace_s=0,
                woken_grace_s=0,
                files_url=(tmp_path / "files").as_uri(),
            )
            stack.callback(keeper.stop)
            pair.append(keeper)
        yield pair[0].start(), pair[1].start()


def test_replicas_share_one_truth_and_outlive_each_other(
    replicas: tuple[Keeper, Keeper], project: str
) -> None:
    first, second = replicas
    path = f"/api/sandboxes/{project}"
    with first.client("sk_shared") as one, second.client("sk_shared") as two:
        made = one.put(path, json={"policy": {"idleTimeoutMs": 600_000}}).json()
        seen = f"{path}/status"
        eventually_sync(lambda: two.get(seen).json()["instanceId"] == made["instanceId"])
        one.post(f"{path}/pause")
        eventually_sync(lambda: two.get(f"{path}/status").json()["status"] == "PAUSED")
        token = one.post("/api/client-tokens", json={"project": project}).json()["token"]
        with second.client(token) as client:
            assert client.get(f"{path}/status").status_code == 200
        two.delete(path)
        eventually_sync(lambda: one.get(f"{path}/status").json()["status"] == "KILLED")
        idle = f"{path}-idle"
        one.put(idle, json={"policy": {"idleTimeoutMs": 2000}})
        first.kill9()
        eventually_sync(lambda: two.get(f"{idle}/status").json()["status"] == "PAUSED", within_s=90)
        assert two.delete(idle).json()["status"] == "KILLED"
