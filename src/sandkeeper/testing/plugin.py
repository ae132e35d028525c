"""Fixtures for the tests of host applications: real sandboxes, no account and no network.

engine    a local engine for all tests of a worker (`url`, `key`, `env`, `sdk_options()`)
keeper    a sync client of a keeper that runs in this process over that engine
sandbox   a native `e2b.Sandbox` of the test's own, ended after it

Everything is imported when a fixture is first used, so that a test run without them pays nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from e2b import Sandbox

from sandkeeper.client import Sandkeeper
from sandkeeper.hosting.local_engine import RunningEngine


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEngine]:
    """Yield a local engine with nothing in it. What tests leave in it ends with it."""
    from sandkeeper.client.portal import Portal  # noqa: PLC0415
    from sandkeeper.hosting.local_engine import engine_context  # noqa: PLC0415

    portal = Portal()
    try:
        with portal.enter(engine_context(tmp_path_factory.mktemp("sandkeeper") / "engine")) as one:
            try:
                yield one
            finally:
                _end_all(one)
    finally:
        portal.close()


@pytest.fixture(scope="session")
def keeper(engine: RunningEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandkeeper]:
    """Yield a whole keeper in this process; use a project with a different name in each test."""
    from sandkeeper.client import Sandkeeper  # noqa: PLC0415
    from sandkeeper.hosting.local_engine import RunningEngine  # noqa: PLC0415

    data = tmp_path_factory.mktemp("sandkeeper") / "keeper"
    running = RunningEngine(engine.url, engine.key)
    with Sandkeeper.embedded(engine=running, data=data, creations_per_s=50) as one:
        yield one


@pytest.fixture
def sandbox(engine: RunningEngine) -> Iterator[Sandbox]:
    """Yield a running sandbox, created by E2B's own SDK."""
    from e2b import Sandbox  # noqa: PLC0415

    one = Sandbox.create(**engine.sdk_options())
    try:
        yield one
    finally:
        one.kill()


def _end_all(engine: RunningEngine) -> None:
    import httpx  # noqa: PLC0415

    with httpx.Client(base_url=engine.url, headers={"X-API-KEY": engine.key}, timeout=60) as client:
        while listed := client.get("/v2/sandboxes", params={"limit": 100}).json():
            for one in listed:
                client.delete(f"/sandboxes/{one['sandboxID']}")
