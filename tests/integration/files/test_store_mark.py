"""A file store is one keeper's, and the same for all of its replicas."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandkeeper.domain.errors import InvalidSettingsError
from sandkeeper.services.files.blobs import open_blobs
from sandkeeper.services.files.store_mark import check_file_store
from sandkeeper.store import open_store
from sandkeeper.testing.providers import SimulatedProvider
from support.databases import database_url, postgres_template, postgres_url, sqlite_template
from support.deps import make_deps

__all__ = ["database_url", "postgres_template", "postgres_url", "sqlite_template"]


async def test_every_start_finds_the_store_that_the_first_one_marked(
    database_url: str, tmp_path: Path
) -> None:
    async with open_store(database_url) as store:
        deps = make_deps(store, SimulatedProvider(keeper="mine"))
        shared = open_blobs("", tmp_path / "shared")
        await check_file_store(deps, shared)
        await check_file_store(deps, open_blobs((tmp_path / "shared").as_uri(), tmp_path))
        assert (await shared.read_mark() or "").startswith("mine ")

        with pytest.raises(InvalidSettingsError, match="belongs to the keeper mine"):
            await check_file_store(make_deps(store, SimulatedProvider(keeper="yours")), shared)

        own = open_blobs("", tmp_path / "own")
        if store.is_shared:
            with pytest.raises(InvalidSettingsError, match="not the one that the other replicas"):
                await check_file_store(deps, own)
        else:  # One process alone may begin with an empty store.
            await check_file_store(deps, own)
            await check_file_store(deps, own)
