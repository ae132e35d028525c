"""An existing fleet, made with the official SDK, is imported by the shipped commands."""

from __future__ import annotations

import json
import sqlite3
import subprocess
from pathlib import Path

import pytest
from e2b import Sandbox

from support.databases import on_both_databases
from support.keeper_process import COMMAND, Keeper


@on_both_databases
def test_a_fleet_is_imported_from_a_file_and_from_a_query(
    keeper: Keeper, project: str, tmp_path: Path
) -> None:
    options = keeper.sdk_options()
    running = Sandbox.create(template="base", timeout=600, **options)
    asleep = Sandbox.create(template="base", timeout=600, **options)
    single = Sandbox.create(template="base", timeout=600, **options)
    running.files.write("/home/user/note.txt", "made elsewhere")
    asleep.pause()
    fleet = tmp_path / "fleet.csv"
    fleet.write_text(
        "project,sandbox_id,port\n"
        f"{project}-a,{running.sandbox_id},\n{project}-b,inone,\n,{asleep.sandbox_id},8000\n"
    )

    def read(*arguments: str) -> list[tuple[str, str]]:
        done = keeper.run("import", *arguments, "--json", check=False)
        assert done.returncode in (0, 7), done.stderr
        return [(one["outcome"], one.get("status", "")) for one in json.loads(done.stdout)]

    failed = ("failed", "")
    assert read(str(fleet), "--dry-run") == [("would_adopt", "RUNNING"), failed, failed]
    assert read(str(fleet)) == [("adopted", "RUNNING"), failed, failed]

    with sqlite3.connect(tmp_path / "app.db") as application:
        application.execute("CREATE TABLE projects (name TEXT, e2b TEXT)")
        row = (f"{project}-c", asleep.sandbox_id)
        application.execute("INSERT INTO projects VALUES (?, ?)", row)
    query = "SELECT name AS project, e2b AS sandbox_id FROM projects"
    given = ("--database", f"sqlite:///{tmp_path / 'app.db'}", "--query", query)
    assert read(*given) == [("adopted", "PAUSED")]
    for outcome in ("adopted", "known"):
        adopted = keeper.run("adopt", f"{project}-d", single.sandbox_id)
        assert adopted.stdout.strip().endswith(f"{outcome}\tRUNNING")
    other = keeper.run("adopt", f"{project}-e", single.sandbox_id, check=False)
    assert f"It is the sandbox of project:{project}-d." in other.stderr

    with keeper.client() as api:
        assert api.post(f"/api/sandboxes/{project}-a/pause").json()["status"] == "PAUSED"
        for name in ("a", "c"):
            woken = api.post(f"/api/sandboxes/{project}-{name}/wake", params={"wait": 60})
            assert woken.json()["status"] == "succeeded"
    assert running.files.read("/home/user/note.txt") == "made elsewhere"


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("DROP TABLE projects", "readonly"),
        ("DELETE FROM projects RETURNING name AS project, e2b AS sandbox_id", "readonly"),
        ("SELEC", "syntax error"),
        ("SELECT name FROM projects", "There is no column project, sandbox_id"),
    ],
)
def test_a_query_of_an_import_changes_nothing_and_an_error_says_what_is_wrong(
    tmp_path: Path, query: str, said: str
) -> None:
    path = tmp_path / "app.db"
    with sqlite3.connect(path) as application:
        application.execute("CREATE TABLE projects (name TEXT, e2b TEXT)")
        application.execute("INSERT INTO projects VALUES ('one', 'inone')")
    given = ["--database", f"sqlite:///{path}", "--query", query]
    done = subprocess.run([*COMMAND, "import", *given], capture_output=True, text=True, check=False)
    assert done.returncode in (1, 2)
    assert said in done.stderr
    with sqlite3.connect(path) as application:
        assert application.execute("SELECT count(*) FROM projects").fetchone() == (1,)
