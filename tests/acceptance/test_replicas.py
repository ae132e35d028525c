"""Two servers on one PostgreSQL: what one does the other shows, and either may die."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
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
                reconcile_period_s=5,
                files_url=(tmp_path / "files").as_uri(),
            )
            stack.callback(keeper.stop)
            pair.append(keeper)
        yield pair[0].start(), pair[1].start()


def reconciles(replica: httpx.Client) -> bool:
    """Return whether this one compared the records with the provider last."""
    shown = replica.get("/metrics").text
    return bool(re.search(r"^sandkeeper_reconciler{.*} 1.0$", shown, re.MULTILINE))


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
        eventually_sync(lambda: sum(map(reconciles, (one, two))) == 1, within_s=60)
        first.kill9()
        eventually_sync(lambda: two.get(f"{idle}/status").json()["status"] == "PAUSED", within_s=90)
        assert two.delete(idle).json()["status"] == "KILLED"
        eventually_sync(lambda: reconciles(two), within_s=90)
