"""Fixtures: `filing`, kept files over the shared engine, an SQLite file and a folder."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandkeeper.store import open_store
from support.databases import sqlite_template
from support.engine_process import Engine
from support.file_fixtures import Filing, connect

__all__ = ["sqlite_template"]


@pytest.fixture
async def filing(engine: Engine, sqlite_template: Path, tmp_path: Path) -> AsyncIterator[Filing]:
    path = tmp_path / "filing.db"
    path.write_bytes(sqlite_template.read_bytes())
    provider = connect(engine)
    async with open_store(f"sqlite:///{path}", migrate=False) as store:
        yield Filing.over(store, provider, tmp_path / "kept")
    page = await provider.list_instances()
    for instance in page.instances:
        await provider.kill(instance.instance_id)
    await provider.close()
