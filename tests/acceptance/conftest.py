"""One keeper for all acceptance tests of a worker.

keeper    `sandkeeper up` with quick periods and no grace: make your own projects in it
api       an HTTP client of it with the operator's key
project   a name that no other test has

`postgres_url` comes from `databases`.
"""

from __future__ import annotations

import secrets

import pytest

from support.databases import postgres_url
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
def keeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keeper]:
    running = Keeper(tmp_path_factory.mktemp("keeper") / "data", **QUICK)
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
