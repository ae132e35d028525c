"""A database or a replica that stands still stops nothing else, and all goes on afterwards."""

from __future__ import annotations

import itertools
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.engine_process import Engine
from support.eventually import eventually_sync
from support.keeper_process import Keeper
from support.own_postgres import OwnPostgres, serving_postgres

KEY = "sk_shared"
# The bounds of single requests, far above the promised ones: the machine may be busy.
READY_BOUND_S = 5
WRITE_BOUND_S = 30
TRIES = 200
USED = {"policy": {"idleTimeoutMs": 3_600_000}}


@pytest.fixture
def postgres() -> Iterator[OwnPostgres]:
    with serving_postgres() as server:
        yield server


@pytest.fixture
def start(
    engine: Engine, postgres: OwnPostgres, tmp_path: Path
) -> Iterator[Callable[[str], Keeper]]:
    """Starts replicas on one database."""
    with ExitStack() as stack:

        def start_one(name: str) -> Keeper:
            replica = Keeper(
                tmp_path / name,
                "--database",
                postgres.url,
                engine=engine,
                operator_key=KEY,
                newborn_grace_s=0,
                woken_grace_s=0,
                files_url=(tmp_path / "files").as_uri(),
            )
            stack.callback(replica.stop)
            return replica.start()

        yield start_one


@contextmanager
def stopped(replica: Keeper) -> Iterator[None]:
    replica.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        replica.signal(signal.SIGCONT)


def read_reasons(api: httpx.Client) -> str:
    """Return why the replica is not ready, or nothing."""
    answer = api.get("/readyz", timeout=READY_BOUND_S)
    assert answer.status_code in (200, 503)
    return " ".join(answer.json()["reasons"]) if answer.status_code == 503 else ""


def test_a_database_that_stands_still_is_said_and_stops_no_reads(
    postgres: OwnPostgres, start: Callable[[str], Keeper], project: str
) -> None:
    path = f"/api/sandboxes/{project}"
    with start("one").client(KEY) as api:
        assert api.put(path, json=USED).status_code == 201
        with postgres.standing_still():
            eventually_sync(lambda: "stalled" in read_reasons(api))
            for _ in range(3):
                assert api.get(f"{path}/status").json()["status"] == "RUNNING"
                assert api.post(f"{path}/activity", json={}).status_code == 202
                refused = api.post(f"{path}/pause", timeout=WRITE_BOUND_S)
                assert (refused.status_code, refused.json()["code"]) == (
                    503,
                    "store_unavailable",
                )
                assert "stalled" in read_reasons(api)
        eventually_sync(lambda: not read_reasons(api))
        paused = api.post(f"{path}/pause")
        assert (paused.status_code, paused.json()["status"]) == (200, "PAUSED"), paused.text
        assert api.post(f"{path}/wake?wait=60").json()["status"] == "succeeded"
        assert api.delete(path).status_code == 200


def test_a_database_that_starts_is_unavailable_and_no_error_of_ours(
    postgres: OwnPostgres, start: Callable[[str], Keeper], project: str
) -> None:
    path = f"/api/sandboxes/{project}"
    with start("one").client(KEY) as api:
        assert api.put(path, json=USED).status_code == 201
        with postgres.starting():
            eventually_sync(lambda: read_reasons(api))
            assert api.get(f"{path}/status").json()["status"] == "RUNNING"
            verbs = [
                api.post(f"{path}/pause"),
                api.put(f"{path}-2", json=USED),
                api.get("/api/sandboxes"),
            ]
            assert [answer.status_code for answer in verbs] == [503, 503, 503]
        eventually_sync(lambda: not read_reasons(api))
        # The first verbs may still meet a connection to the server that ended.
        eventually_sync(lambda: api.delete(path).json()["status"] == "KILLED")


def test_a_replica_that_stands_still_in_a_transaction_stops_no_other(
    postgres: OwnPostgres, start: Callable[[str], Keeper], project: str
) -> None:
    victim, *others = [start(name) for name in ("victim", "two", "three")]
    with ExitStack() as stack:
        apis = [stack.enter_context(one.client(KEY)) for one in others]
        asleep = f"/api/sandboxes/{project}-asleep"
        assert apis[0].put(asleep, json=USED).status_code == 201
        assert apis[0].post(f"{asleep}/pause").status_code == 200
        stack.enter_context(stopped_in_transaction(victim, postgres, project))
        with ThreadPoolExecutor(8) as pool:
            asked = [
                pool.submit(
                    api.put,
                    f"/api/sandboxes/{project}-{number}",
                    json=USED,
                    timeout=WRITE_BOUND_S,
                )
                for api, number in zip(itertools.cycle(apis), range(6))
            ]
            waking = pool.submit(apis[1].post, f"{asleep}/wake?wait=60", timeout=90)
        assert [one.result().status_code for one in asked] == [201] * 6
        assert waking.result().json()["status"] == "succeeded"


@contextmanager
def stopped_in_transaction(victim: Keeper, postgres: OwnPostgres, project: str) -> Iterator[None]:
    """Stop a busy replica until it is stopped inside a transaction; let it go on at the end."""
    path = f"/api/sandboxes/{project}-busy"
    query = "SELECT pid FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'"
    is_over = threading.Event()

    def write() -> None:
        with victim.client(KEY) as api:
            while not is_over.is_set():
                api.post(f"{path}/extend", json={"byMs": 60_000}, timeout=120)

    with victim.client(KEY) as api:
        assert api.put(path, json=USED).status_code == 201
    writing = [threading.Thread(target=write) for _ in range(4)]
    try:
        for thread in writing:
            thread.start()
        for _ in range(TRIES):
            with stopped(victim):
                if postgres.read(query):
                    yield
                    return
        raise AssertionError("it was never stopped inside a transaction")
    finally:
        is_over.set()
        for thread in writing:
            thread.join()


def test_a_caller_goes_on_when_the_replica_that_held_the_sandbox_is_found_dead(
    postgres: OwnPostgres, start: Callable[[str], Keeper], project: str
) -> None:
    holder, other = start("holder"), start("other")
    path = f"/api/sandboxes/{project}"

    def ask(verb: str) -> Any:
        with holder.client(KEY) as api:
            return api.post(f"{path}/{verb}", timeout=120)

    with other.client(KEY) as api, ThreadPoolExecutor(1) as pool:
        assert api.put(path, json=USED).status_code == 201
        for _ in range(TRIES):
            pausing = pool.submit(ask, "pause")
            while not pausing.done():
                with stopped(holder):
                    claimed = postgres.read("SELECT claim_holder FROM sandboxes")[0][0]
                    if claimed is not None:
                        answer = api.post(f"{path}/pause", timeout=WRITE_BOUND_S)
                        assert (answer.status_code, answer.json()["status"]) == (200, "PAUSED")
                        break
            else:
                assert ask("wake?wait=60").status_code == 200
                continue
            break
        else:
            raise AssertionError("it was never stopped while it held the sandbox")
        pausing.result()
        assert api.get(f"{path}/status").json()["status"] == "PAUSED"
