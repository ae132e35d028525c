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
