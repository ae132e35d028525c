"""Two servers on one PostgreSQL, one of them on a machine whose clock is wrong."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest

from faultlab.clocks import MachineClock
from sandkeeper.domain.tasks import TaskName
from support.databases import named, run_statement
from support.engine_process import Engine
from support.eventually import eventually_sync
from support.keeper_process import Keeper

KEY = "sk_shared"
IDLE_S = 20

# No claim of ours is longer; one that was made by a wrong clock would be an hour longer.
CLAIM_MAX = timedelta(minutes=5)


class WrongKeeper(Keeper):
    """A keeper on a machine whose clock is wrong."""

    def __init__(self, data: Path, clock: MachineClock, *flags: str, **options: Any) -> None:
        super().__init__(data, *flags, **options)
        self._clock = clock

    @property
    def environment(self) -> dict[str, str]:
        return {**super().environment, **self._clock.environment}


@pytest.fixture(params=[3600, -10], ids=["an hour ahead", "ten seconds behind"])
def ahead_s(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def database(postgres_url: str) -> str:
    name = f"clocks_{threading.get_ident():x}_{datetime.now(UTC):%H%M%S%f}"
    asyncio.run(run_statement(postgres_url, f'CREATE DATABASE "{name}"'))
    return named(postgres_url, name)


@pytest.fixture
def replicas(
    engine: Engine, database: str, tmp_path: Path, ahead_s: int
) -> Iterator[tuple[Keeper, Keeper]]:
    """The right one and the wrong one."""
    clock = MachineClock(tmp_path / "clock")
    if not clock.can_move:
        pytest.skip("libfaketime is not installed")
    clock.move(ahead_s)
    options: dict[str, Any] = {
        "engine": engine,
        "operator_key": KEY,
        "newborn_grace_s": 0,
        "woken_grace_s": 0,
        "sweep_period_s": 1,
        "reconcile_period_s": 2,
        "files_url": (tmp_path / "files").as_uri(),
    }
    flags = ("--database", database)
    right = Keeper(tmp_path / "right", *flags, **options)
    wrong = WrongKeeper(tmp_path / "wrong", clock, *flags, **options)
    with ExitStack() as stack:
        for one in (right, wrong):
            stack.callback(one.stop)
        yield right.start(), wrong.start()


def find_sweep(api: httpx.Client) -> dict[str, Any]:
    tasks: list[dict[str, Any]] = api.get("/readyz").json()["tasks"]
    return next(task for task in tasks if task["name"] == TaskName.IDLE_SWEEP)


def read_skew_s(api: httpx.Client) -> float:
    """Return how far the machine's clock is ahead, as the metrics say."""
    found = re.search(
        r'clock_skew_seconds{clock="machine",region=""} (\S+)', api.get("/metrics").text
    )
    assert found is not None
    return float(found[1])


@contextmanager
def in_use(paths: list[str], *apis: httpx.Client) -> Iterator[None]:
    """Use every sandbox again and again, at each replica in turn."""
    is_over = threading.Event()

    def use() -> None:
        while not is_over.wait(1):
            for api in apis:
                for path in paths:
                    assert api.post(f"{path}/activity", json={}).status_code == 202

    user = threading.Thread(target=use)
    user.start()
    try:
        yield
    finally:
        is_over.set()
        user.join()


def list_claims(database: str) -> list[timedelta]:
    """Return for how much longer each claim lasts, by the database's own clock."""

    async def read() -> list[timedelta]:
        connection = await asyncpg.connect(database)
        try:
            rows = await connection.fetch(
                "SELECT claim_until - extract(epoch FROM now()) * 1000 AS left_ms "
                "FROM sandboxes WHERE claim_until IS NOT NULL"
            )
            return [timedelta(milliseconds=float(row["left_ms"])) for row in rows]
        finally:
            await connection.close()

    return asyncio.run(read())


@pytest.mark.timeout(300)
def test_a_replica_with_a_wrong_clock_harms_nothing_and_says_so(
    replicas: tuple[Keeper, Keeper], database: str, project: str, ahead_s: int
) -> None:
    right, wrong = replicas
    used = [f"/api/sandboxes/{project}-{number}" for number in range(3)]
    left = f"/api/sandboxes/{project}-left"
    policy = {"policy": {"idleTimeoutMs": IDLE_S * 1000}}
    with right.client(KEY) as one, wrong.client(KEY) as two:
        says = f"{abs(ahead_s)} s {'ahead of' if ahead_s > 0 else 'behind'}"
        eventually_sync(lambda: says in " ".join(two.get("/readyz").json()["reasons"]))
        assert one.get("/readyz").json()["clock"] == "ok"
        assert abs(read_skew_s(two) - ahead_s) < 2
        # Python's own waits for programs may fail under the library that moves the clock.
        eventually_sync(
            lambda: "MISS  keeper: clock_skew" in wrong.run("doctor", check=False).stdout
        )

        for path, api in zip([*used, left], (one, two, one, two), strict=True):
            assert api.put(path, json=policy).status_code == 201
        with in_use(used, one, two):
            eventually_sync(
                lambda: one.get(f"{left}/status").json()["status"] == "PAUSED", within_s=120
            )
            assert max(list_claims(database), default=timedelta()) < CLAIM_MAX
            swept = find_sweep(one)["runs"]
            eventually_sync(lambda: find_sweep(one)["runs"] > swept + 3, within_s=60)
            for path in used:
                assert one.get(f"{path}/status").json()["status"] == "RUNNING"
        assert find_sweep(two)["lastSuccessAt"] is None, "the wrong one does not sweep"

        for api in (two, one):
            paused = api.post(f"{used[0]}/pause")
            assert (paused.status_code, paused.json()["status"]) == (200, "PAUSED")
            for other in (one, two):
                assert other.post(f"{used[0]}/verify").json()["status"] == "PAUSED"
            woken = api.post(f"{used[0]}/wake?wait=60").json()
            assert (woken["status"], woken["method"], woken["attempt"]) == (
                "succeeded",
                "resume",
                1,
            )
            assert one.get(f"{used[0]}/status").json()["status"] == "RUNNING"
        states = {one["metadata"]["sandkeeper-owner"]: one["state"] for one in right.instances()}
        assert [states[path.rpartition("/")[2]] for path in used] == ["running"] * 3
