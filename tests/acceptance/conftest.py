"""One keeper for all acceptance tests of a worker, and one on PostgreSQL for those that ask for it.

keeper    `sandkeeper up` with quick periods and no grace: make your own projects in it
api       an HTTP client of it with the operator's key
project   a name that no other test has

`postgres_url` comes from `databases`. Tests marked `on_both_databases` run once on each.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator

import httpx
import pytest

from support.databases import named, postgres_url, run_statement
from support.keeper_process import Keeper, keeping

__all__ = ["postgres_url"]

QUICK: dict[str, object] = {
    "newborn_grace_s": 0,
    "woken_grace_s": 0,
    "reconcile_period_s": 2,
    "catch_up_period_s": 1,
    "creations_per_s": 50,
    "failed_logins_max": 100_000,
    "viewer_keys": "sk_a_viewer",
}


@pytest.fixture(scope="session")
def sqlite_keeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keeper]:
    with keeping(tmp_path_factory.mktemp("keeper") / "data", **QUICK) as running:
        yield running


@pytest.fixture(scope="session")
def postgresql_keeper(
    postgres_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Keeper]:
    folder, name = tmp_path_factory.mktemp("keeper"), f"k{secrets.token_hex(8)}"
    asyncio.run(run_statement(postgres_url, f'CREATE DATABASE "{name}"'))
    place = {"database": named(postgres_url, name), "files_url": (folder / "files").as_uri()}
    with keeping(folder / "data", **QUICK, **place) as running:
        yield running


@pytest.fixture(scope="session")
def keeper(request: pytest.FixtureRequest) -> Keeper:
    """Return the keeper on the wanted database; both stay while tests change between them."""
    found: Keeper = request.getfixturevalue(f"{getattr(request, 'param', 'sqlite')}_keeper")
    return found


@pytest.fixture
def api(keeper: Keeper) -> Iterator[httpx.Client]:
    with keeper.client() as client:
        yield client


@pytest.fixture
def project() -> str:
    return f"project-{secrets.token_hex(4)}"
