"""`exec`, `session` and `pool` on the command line."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from typing import Any

import httpx

from support.eventually import eventually_sync
from support.keeper_process import COMMAND, Keeper

Acquire = Callable[..., dict[str, Any]]


def test_exec_streams_and_passes_the_exit_code(
    sessions: Keeper, api: httpx.Client, acquire: Acquire
) -> None:
    project = acquire(onIdle="pause")["sandbox"]["project"]
    done = sessions.run(
        "exec", project, "--", "sh", "-c", "echo out; echo err >&2; exit 42", check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (42, "out\n", "err\n")
    api.post(f"/api/sandboxes/{project}/pause")
    woken = sessions.run("exec", project, "--cwd", "/tmp", "--", "pwd; head -c 3000000 /dev/zero")
    assert woken.stdout == "/tmp\n" + "\0" * 3_000_000
    late = sessions.run("exec", project, "--timeout", "1s", "--", "sleep 60", check=False)
    assert late.returncode == 124
    assert sessions.run("exec", "no-such-sandbox", "--", "true", check=False).returncode == 3


def test_a_silent_exec_keeps_its_sandbox_awake_and_ctrl_c_ends_the_command(
    sessions: Keeper, api: httpx.Client, acquire: Acquire
) -> None:
    project = acquire(onIdle="pause", idleTimeoutMs=1000, leaseMs=1000)["sandbox"]["project"]
    status = f"/api/sandboxes/{project}/status"
    with subprocess.Popen(
        [*COMMAND, "exec", project, "--", "echo begun; sleep 3; echo woke; sleep 600"],
        env=sessions.environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as silent:
        try:
            assert silent.stdout is not None
            assert [silent.stdout.readline() for _ in range(2)] == ["begun\n", "woke\n"]
            assert api.get(status).json()["status"] == "RUNNING"
            silent.send_signal(signal.SIGINT)
            assert silent.wait(60) == 130
        finally:
            silent.kill()
    eventually_sync(lambda: api.get(status).json()["status"] == "PAUSED", within_s=60)


def test_a_sessions_life_by_commands(sessions: Keeper, user: str) -> None:
    made = json.loads(sessions.run("session", "acquire", user, "one", "--json").stdout)
    assert (made["source"], made["key"]) == ("created", f"{user}:one")
    listed = sessions.run("session", "ls", "--user", user).stdout.split("\t")
    assert listed[:4] == [made["id"], f"{user}:one", "execution", "RUNNING"]
    moved = sessions.run("session", "transfer", made["id"], "two")
    assert moved.stdout == f"{made['id']}\t{user}:two\n"
    again = sessions.run("session", "acquire", user, "--conversation", "two")
    assert again.stdout.split("\t")[:3] == [made["id"], f"{user}:two", "reused"]
    lease = again.stdout.strip().split("\t")[-1]
    released = sessions.run("session", "release", made["id"], "--lease", lease)
    assert "closes in" in released.stdout
    sessions.run("session", "release", made["id"], "--close")
    assert sessions.run("session", "release", made["id"], check=False).returncode == 3


def test_a_pool_is_set_and_listed_by_commands(sessions: Keeper) -> None:
    name = "no-such-template"
    told = json.loads(sessions.run("pool", "set", name, "2", "--json").stdout)
    assert (told["target"], told["ready"]) == (2, 0)

    def failed() -> bool:
        items = json.loads(sessions.run("pool", "ls", "--json").stdout)
        return any(one["template"] == name and one["failures"] for one in items)

    eventually_sync(failed)
    assert name in sessions.run("pool", "ls").stdout
    sessions.run("pool", "set", name, "0")
    assert sessions.run("pool", "set", name, "5000", check=False).returncode == 2
