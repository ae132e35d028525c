"""Stopping, dying and coming back: nothing that was running is lost, nothing is left behind."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import subprocess
import threading
from pathlib import Path

from e2b import CommandHandle, Sandbox

from support.engine_process import Engine
from support.eventually import eventually_sync
from support.identity_provider import free_port
from support.keeper_process import COMMAND, Keeper


def test_ctrl_c_pauses_what_runs_and_the_list_is_still_there_without_a_keeper(
    tmp_path: Path,
) -> None:
    keeper = Keeper(tmp_path / "data")
    try:
        keeper.start()
        for name in ("shop", "blog"):
            keeper.run("create", name)
        assert keeper.interrupt() == 0, keeper.output
        assert "2 sandboxes are running: pausing" in keeper.output
        assert "Stopped. All sandboxes are paused, with their files." in keeper.output
        variables = {k: v for k, v in keeper.environment.items() if k != "SANDKEEPER_URL"}
        listed = subprocess.run(
            [*COMMAND, "ls"], env=variables, capture_output=True, text=True, check=True
        )
        assert listed.stderr == "No keeper runs: this is what was recorded last.\n"
        assert {tuple(line.split("\t")[:2]) for line in listed.stdout.splitlines()} == {
            ("shop", "PAUSED"),
            ("blog", "PAUSED"),
        }
    finally:
        keeper.stop()


def test_ctrl_c_stops_it_cleanly_and_leaves_the_sandboxes_if_asked_to(tmp_path: Path) -> None:
    keeper = Keeper(tmp_path / "data", "--on-exit", "leave")
    try:
        keeper.start()
        mode = (keeper.data / "operator.key").stat().st_mode
        assert stat.S_IMODE(mode) == 0o600
        with keeper.client() as api:
            made = api.put("/api/sandboxes/shop", json={}).json()
            with api.stream("GET", "/api/fleet/events") as stream:
                assert stream.status_code == 200
                assert keeper.interrupt() == 0, keeper.output
        assert "1 sandbox is still running (shop), and nothing pauses them" in keeper.output
        assert "Traceback" not in keeper.output
        assert keeper.key not in keeper.output
        keeper.start()
        with keeper.client() as api:
            status = api.post("/api/sandboxes/shop/verify").json()
            assert (status["status"], status["instanceId"]) == ("RUNNING", made["instanceId"])
    finally:
        keeper.stop()


def test_a_killed_keeper_restarts_and_continues_to_pause_idle_sandboxes(tmp_path: Path) -> None:
    keeper = Keeper(tmp_path / "data", newborn_grace_s=0, woken_grace_s=0, lease_s=15)
    try:
        keeper.start()
        with keeper.client() as api:
            body = {"policy": {"idleTimeoutMs": 4000}}
            made = api.put("/api/sandboxes/shop", json=body).json()
        keeper.kill9()
        keeper.start()
        with keeper.client() as api:
            path = "/api/sandboxes/shop/status"
            eventually_sync(lambda: api.get(path).json()["status"] == "PAUSED", within_s=60)
            assert api.get(path).json()["instanceId"] == made["instanceId"]
    finally:
        keeper.stop()


def test_up_starts_again_after_kill_9_while_clients_are_connected(tmp_path: Path) -> None:
    port = free_port()
    keeper = Keeper(tmp_path / "data", "--engine-port", str(port))
    stop = threading.Event()
    try:
        keeper.start()
        with keeper.client() as api:
            made = api.put("/api/sandboxes/shop", json={}).json()
        box = Sandbox.connect(made["instanceId"], timeout=600, **keeper.sdk_options())
        # As root, the engine takes on the identity of a file's owner to write it.
        box.files.write("kept.txt", "kept")
        command = box.commands.run("sleep 300", background=True, timeout=0)
        written = threading.Event()
        clients = [
            threading.Thread(target=consume, args=(command,)),
            threading.Thread(target=write_until, args=(stop, written, box)),
        ]
        for client in clients:
            client.start()
        assert written.wait(60)
        keeper.kill9()
        keeper.start()
        assert keeper.engine_url.endswith(f":{port}")
        with keeper.client() as api:
            status = api.post("/api/sandboxes/shop/verify").json()
            assert (status["status"], status["instanceId"]) == ("RUNNING", made["instanceId"])
        assert box.files.read("kept.txt") == "kept"
        assert command.pid in [process.pid for process in box.commands.list()]
        stop.set()
        for client in clients:
            client.join(60)
    finally:
        stop.set()
        keeper.stop()


def consume(command: CommandHandle) -> None:
    """Read a command's output until its connection breaks."""
    with contextlib.suppress(Exception):
        command.wait()


def write_until(stop: threading.Event, written: threading.Event, box: Sandbox) -> None:
    """Write files again and again, whether or not an engine responds."""
    while not stop.is_set():
        with contextlib.suppress(Exception):
            box.files.write("again.txt", "again")
            written.set()


def test_a_cron_puts_the_idle_to_sleep_where_no_keeper_runs(
    engine: Engine, tmp_path: Path, project: str
) -> None:
    quick = {"enforcer": "false", "newborn_grace_s": 0, "woken_grace_s": 0}
    keeper = Keeper(tmp_path / "data", engine=engine, **quick)
    try:
        keeper.start()
        with keeper.client() as api:
            body = {"policy": {"idleTimeoutMs": 1000}}
            made = api.put(f"/api/sandboxes/{project}", json=body).json()
    finally:
        keeper.stop()
    unreachable = {
        name: value for name, value in keeper.environment.items() if name != "SANDKEEPER_URL"
    }

    def sweep() -> bool:
        done = subprocess.run(
            [*COMMAND, "sweep", "--once", "--json"],
            env={**unreachable, "SANDKEEPER_PORT": "9"},
            capture_output=True,
            text=True,
            check=True,
        )
        return bool(json.loads(done.stdout)["detail"]["paused"] == 1)

    eventually_sync(sweep, within_s=60)
    with engine.client() as provider:
        found = provider.get(f"/sandboxes/{made['instanceId']}").json()
        assert found["state"] == "paused"
        provider.delete(f"/sandboxes/{made['instanceId']}")


def test_a_port_in_use_is_reported_in_one_line(keeper: Keeper, tmp_path: Path) -> None:
    port = keeper.url.rpartition(":")[2]
    done = keeper.run("up", "--data", str(tmp_path / "other"), "--port", port, check=False)
    assert done.returncode == 1
    assert f"Port {port}" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_program_on_the_engine_port_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        keeper = Keeper(tmp_path / "data")
        done = keeper.run("up", "--port", "0", "--engine-port", port, check=False)
    assert done.returncode == 1
    assert f"Port {port}" in done.stderr
    assert f"(pid {os.getpid()})" in done.stderr
