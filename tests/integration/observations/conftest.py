"""Fixtures: ``keeper``, the services that take in observations, on a real database.

The provider is the simulated one, which passes the same contract suite as the engine: these tests
need events out of order, silent losses and a clock that can be moved.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from sandkeeper.store import open_store
from sandkeeper.testing.providers import SimulatedProvider
from support.databases import database_url, postgres_template, postgres_url, sqlite_template
from support.observing_keeper import ObservingKeeper

__all__ = ["database_url", "postgres_template", "postgres_url", "sqlite_template"]


@pytest.fixture
async def keeper(database_url: str) -> AsyncIterator[ObservingKeeper]:
    """The services on an empty database: once on SQLite, once on PostgreSQL."""
    async with open_store(database_url) as store:
        yield ObservingKeeper(store, SimulatedProvider())
