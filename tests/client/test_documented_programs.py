"""The programs in docs/client.md and docs/backend.md, run as they are written there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from sandkeeper.client.in_process import InProcessTransport
from support.engine_process import Engine
from support.keeper_process import keeping

DOCS = Path(__file__).parents[2] / "docs"


def read_program(page: str, name: str) -> str:
    found = re.search(
        rf"<!-- program: {name} -->\n```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL
    )
    assert found, f"{page} has no program {name}"
    return found.group(1)


def run(arguments: list[str], folder: Path, environment: dict[str, str]) -> str:
    plain = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("E2B_", "SANDKEEPER_", "PYTEST_"))
    }
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**plain, **environment},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_programs_for_a_running_keeper(engine: Engine, tmp_path: Path) -> None:
    with keeping(tmp_path / "data", engine=engine) as keeper:
        for name, said in (
            ("lease", "42\n"),
            ("metrics", "1\n"),
            ("errors", "sandbox_not_found | "),
            ("code", "42\n"),
            ("jobs", "rebuilt: done\n"),
            ("pools", "base 1 None\n"),
        ):
            program = tmp_path / f"{name}.py"
            program.write_text(read_program("client.md", name))
            assert said in run([str(program)], tmp_path, keeper.environment)


def test_the_program_with_a_keeper_of_its_own(tmp_path: Path) -> None:
    program = tmp_path / "embedded.py"
    program.write_text(read_program("client.md", "embedded"))
    said = run([str(program)], tmp_path, {"SANDKEEPER_DATA": str(tmp_path / "data")})
    assert "running at http://" in said
    assert "succeeded" in said
    assert "lost: 0" in said


def test_the_program_of_the_backend(tmp_path: Path) -> None:
    program = tmp_path / "backend.py"
    program.write_text(read_program("backend.md", "backend"))
    said = run([str(program)], tmp_path, {"XDG_DATA_HOME": str(tmp_path)})
    assert said.splitlines()[:2] == ["hello", "the agent is ready"]
    assert "3 written" in said
    assert said.rstrip().endswith("print('written')")


async def test_the_application_with_the_router(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANDKEEPER_DATA", str(tmp_path))
    for name, value in engine.env.items():
        monkeypatch.setenv(name, value)
    module: dict[str, object] = {}
    # The name in which FastAPI looks up the annotations of the program.
    module["__name__"] = "documented_router"
    exec(compile(read_program("client.md", "router"), "router.py", "exec"), module)
    app = module["app"]
    async with (
        app.router.lifespan_context(app),  # type: ignore[attr-defined]
        httpx.AsyncClient(transport=InProcessTransport(app), base_url="http://host") as client,  # type: ignore[arg-type]
    ):
        path = "/sandboxes/api/sandboxes/project-of-ann"
        admin, ann, bob = ({"X-User": user} for user in ("admin", "ann", "bob"))
        assert (await client.put(path, headers=admin, json={})).status_code == 201
        assert (await client.get(f"{path}/status", headers=ann)).status_code == 200
        assert (await client.get(f"{path}/status", headers=bob)).status_code == 403
        assert (await client.get(f"{path}/status")).status_code == 401
        await client.delete(path, headers=admin)


def test_the_tests_with_the_plugins_fixtures(tmp_path: Path) -> None:
    (tmp_path / "test_host.py").write_text(read_program("client.md", "plugin"))
    said = run(["-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp=b"], tmp_path, {})
    assert "2 passed" in said
