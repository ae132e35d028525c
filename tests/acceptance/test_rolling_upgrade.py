"""Replicas of the old version go on while a newer one expands their schema, and are replaced.

`make rolling` runs the second test with more replicas and streams, and prints what it counted.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from contextlib import ExitStack
from pathlib import Path

import asyncpg
import httpx
import pytest

from support.databases import named, run_statement
from support.engine_process import Engine
from support.eventually import eventually, eventually_sync
from support.keeper_process import Keeper
from support.rolling import Replicas, under_load

KEY = "sk_upgrade"
REPLICAS = int(os.environ.get("ROLLING_REPLICAS", "2"))
STREAMS = int(os.environ.get("ROLLING_STREAMS", "20"))
WRITES = int(os.environ.get("ROLLING_WRITES", "6"))
"""Writes before, between and after two replacements."""
EXPANSION = (
    "ALTER TABLE sandboxes ADD COLUMN of_the_next_version TEXT",
    "ALTER TABLE events ADD COLUMN of_the_next_version BIGINT NOT NULL DEFAULT 0",
    "ALTER TABLE wakes ADD COLUMN of_the_next_version BOOLEAN NOT NULL DEFAULT false",
    "CREATE INDEX ix_of_the_next_version ON sandboxes (of_the_next_version)",
    "UPDATE alembic_version SET version_num = '9999'",
)
"""What a migration of a newer version may do: it adds, and removes or renames nothing."""


def test_a_replica_that_runs_goes_on_while_a_newer_version_expands_the_schema(
    engine: Engine, postgres_url: str, project: str, tmp_path: Path
) -> None:
    name = f"upgrade_{uuid.uuid4().hex}"
    asyncio.run(run_statement(postgres_url, f'CREATE DATABASE "{name}"'))
    database = named(postgres_url, name)
    keeper = Keeper(
        tmp_path / "data",
        engine=engine,
        operator_key=KEY,
        database=database,
        files_url=(tmp_path / "files").as_uri(),
        newborn_grace_s=0,
    )
    path = f"/api/sandboxes/{project}"
    try:
        keeper.start()
        with keeper.client(KEY) as api:
            # Every statement is prepared on the schema of now, and used again on the newer one.
            assert api.put(path, json={"policy": {"idleTimeoutMs": 600_000}}).status_code == 201
            assert api.post(f"{path}/pause").is_success
            assert api.post(f"{path}/wake", params={"wait": "60"}).is_success
            for statement in EXPANSION:
                asyncio.run(run_statement(database, statement))
            assert api.post(f"{path}/pause").is_success
            assert api.get(f"{path}/status").json()["status"] == "PAUSED"
            assert api.post(f"{path}/wake", params={"wait": "60"}).is_success
            eventually_sync(lambda: api.get(f"{path}/status").json()["status"] == "RUNNING")
            assert api.put(f"{path}-second", json={}).status_code == 201
            assert api.get("/api/sandboxes", params={"search": project}).json()["items"]
            assert api.get("/readyz").json()["status"] == "ready"
            for one in (path, f"{path}-second"):
                assert api.delete(one).json()["status"] == "KILLED"
    finally:
        keeper.stop()


async def list_events(database: str) -> list[int]:
    """Return the number of every event in the log."""
    connection = await asyncpg.connect(database)
    try:
        return [row["seq"] for row in await connection.fetch("SELECT seq FROM events")]
    finally:
        await connection.close()


class Rollout:
    """Replicas on one database, which are replaced one after the other."""

    def __init__(self, engine: Engine, database: str, folder: Path, stack: ExitStack) -> None:
        self.database = database
        self.clients = Replicas(KEY)
        self._engine = engine
        self._folder = folder
        self._stack = stack
        self._running: list[Keeper] = []

    async def start(self) -> None:
        """Start one more and give it its share."""
        keeper = Keeper(
            self._folder / uuid.uuid4().hex,
            engine=self._engine,
            operator_key=KEY,
            database=self.database,
            files_url=(self._folder / "files").as_uri(),
            newborn_grace_s=0,
            creations_per_s=50,
        )
        self._stack.callback(keeper.stop)
        await asyncio.to_thread(keeper.start)
        self._running.append(keeper)
        self.clients.urls.append(keeper.url)

    async def replace_oldest(self) -> str:
        """Start a new one, then stop the oldest, of which the clients only see that it is gone."""
        await self.start()
        old = self._running.pop(0)
        assert await asyncio.to_thread(old.terminate) == 0
        return old.url


async def roll(rollout: Rollout, project: str) -> None:
    for _ in range(REPLICAS):
        await rollout.start()
    projects = [f"{project}-{number}" for number in range(3)]
    async with httpx.AsyncClient(headers=rollout.clients.headers, timeout=90) as api:
        for name in projects:
            url = f"{rollout.clients.next()}/api/sandboxes/{name}"
            assert (await api.put(url, json={"policy": {"idleTimeoutMs": None}})).is_success
    since = max(await list_events(rollout.database))
    async with under_load(rollout.clients, projects, streams=STREAMS, since=since) as load:

        async def go_on() -> None:
            wanted = load.done + WRITES
            await eventually(lambda: load.done >= wanted or load.failed, within_s=240)

        await eventually(lambda: all(one.url for one in load.readers), within_s=120)
        await go_on()
        for statement in EXPANSION[:-1]:
            await run_statement(rollout.database, statement)
        for _ in range(REPLICAS):
            gone = await rollout.replace_oldest()
            await go_on()
            assert load.count_at(gone) == 0
            rollout.clients.urls.remove(gone)
        for writer in load.writers:
            writer.stop()
        await eventually(lambda: all(one.is_idle for one in load.writers), within_s=120)
        written = {one for one in await list_events(rollout.database) if one > since}
        await eventually(lambda: all(one.seen >= written for one in load.readers), within_s=120)
        print(load.describe())
        assert load.failed == []
        assert all(one.opened > 1 for one in load.readers)
    async with httpx.AsyncClient(headers=rollout.clients.headers, timeout=90) as api:
        for name in projects:
            url = f"{rollout.clients.next()}/api/sandboxes/{name}"
            assert (await api.delete(url)).json()["status"] == "KILLED"


@pytest.mark.timeout(900)
def test_replacing_every_replica_under_load_loses_no_write_and_no_event(
    engine: Engine, postgres_url: str, project: str, tmp_path: Path
) -> None:
    name = f"rolling_{uuid.uuid4().hex}"
    asyncio.run(run_statement(postgres_url, f'CREATE DATABASE "{name}"'))
    with ExitStack() as stack:
        rollout = Rollout(engine, named(postgres_url, name), tmp_path, stack)
        asyncio.run(roll(rollout, project))
