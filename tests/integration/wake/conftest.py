"""Fixtures: `waking` makes replicas that wake real sandboxes over one database and one folder."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from sandkeeper.providers.base import Provider
from sandkeeper.store import open_store
from support.databases import sqlite_template
from support.engine_process import Engine
from support.wake_replica import Waker, connect

__all__ = ["sqlite_template"]


@pytest.fixture
def keeper_name() -> str:
    return f"wake-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def database(sqlite_template: Path, tmp_path: Path) -> str:
    path = tmp_path / "waking.db"
    path.write_bytes(sqlite_template.read_bytes())
    return f"sqlite:///{path}"


@pytest.fixture
async def waking(
    engine: Engine, keeper_name: str, database: str, tmp_path: Path
) -> AsyncIterator[Callable[..., Awaitable[Waker]]]:
    async with AsyncExitStack() as stack:
        provider = connect(engine.url, engine.key, keeper_name)
        stack.push_async_callback(provider.close)

        async def make(
            spoil: Callable[[Provider], Provider] = lambda it: it, **options: Any
        ) -> Waker:
            store = await stack.enter_async_context(open_store(database, migrate=False))
            waker = Waker.over(store, spoil(provider), tmp_path / "kept", **options)
            stack.push_async_callback(waker.wakes.close)
            stack.push_async_callback(waker.replica.creation.wait)
            return waker

        try:
            yield make
        finally:
            for instance in (await provider.list_instances()).instances:
                await provider.kill(instance.instance_id)
