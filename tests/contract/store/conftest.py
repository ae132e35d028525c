"""Fixtures: ``database_url`` (an empty database, on SQLite and PostgreSQL) and ``store`` on it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from sandkeeper.store import Store, open_store
from support.databases import (
    database_url,
    postgres_database,
    postgres_template,
    postgres_url,
    sqlite_template,
)
from support.deps import hold_test_key

__all__ = [
    "database_url",
    "postgres_database",
    "postgres_template",
    "postgres_url",
    "sqlite_template",
]


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[Store]:  # The fixture's own name.
    """The store on a database of its own."""
    async with open_store(database_url) as opened:
        hold_test_key(opened)
        yield opened
