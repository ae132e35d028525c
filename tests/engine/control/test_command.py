"""The commands `engine env`, `doctor` and `version`, and an engine run by an ordinary user."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2b import Sandbox, Volume

from support.engine_process import Engine
from support.isolation import not_on_gvisor
from support.user_engine import make_user_engine


def sandkeeper(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("E2B_")}
    return subprocess.run(
        [sys.executable, "-m", "sandkeeper.cli.main", *words],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )


def test_env_prints_what_the_sdks_need(engine: Engine) -> None:
    said = sandkeeper("engine", "env", "--data", str(engine.data), "--port", str(engine.port))
    lines = dict(line.removeprefix("export ").split("=", 1) for line in said.stdout.splitlines())
    assert lines == engine.env
    before = sandkeeper("engine", "--data", str(engine.data), "--port", str(engine.port), "env")
    assert before.stdout == said.stdout
    assert sandkeeper("engine", "env", "--data", str(engine.data)).stdout == said.stdout


def test_a_key_is_made_once_and_is_one_that_every_sdk_takes(tmp_path: Path) -> None:
    first = sandkeeper("engine", "env", "--data", str(tmp_path / "new"))
    again = sandkeeper("engine", "env", "--data", str(tmp_path / "new"))
    assert first.stdout == again.stdout
    key = first.stdout.rpartition("E2B_API_KEY=")[2].strip()
    assert key.startswith("e2b_")
    int(key.removeprefix("e2b_"), 16)


def test_doctor_says_what_the_machine_offers(tmp_path: Path) -> None:
    said = sandkeeper("doctor", "--json")
    findings = {one["name"]: one for one in map(json.loads, said.stdout.splitlines())}
    assert {"bubblewrap", "user namespaces", "overlay", "seccomp", "pause"} <= set(findings)
    assert said.returncode == (0 if all(one["ok"] for one in findings.values()) else 8)
    for one in findings.values():
        assert one["finding"]
        assert one["ok"] or one["fix"]


def test_a_taken_port_is_a_clear_failure(engine: Engine, tmp_path: Path) -> None:
    said = sandkeeper("engine", "--data", str(tmp_path / "d"), "--port", str(engine.port))
    assert said.returncode == 1
    assert "the engine could not start" in said.stderr
    assert "Traceback" not in said.stderr


def test_behind_a_proxy_an_upload_url_names_the_public_address(tmp_path: Path) -> None:
    proxied = Engine(tmp_path / "proxied", "--public-url", "https://engine.example/")
    try:
        with proxied.start().client() as client:
            made = client.post("/v3/templates", json={"name": "uploads"}).json()
            offered = client.get(f"/templates/{made['templateID']}/files/{'a' * 64}").json()
    finally:
        proxied.stop()
    assert offered["url"].startswith("https://engine.example/templates/")


@pytest.fixture
def user_engine() -> Iterator[Engine]:
    with make_user_engine() as engine:
        yield engine.start()


@not_on_gvisor("it needs root, which test_gvisor.py checks")
def test_an_ordinary_user_runs_an_engine(user_engine: Engine) -> None:
    options = user_engine.sdk_options()
    api = {"api_url": user_engine.url, "api_key": user_engine.key}
    volume = Volume.create("shared", **api)
    volume.write_file("seed.txt", "seed", api_url=user_engine.url)
    box = Sandbox.create(timeout=600, volume_mounts={"/mnt/shared": volume}, **options)
    box.commands.run("cat /mnt/shared/seed.txt > /mnt/shared/copy.txt")
    assert volume.read_file("copy.txt", api_url=user_engine.url) == "seed"
    assert box.commands.run("whoami").stdout == "user\n"
    assert box.commands.run("whoami", user="root").stdout == "root\n"
    box.files.write("kept.txt", "kept")
    box.pause()
    box = Sandbox.connect(box.sandbox_id, timeout=600, **options)
    user_engine.kill9()
    user_engine.start()
    assert box.files.read("kept.txt") == "kept"
    snapshot = box.create_snapshot()
    restored = Sandbox.create(snapshot.snapshot_id, timeout=60, **options)
    assert restored.files.read("kept.txt") == "kept"
    assert restored.kill()
    assert box.kill()
