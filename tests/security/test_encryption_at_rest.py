"""Who copies the data folder gets no secret, and who loses the key is told so."""

from __future__ import annotations

import json
import secrets
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from e2b import Sandbox

from support import s3_bucket
from support.engine_process import Engine
from support.eventually import eventually_sync
from support.keeper_process import COMMAND, Keeper

SECRET = "s3cr3t-0f-th3-t3st"
NAME = "n4m3-0f-a-f1l3"


@pytest.fixture
def keeper(engine: Engine, tmp_path: Path) -> Iterator[Keeper]:
    """`sandkeeper serve` beside an engine: its data folder holds no sandbox's own disk."""
    running = Keeper(tmp_path / "data", engine=engine, newborn_grace_s=0)
    try:
        yield running
    finally:
        running.stop()


@pytest.fixture
def project() -> str:
    return f"project-{secrets.token_hex(4)}"


def find_text(folder: Path, text: str) -> list[Path]:
    """Return every file that holds the text, whole or in the encodings that we use."""
    return [
        path for path in folder.rglob("*") if path.is_file() and text.encode() in path.read_bytes()
    ]


def create(keeper: Keeper, project: str) -> str:
    with keeper.client() as client:
        made = client.put(f"/api/sandboxes/{project}", json={"env": {"TOKEN": SECRET}})
        assert made.is_success
        assert client.post("/api/webhooks/test").is_success
        instance_id: str = made.json()["instanceId"]
    return instance_id


def read_token(keeper: Keeper, instance_id: str) -> str:
    inside = Sandbox.connect(instance_id, **keeper.sdk_options())
    return inside.commands.run("echo $TOKEN").stdout.strip()


def delete(keeper: Keeper, project: str) -> None:
    with keeper.client() as client:
        client.delete(f"/api/sandboxes/{project}")


def test_a_copy_of_the_data_folder_has_no_secret_and_a_restart_still_knows_them(
    keeper: Keeper, project: str
) -> None:
    assert read_token(keeper.start(), create(keeper, project)) == SECRET
    webhook_secret = keeper.read_fact("webhook.secret")
    keeper.stop()
    assert find_text(keeper.data, SECRET) == []
    assert find_text(keeper.data, webhook_secret) == []
    keeper.start()
    keeper.run("encryption", "rotate")
    keeper.stop()
    keeper.start()
    assert keeper.read_fact("webhook.secret") == webhook_secret
    with keeper.client() as client:
        with keeper.engine_client() as provider:
            old = client.get(f"/api/sandboxes/{project}/status").json()["instanceId"]
            provider.delete(f"/sandboxes/{old}")
        client.post(f"/api/sandboxes/{project}/verify")
        woken = client.post(f"/api/sandboxes/{project}/wake", params={"wait": 60})
        assert woken.is_success, woken.text
        status = f"/api/sandboxes/{project}/status"
        eventually_sync(lambda: client.get(status).json()["status"] == "RUNNING", within_s=60)
        new = client.get(status).json()["instanceId"]
    assert new != old
    assert read_token(keeper, new) == SECRET
    delete(keeper, project)


@pytest.mark.parametrize("place", ["folder", "bucket"])
def test_who_copies_the_saved_files_reads_neither_contents_nor_names(
    engine: Engine, project: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3_bucket.serving() as bucket, ExitStack() as stack:
        keeper = Keeper(tmp_path / "data", engine=engine)
        if place == "bucket":
            for name, value in bucket.variables.items():
                monkeypatch.setenv(name, value)
            keeper = Keeper(tmp_path / "other", engine=engine, files_url="s3://kept/here")
        stack.callback(keeper.stop)
        path = f"/api/sandboxes/{project}/files/a-{NAME}.txt"
        content = f"{SECRET} in a file\n".encode() * 5000
        with keeper.start().client() as client:
            assert client.put(path, content=content).is_success
            assert client.get(path).content == content
        keeper.stop()
        assert find_text(keeper.data, SECRET) == []
        # The audit log in the database names the paths that were written; the store does not.
        assert find_text(keeper.data / "files", NAME) == []
        for text in (SECRET, NAME):
            assert not any(text.encode() in data for data in bucket.objects.values())
        assert bool(bucket.objects) is (place == "bucket")
        with keeper.start().client() as client:
            assert client.get(path).content == content


def test_a_keeper_without_its_key_says_so_and_changes_nothing(keeper: Keeper, project: str) -> None:
    create(keeper.start(), project)
    delete(keeper, project)
    keeper.stop()
    key = keeper.data / "encryption.key"
    text = key.read_text()
    key.unlink()
    refused = keeper.run("serve", "--data", str(keeper.data), "--port", "0", check=False)
    assert refused.returncode == 1
    assert refused.stderr.startswith("This database is encrypted with the master key ")
    assert "Traceback" not in refused.stderr
    assert not key.exists()
    diagnosis = keeper.run("doctor", check=False)
    assert "This database is encrypted with the master key" in diagnosis.stdout
    key.write_text(text)
    assert keeper.start().read_fact("webhook.secret")


def test_a_rotation_that_is_killed_at_any_moment_loses_no_key(keeper: Keeper) -> None:
    with keeper.start().client() as client:
        client.post("/api/webhooks/test")
    secret = keeper.read_fact("webhook.secret")
    keys = {keeper.data.joinpath("encryption.key").read_text()}
    began = time.monotonic()
    keeper.run("encryption", "rotate")
    took = time.monotonic() - began
    for part in range(8):
        rotation = subprocess.Popen(
            [*COMMAND, "encryption", "rotate"],
            env=keeper.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(took * (0.65 + part * 0.06))
        rotation.kill()
        rotation.wait(30)
        keys.add(keeper.data.joinpath("encryption.key").read_text())
        assert keeper.read_fact("webhook.secret") == secret
    keeper.run("encryption", "rotate")
    assert len(keeper.data.joinpath("encryption.key").read_text().split()) == 1
    assert keeper.read_fact("webhook.secret") == secret
    assert len(keys) > 1


def test_secrets_of_an_older_version_are_encrypted_after_the_start(
    keeper: Keeper, project: str
) -> None:
    create(keeper.start(), project)
    keeper.stop()
    with closing(sqlite3.connect(keeper.data / "sandkeeper.db")) as database, database:
        [(launch,)] = database.execute("SELECT launch FROM sandboxes").fetchall()
        plain = json.dumps(json.loads(launch) | {"env": {"TOKEN": SECRET}}, separators=(",", ":"))
        database.execute("UPDATE sandboxes SET env = NULL, launch = ?", (plain,))
        database.execute("UPDATE facts SET value = '\"0ld-webhook-secret\"' WHERE name LIKE 'web%'")
    assert find_text(keeper.data, SECRET)
    keeper.start()

    def count_plain() -> int:
        keys = json.loads(keeper.run("encryption", "status", "--json").stdout)
        plain = [one for one in keys if not one["masterKey"]]
        return sum(one["environments"] + one["secrets"] for one in plain)

    eventually_sync(lambda: count_plain() == 0, within_s=60)
    assert keeper.read_fact("webhook.secret") == "0ld-webhook-secret"
    with keeper.client() as client:
        instance_id = client.get(f"/api/sandboxes/{project}/status").json()["instanceId"]
    assert read_token(keeper, instance_id) == SECRET
    delete(keeper, project)
    keeper.stop()
    assert find_text(keeper.data, SECRET) == []
    assert find_text(keeper.data, "0ld-webhook-secret") == []


def test_a_server_on_postgres_needs_a_key_that_all_replicas_share(tmp_path: Path) -> None:
    given = ["--data", str(tmp_path / "data"), "--database", "postgresql://nowhere.invalid/none"]
    environment = Keeper(tmp_path / "data", files_url=(tmp_path / "files").as_uri()).environment
    refused = subprocess.run(
        [*COMMAND, "serve", "--port", "0", *given],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 1
    assert "SANDKEEPER_ENCRYPTION_KEY" in refused.stderr
