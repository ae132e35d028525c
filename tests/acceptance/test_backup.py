"""Backup, destroy everything, restore: what was there is there again, and nothing else happened."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import uuid
from pathlib import Path

import httpx
import pytest

from support.databases import named, run_statement
from support.engine_process import Engine
from support.eventually import eventually_sync
from support.keeper_process import Keeper

KEY = "sk_backup"
PAGE = "<h1>kept</h1>" * 100
LARGE = bytes(range(256)) * 40_000


def make_place(kind: str, request: pytest.FixtureRequest, folder: Path) -> dict[str, object]:
    """An empty database, and a place for files."""
    if kind == "sqlite":
        return {}
    server = request.getfixturevalue("postgres_url")
    name = f"backup_{uuid.uuid4().hex}"
    asyncio.run(run_statement(server, f'CREATE DATABASE "{name}"'))
    return {"database": named(server, name), "files_url": (folder / "files").as_uri()}


def make_keeper(folder: Path, engine: Engine, place: dict[str, object]) -> Keeper:
    return Keeper(
        folder / "data",
        engine=engine,
        operator_key=KEY,
        newborn_grace_s=0,
        reconcile_period_s=1,
        **place,
    )


def hash_files(api: httpx.Client, project: str) -> dict[str, str]:
    files = f"/api/sandboxes/{project}/files"
    paths = [item["path"] for item in api.get(files).json()["items"]]
    return {path: hashlib.sha256(api.get(f"{files}/{path}").content).hexdigest() for path in paths}


def find_instance(api: httpx.Client, project: str) -> str | None:
    found: str | None = api.get(f"/api/sandboxes/{project}/status").json().get("instanceId")
    return found


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_everything_is_back_after_a_restore_and_no_sandbox_was_ended_or_made_twice(
    kind: str, engine: Engine, project: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    before = make_keeper(tmp_path / "old", engine, make_place(kind, request, tmp_path / "old"))
    running, later = f"{project}-running", f"{project}-later"
    policy = {"policy": {"idleTimeoutMs": 600_000}}
    try:
        before.start()
        with before.client(KEY) as api:
            for one in (project, running):
                assert api.put(f"/api/sandboxes/{one}", json=policy).status_code == 201
            for path, content in (("index.html", PAGE.encode()), ("large.bin", LARGE)):
                put = api.put(f"/api/sandboxes/{project}/files/{path}", content=content)
                assert put.is_success, put.text
            assert api.post(f"/api/sandboxes/{project}/pause").is_success
            hashes = hash_files(api, project)
            before.run("backup", str(tmp_path / "backup"))
            refused = before.run("backup", str(tmp_path / "backup"), check=False)
            assert "holds a backup already" in refused.stderr
            assert api.put(f"/api/sandboxes/{later}", json=policy).status_code == 201
            records = {one: find_instance(api, one) for one in (project, running, later)}
        assert set(hashes) >= {"index.html", "large.bin"}
    finally:
        before.kill9()
    key = before.data / "encryption.key"
    kept_key = key.read_bytes() if key.exists() else None
    shutil.rmtree(tmp_path / "old")

    after = make_keeper(tmp_path / "new", engine, make_place(kind, request, tmp_path / "new"))
    after.data.mkdir(parents=True, mode=0o700)
    if kept_key is not None:
        missing = after.run("restore", str(tmp_path / "backup"), check=False)
        assert missing.returncode == 1
        assert "master key" in missing.stderr
        (after.data / "encryption.key").write_bytes(kept_key)
    after.run("restore", str(tmp_path / "backup"))
    again = after.run("restore", str(tmp_path / "backup"), check=False)
    assert "not empty" in again.stderr
    try:
        after.start()
        with after.client(KEY) as api:
            assert hash_files(api, project) == hashes
            assert api.post("/api/fleet/reconcile", json={}).is_success
            known = {one: find_instance(api, one) for one in (project, running)}
            assert known.items() < records.items()
            mine = [one for one in after.instances() if one["sandboxID"] in records.values()]
            states = {one["sandboxID"]: one["state"] for one in mine}
            assert states[records[project]] == "paused"
            assert states[records[running]] == states[records[later]] == "running"
            # The reconciler adopts `later` when it is a minute old. Now the sandboxes are lost,
            # too: a wake makes a new one with every file.
            with after.engine_client() as provider:
                for lost in (project, later):
                    provider.delete(f"/sandboxes/{records[lost]}")
            woken = api.post(f"/api/sandboxes/{project}/wake", params={"wait": "60"})
            assert woken.is_success, woken.text
            eventually_sync(
                lambda: api.get(f"/api/sandboxes/{project}/status").json()["status"] == "RUNNING",
                within_s=60,
            )
            assert find_instance(api, project) != records[project]
            assert hashes["large.bin"] in after.run("exec", project, "sha256sum large.bin").stdout
            for one in (project, running):
                api.delete(f"/api/sandboxes/{one}")
    finally:
        after.stop()
