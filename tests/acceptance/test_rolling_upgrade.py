"""Replicas of the old version go on while a newer one expands their schema."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path

from support.databases import named, run_statement
from support.engine_process import Engine
from support.eventually import eventually_sync
from support.keeper_process import Keeper

KEY = "sk_upgrade"
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
