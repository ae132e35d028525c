"""One keeper for the tests of sessions: short periods, so that idle comes soon.

sessions   `sandkeeper up`; its clean-up runs each second
api        an HTTP client of it with the operator's key
user       a user that no other test has
acquire    acquires a session of that user, and asserts that it worked
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from support.keeper_process import Keeper

QUICK = {
    "session_template": "base",
    "session_cleanup_period_s": 1,
    "session_check_timeout_s": 20,
    "pool_period_s": 1,
    "reconcile_period_s": 2,
    "catch_up_period_s": 1,
    "creations_per_s": 50,
}


@pytest.fixture(scope="session")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keeper]:
    running = Keeper(tmp_path_factory.mktemp("sessions") / "data", **QUICK)
    try:
        yield running.start()
    finally:
        running.stop()


@pytest.fixture
def api(sessions: Keeper) -> Iterator[httpx.Client]:
    with sessions.client() as client:
        yield client


@pytest.fixture
def user() -> str:
    return f"user-{secrets.token_hex(4)}"


@pytest.fixture
def acquire(api: httpx.Client, user: str) -> Callable[..., dict[str, Any]]:
    def ask(task: str | None = "task", **given: Any) -> dict[str, Any]:
        body = {"userId": user, **({} if task is None else {"taskId": task}), **given}
        answer = api.post("/api/sessions/acquire", json=body)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    return ask
