"""Whole keepers in this process, over one engine: `keeping` opens as many as a test wants.

They share a database if the test says so, as replicas do, and nothing otherwise. What they made is
ended with them.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from sandkeeper.app import open_application
from sandkeeper.domain.breaker import Breaker
from sandkeeper.providers.e2b.endpoint import E2BConnection
from sandkeeper.providers.e2b.provider import E2BProvider
from sandkeeper.services.composition import Services
from sandkeeper.settings import Settings
from support.databases import postgres_database, postgres_template, postgres_url
from support.engine_process import Engine
from support.keeper_process import ENCRYPTION_KEY

__all__ = ["postgres_database", "postgres_template", "postgres_url"]

QUICK = {
    "session_template": "base",
    "session_check_timeout_s": 30,
    "session_cleanup_period_s": 3600,
    "pool_period_s": 3600,
    "creations_per_s": 50,
    "newborn_grace_s": 0,
    "woken_grace_s": 0,
}


@pytest.fixture
async def keeping(
    engine: Engine, tmp_path: Path
) -> AsyncIterator[Callable[..., Awaitable[Services]]]:
    """Opens a keeper with quick settings; a `database` makes it a replica of the others on it."""
    connection = E2BConnection(api_key=engine.key, api_url=engine.url, sandbox_url=engine.url)
    async with AsyncExitStack() as stack:

        async def make(**given: Any) -> Services:
            # Replicas on one database share the key that encrypts it.
            key = {"encryption_key": SecretStr(ENCRYPTION_KEY)} if "database" in given else {}
            settings = Settings(data=tmp_path / uuid.uuid4().hex, **{**QUICK, **key, **given})
            settings.data.mkdir()
            # The instances end after their keeper, which would otherwise be at work on some of
            # them: a claim that it holds when it closes lasts until its lease ends.
            keepers: list[str] = []
            stack.push_async_callback(_end_instances, connection, keepers)
            opened = await stack.enter_async_context(
                open_application(settings, {"default": connection})
            )
            found = await opened.services.deps.store.key_values.find("keeper.id")
            keepers.append(str(found))
            return opened.services

        yield make


@pytest.fixture
async def replicas(
    postgres_database: str, keeping: Callable[..., Awaitable[Services]], tmp_path: Path
) -> list[Services]:
    """Three on one database, which outlives them."""
    files = (tmp_path / "files").as_uri()
    return [await keeping(database=postgres_database, files_url=files) for _ in range(3)]


async def _end_instances(connection: E2BConnection, keepers: list[str]) -> None:
    """End every instance that these keepers made."""
    for keeper in keepers:
        provider = E2BProvider(connection, keeper=keeper, breaker=Breaker())
        for instance in (await provider.list_instances()).instances:
            await provider.kill(instance.instance_id)
        await provider.close()
