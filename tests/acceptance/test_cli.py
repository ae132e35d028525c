"""The command line against a running keeper: what it prints, where, and how it exits."""

from __future__ import annotations

import json
import os
import pty
import re
import socket
import sqlite3
import subprocess
from pathlib import Path

import pytest

from support.eventually import eventually_sync
from support.keeper_process import COMMAND, Keeper


def test_a_sandboxes_life_by_commands(keeper: Keeper, project: str) -> None:
    made = keeper.run("create", project, "--idle", "10m", "--metadata", "team=a", "--json")
    status = json.loads(made.stdout)
    assert (status["project"], status["status"]) == (project, "RUNNING")
    assert status["idleTimeoutMs"] == 600_000
    assert keeper.run("ls", "--search", project, "-q").stdout == f"{project}\n"
    shown = json.loads(keeper.run("show", project[:-1], "--json").stdout)
    assert shown["id"] == status["id"], "a unique prefix is enough"
    keeper.run("touch", project, "--source", "test")
    explained = eventually_sync(
        lambda: "from test" in (told := keeper.run("explain", project).stdout) and told
    )
    assert "pause after 10 minutes without activity" in explained
    keeper.run("extend", project, "--by", "90m")
    assert keeper.run("pause", project, "--wait").stdout.startswith(f"{project}\tPAUSED")
    assert keeper.run("verify", project, "-q").stdout == f"{project}\n"
    assert keeper.run("kill", project, "--yes").stdout.startswith(f"{project}\tKILLED")
    moves = [line.split("\t")[2:4] for line in keeper.run("history", project).stdout.splitlines()]
    assert ["PAUSED", "KILLED"] in moves
    events = [
        json.loads(line)
        for line in keeper.run("events", project, "--json").stdout.split("\n")
        if line
    ]
    assert [one["seq"] for one in events] == sorted(one["seq"] for one in events)


def test_a_keeper_on_another_port_is_found_by_its_data_folder(keeper: Keeper) -> None:
    variables = {k: v for k, v in keeper.environment.items() if k != "SANDKEEPER_URL"}
    asked = [*COMMAND, "ls", "--json"]
    assert json.loads(subprocess.check_output(asked, env=variables)) is not None
    elsewhere = subprocess.run(
        asked, env={**variables, "SANDKEEPER_PORT": "1"}, capture_output=True, check=False
    )
    assert b"No keeper runs" in elsewhere.stderr, "a configured port is used"


def test_the_dashboard_opens_signed_in_from_a_terminal_and_a_pipe_gets_no_pass(
    keeper: Keeper,
) -> None:
    variables = {**keeper.environment, "BROWSER": "true"}
    piped = subprocess.check_output([*COMMAND, "open"], env=variables, text=True)
    assert piped == f"{keeper.dashboard_url}/\n"
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        subprocess.run([*COMMAND, "open"], env=variables, stdout=theirs, check=True)
        os.close(theirs)
        shown = terminal.read(4096).decode()
    address, _, token = shown.strip().partition("#code=")
    assert address == f"{keeper.dashboard_url}/"
    with keeper.browser() as browser:
        assert browser.post("/api/login", json={"code": token}).status_code == 200


def test_history_is_a_short_table_on_a_terminal(keeper: Keeper, project: str) -> None:
    keeper.run("create", project)
    keeper.run("pause", project, "--wait")
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        environment = {**keeper.environment, "COLUMNS": "100"}
        subprocess.run([*COMMAND, "history", project], env=environment, stdout=theirs, check=True)
        os.close(theirs)
        shown = terminal.read(65536).decode()
    paused = next(line for line in shown.splitlines() if "RUNNING → PAUSED" in line)
    assert re.match(r"\d\d:\d\d:\d\d  RUNNING → PAUSED +paused by hand +operator", paused)
    assert "sandbox." not in shown
    assert "…" not in shown


@pytest.mark.parametrize("flag", ["--port", "--engine-port"])
def test_a_port_that_is_taken_is_said_in_one_line(flag: str, tmp_path: Path) -> None:
    """Of the engine's port too: whatever answers there is not our engine."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ports = {"--port": "0", "--engine-port": "0", flag: port}
        given = [word for pair in ports.items() for word in pair]
        refused = subprocess.run(
            [*COMMAND, "up", "--data", str(tmp_path / "data"), *given],
            capture_output=True,
            text=True,
            check=False,
        )
    assert refused.returncode == 1
    assert refused.stdout == ""
    # `up` looks up who has the engine's port, which may be an engine of its own.
    by = rf" by \S+ \(pid {os.getpid()}\)" if flag == "--engine-port" else ""
    assert re.fullmatch(
        rf"Port {port} on 127\.0\.0\.1 cannot be used: Address already in use{by}\.\n"
        rf"  Pass another {flag}, or stop the process that listens there\.\n",
        refused.stderr,
    )


def test_a_server_on_postgres_needs_one_place_for_the_files_of_all_replicas(
    tmp_path: Path,
) -> None:
    given = ["--data", str(tmp_path / "data"), "--database", "postgresql://nowhere.invalid/none"]
    refused = subprocess.run(
        [*COMMAND, "serve", "--port", "0", *given], capture_output=True, text=True, check=False
    )
    assert refused.returncode == 1
    assert "SANDKEEPER_FILES_URL" in refused.stderr


def test_a_program_older_than_its_database_says_so_in_one_line(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'newer.db'}"
    subprocess.run([*COMMAND, "db", "upgrade", "--database", database], check=True)
    with sqlite3.connect(tmp_path / "newer.db") as opened:
        opened.execute("UPDATE alembic_version SET version_num = '9999'")
    given = ["--data", str(tmp_path / "data"), "--database", database]
    refused = subprocess.run(
        [*COMMAND, "serve", "--port", "0", *given], capture_output=True, text=True, check=False
    )
    assert refused.returncode == 1
    assert refused.stderr.startswith("A newer version of Sandkeeper has upgraded this database.")
    assert "Traceback" not in refused.stderr


def test_a_second_engine_on_the_same_data_is_refused_with_the_reason(keeper: Keeper) -> None:
    given = ["--data", str(keeper.data), "--port", "0", "--engine-port", "0"]
    refused = subprocess.run([*COMMAND, "up", *given], capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert f"another engine works in {keeper.data / 'engine'}" in refused.stderr


def test_exit_codes_say_what_went_wrong(keeper: Keeper, project: str) -> None:
    missing = keeper.run("show", "no-such-project", check=False)
    assert missing.returncode == 3
    assert missing.stdout == ""
    assert "no-such-project" in missing.stderr
    assert keeper.run("create", project, "--idle", "soon", check=False).returncode == 2
    keeper.run("create", project)
    keeper.run("pause", project)
    assert keeper.run("extend", project, check=False).returncode == 4
    assert keeper.run("kill", project, check=False).returncode == 2, "not confirmed"
    environment = {**keeper.environment, "SANDKEEPER_OPERATOR_KEY": "wrong"}
    refused = subprocess.run(
        [*COMMAND, "ls"], env=environment, capture_output=True, text=True, check=False
    )
    assert refused.returncode == 5
    unreachable = keeper.run("ls", "--url", "http://127.0.0.1:9", check=False)
    assert unreachable.returncode == 1
    assert "sandkeeper up" in unreachable.stderr


def test_a_name_that_is_wrong_stops_all_before_anything_is_done(
    keeper: Keeper, project: str
) -> None:
    for number in range(2):
        keeper.run("create", f"{project}-{number}")
    names = (f"{project}-0", f"{project}-9", f"{project}-1")
    for verb in (("kill", "--yes"), ("pause",)):
        refused = keeper.run(verb[0], *names, *verb[1:], "--json", check=False)
        assert (refused.returncode, refused.stdout) == (3, "")
        error = json.loads(refused.stderr)["error"]
        assert (error["code"], error["exitCode"]) == ("not_found", 3)
        assert "Nothing was done" in error["message"]
        assert f"{project}-0" in error["hint"], "a near name is offered"
    listed = json.loads(keeper.run("ls", "--search", project, "--json").stdout)
    assert {one["status"] for one in listed} == {"RUNNING"}
    wrong = keeper.run("extend", project + "-0", "--by", "soon", "--json", check=False)
    assert json.loads(wrong.stderr)["error"]["code"] == "usage"
    missing = keeper.run("show", "--json", check=False)
    assert (missing.returncode, json.loads(missing.stderr)["error"]["exitCode"]) == (2, 2)


def test_what_is_true_is_said_first_to_people(keeper: Keeper, project: str) -> None:
    keeper.run("create", project, "--port", "8000", "--start", "echo ready; sleep 600")
    status = json.loads(keeper.run("show", project, "--json").stdout)
    shown = keeper.run("show", project)
    first, *facts = shown.stdout.splitlines()
    assert first.startswith(f"{project}: {status['summary']['word']}, ")
    assert first.endswith(status["summary"]["sentence"])
    assert f"instance\t{status['instanceId']}" in facts
    assert len(facts) < 16
    assert keeper.run("--version").stdout.startswith("sandkeeper ")
    assert "Did you mean 'pause'?" in keeper.run("pasue", project, check=False).stderr
    assert keeper.run("ls", "--watch", check=False).returncode == 2, "a pipe has `events`"
    completing = {
        **keeper.environment,
        "_SANDKEEPER_COMPLETE": "complete_bash",
        "COMP_WORDS": f"sandkeeper show {project[:-2]}",
        "COMP_CWORD": "2",
    }
    line = "import sys; sys.argv[0] = 'sandkeeper'; from sandkeeper.cli.main import main; main()"
    asked = subprocess.run(
        [COMMAND[0], "-c", line], env=completing, capture_output=True, text=True, check=False
    )
    assert project in asked.stdout.split()


def test_a_log_is_followed(keeper: Keeper, project: str) -> None:
    loop = "for i in $(seq 1 1000); do echo line $i; sleep 0.2; done"
    keeper.run("create", project, "--port", "8000", "--start", loop)
    following = subprocess.Popen(
        [*COMMAND, "logs", project, "-f"],
        env=keeper.environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert following.stdout is not None
        seen = [following.stdout.readline().split()[-1] for _ in range(30)]
    finally:
        following.terminate()
        following.wait(30)
    first = int(seen[0])
    assert seen == [str(first + number) for number in range(30)]


def test_one_that_fails_among_many_is_partial(keeper: Keeper, project: str) -> None:
    for number in range(2):
        keeper.run("create", f"{project}-{number}")
    keeper.run("kill", f"{project}-1", "--yes")
    done = keeper.run("pause", f"{project}-0", f"{project}-1", check=False)
    assert done.returncode == 7
    assert done.stdout.startswith(f"{project}-0\tPAUSED")
    assert f"{project}-1" in done.stderr


def test_events_are_followed_as_they_happen(keeper: Keeper, project: str) -> None:
    keeper.run("create", project)
    following = subprocess.Popen(
        [*COMMAND, "events", project, "--follow", "--json"],
        env=keeper.environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert following.stdout is not None
        types = [json.loads(following.stdout.readline())["type"] for _ in range(2)]
        assert types == ["sandbox.created", "sandbox.state_changed"]
        keeper.run("pause", project)
        kept, paused = (json.loads(following.stdout.readline()) for _ in range(2))
        assert kept["type"] == "sandbox.files_captured", "files are kept before the pause"
        assert paused["toState"] == "PAUSED"
    finally:
        following.terminate()
        following.wait(30)


def test_maintenance_by_hand(keeper: Keeper, project: str) -> None:
    keeper.run("create", project)
    swept = json.loads(keeper.run("sweep", "--once", "--json").stdout)
    assert swept["ok"]
    assert swept["detail"].keys() >= {"checked", "paused", "failed"}
    found = json.loads(keeper.run("reconcile", "--json").stdout)
    assert found["counts"]["records"] >= 1
    with sqlite3.connect(keeper.data / "sandkeeper.db") as database:
        database.execute(
            "INSERT INTO leaks (instance_id, provider, kind, owner, metadata, first_seen_at,"
            " last_seen_at, sightings, removed_at, removed_by, reason) VALUES"
            " ('a-twin', 'e2b', 'leak', 'project:p', '{}', 1000, 2000, 2, 3000, 'replica-1', 'why')"
        )
    items = json.loads(keeper.run("leaks", "--json").stdout)["items"]
    [leak] = [one for one in items if one["instanceId"] == "a-twin"]
    assert leak["removedAt"].startswith("1970-01-01T00:00:03")
    assert (leak["removedBy"], leak["reason"]) == ("replica-1", "why")
    assert "replica-1" in keeper.run("leaks").stdout
    token = keeper.run("token", "issue", project, "--ttl", "1m").stdout.strip()
    assert token.count(".") == 2
    assert keeper.run("db", "current").returncode == 0
    assert keeper.run("webhook", "test").stdout == "unknown\n"
    shown = json.loads(keeper.run("config", "show", "--json").stdout)
    values = {row["name"]: (row["value"], row["source"]) for row in shown}
    assert values["data"] == (str(keeper.data), "environment")
    assert values["viewer_keys"][0] == ["set, not shown"]
    assert values["idle_timeout_s"] == (180.0, "default")
    document = json.loads(keeper.run("openapi").stdout)
    assert document["openapi"].startswith("3.1")
