"""Fixtures that every test may use.

engine      one running engine for all tests of a worker; make your own sandboxes in it
own_engine  an engine of the test's own, for tests that stop it or look at all that is in it
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from running import Engine

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    running = Engine(tmp_path_factory.mktemp("engine") / "data", "--webhook-retry-s", "0.2")
    try:
        yield running.start()
    finally:
        running.stop()


@pytest.fixture
def own_engine(tmp_path: Path) -> Iterator[Engine]:
    running = Engine(tmp_path / "engine", "--webhook-retry-s", "0.2")
    try:
        yield running.start()
    finally:
        running.stop()
