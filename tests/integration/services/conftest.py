"""Fixtures: one replica (`keeping`) or several (`keeping_on`), over any provider, then closed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from sandkeeper.providers.base import Provider
from sandkeeper.services.clock import ProcessClock
from sandkeeper.store import open_store
from support.databases import (
    database_url,
    postgres_database,
    postgres_template,
    postgres_url,
    sqlite_template,
)
from support.deps import make_deps
from support.sweep_replica import Replica

__all__ = [
    "database_url",
    "postgres_database",
    "postgres_template",
    "postgres_url",
    "sqlite_template",
]


@pytest.fixture
async def keeping_on() -> AsyncIterator[Callable[..., Awaitable[Replica]]]:
    async with AsyncExitStack() as stack:

        async def make(
            url: str,
            provider: Provider,
            *,
            replica: str = "one",
            lease_s: float = 60,
            clock: ProcessClock | None = None,
            settings: dict[str, Any] | None = None,
            **overrides: Any,
        ) -> Replica:
            store = await stack.enter_async_context(open_store(url, migrate=False))
            chosen = {"lease_s": lease_s, "keep_files": False, **(settings or {})}
            deps = make_deps(store, provider, clock=clock, replica=replica, **chosen)
            made = Replica(deps, **overrides)
            stack.push_async_callback(made.verification.close)
            stack.push_async_callback(made.creation.wait)
            return made

        yield make


@pytest.fixture
async def keeping(
    sqlite_template: Path, tmp_path: Path, keeping_on: Callable[..., Awaitable[Replica]]
) -> Callable[..., Awaitable[Replica]]:
    """One replica on an SQLite file of its own."""
    path = tmp_path / "keeping.db"
    path.write_bytes(sqlite_template.read_bytes())

    async def make(provider: Provider, **options: Any) -> Replica:
        return await keeping_on(f"sqlite:///{path}", provider, **options)

    return make
