"""The names that `import sandkeeper` offers, and what importing it costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import sandkeeper
import sandkeeper.client
import sandkeeper.settings

IMPORTED = """
import sys
before = set(sys.modules)
import sandkeeper
print(*sorted(set(sys.modules) - before))
"""


def test_importing_the_package_imports_nothing_else() -> None:
    found = subprocess.run(
        [sys.executable, "-c", IMPORTED], capture_output=True, text=True, check=True
    )
    assert found.stdout.split() == ["sandkeeper"]


def test_every_public_name_is_the_one_of_its_module() -> None:
    assert sandkeeper.Sandkeeper is sandkeeper.client.Sandkeeper
    assert sandkeeper.AsyncSandkeeper is sandkeeper.client.AsyncSandkeeper
    assert sandkeeper.Settings is sandkeeper.settings.Settings
    assert set(sandkeeper.__all__) <= set(dir(sandkeeper))
    assert all(hasattr(sandkeeper, name) for name in sandkeeper.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = getattr(sandkeeper, "nothing")  # noqa: B009  The type checker refuses it otherwise.


SERVER = (
    "api.app",
    "api.handlers",
    "api.status",
    "app",
    "background",
    "engine",
    "services",
    "store",
)
HEAVY = ("alembic", "e2b", "fastapi", "pydantic_settings", "sqlalchemy", "starlette", "structlog")
CLIENT = """
from sandkeeper.client import AsyncSandkeeper, Sandkeeper
Sandkeeper("http://127.0.0.1:1", "key").close()
"""
LISTING = "import sandkeeper.cli.main, sandkeeper.cli.sandboxes.sandboxes"


@pytest.mark.parametrize("program", [CLIENT, LISTING], ids=["client", "ls"])
def test_a_client_imports_nothing_of_a_server(program: str) -> None:
    code = f"{program}\nimport sys\nprint(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported = set(found.stdout.split())
    assert not imported & {f"sandkeeper.{name}" for name in SERVER}
    assert not imported & set(HEAVY)
