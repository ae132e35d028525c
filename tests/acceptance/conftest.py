"""One keeper for all acceptance tests of a worker, and one on PostgreSQL for those that ask for it.

keeper    `sandkeeper up` with quick periods and no grace: make your own projects in it
api       an HTTP client of it with the operator's key
project   a name that no other test has

`postgres_url` comes from `databases`. Tests marked `on_both_databases` run once on each.
"""

from __future__ import annotations

import asyncio
import secrets

import pytest

from support.databases import named, postgres_url, run_statement
from support.keeper_process import Keeper

__all__ = ["postgres_url"]

from collections.abc import Iterator

import httpx

QUICK = {
    "newborn_grace_s": 0,
    "woken_grace_s": 0,
    "reconcile_period_s": 2,
    "catch_up_period_s": 1,
    "creations_per_s": 50,
    "failed_logins_max": 100_000,
    "viewer_keys": "sk_a_viewer",
}


@pytest.fixture(scope="session")
def keeper(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Keeper]:
    folder = tmp_path_factory.mktemp("keeper")
    settings: dict[str, object] = dict(QUICK)
    if getattr(request, "param", "sqlite") == "postgresql":
        server, name = request.getfixturevalue("postgres_url"), f"k{secrets.token_hex(8)}"
        asyncio.run(run_statement(server, f'CREATE DATABASE "{name}"'))
        settings["database"] = named(server, name)
        settings["files_url"] = (folder / "files").as_uri()
    running = Keeper(folder / "data", **settings)
    try:
        yield running.start()
    finally:
        running.stop()


@pytest.fixture
def api(keeper: Keeper) -> Iterator[httpx.Client]:
    with keeper.client() as client:
        yield client


@pytest.fixture
def project() -> str:
    return f"project-{secrets.token_hex(4)}"
