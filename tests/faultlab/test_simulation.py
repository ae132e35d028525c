"""Whatever goes wrong, in any order: nothing lost, nothing doubled, nothing healthy destroyed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from faultlab.machine import make_template, run_seed
from faultlab.simulation import Simulation
from sandkeeper.domain.states import State
from sandkeeper.store.database import Database
from support.virtual_time import virtual_time

EXAMPLES = int(os.environ.get("FAULTLAB_EXAMPLES", "25"))
SEED = int(os.environ.get("FAULTLAB_SEED", "0"))


@pytest.mark.timeout(0)
def test_no_order_of_faults_breaks_a_promise() -> None:
    run_seed(SEED, EXAMPLES)


def test_a_seed_tells_the_same_stories_in_every_process() -> None:
    command = [sys.executable, "-m", "faultlab.machine", "--seed", "263", "--examples", "3"]
    tests = str(Path(__file__).parents[1])
    running = [
        subprocess.Popen(
            command,
            env={**os.environ, "PYTHONPATH": tests, "PYTHONHASHSEED": hash_seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for hash_seed in ("1", "2")
    ]
    first, second = (process.communicate()[0] for process in running)
    assert len(first) == 65
    assert first == second


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_template(str(tmp_path_factory.mktemp("template")))


@pytest.fixture
def simulation(template: Path, tmp_path: Path) -> Iterator[Simulation]:
    """Two replicas on one database."""
    path = shutil.copy(template, tmp_path / "store.db")
    with virtual_time(0) as loop:
        simulation = Simulation(loop, Database(f"sqlite:///{path}"), replicas=2)
        simulation.request(0, "create", "p1", lambda one: simulation.create(one, "p1"))
        simulation.advance(1)
        yield simulation
        simulation.close()


def run_background(simulation: Simulation, seconds: int) -> None:
    for _ in range(seconds // 2):
        for number, _ in enumerate(simulation.replicas):
            for verb in ("check clocks", "recover", "take up", "sweep"):
                simulation.background(number, verb)
        simulation.advance(2)


def read_state(simulation: Simulation) -> State:
    [record] = simulation.run(simulation.read_all())
    return record.state


@pytest.mark.parametrize("ahead_s", [5400.0, 150.0, 9.0, -9.0, -150.0, -5400.0])
def test_a_jump_of_the_databases_clock_moves_no_replica(
    simulation: Simulation, ahead_s: float
) -> None:
    simulation.move_database_clock(ahead_s)
    run_background(simulation, 30)
    assert read_state(simulation) is State.RUNNING, "it is in use"
    simulation.crash(0, after=0)
    simulation.background(0, "sweep")
    simulation.restart()
    for replica in simulation.replicas:
        assert abs(replica.clock() - simulation.now()) < timedelta(seconds=1)
        assert "The database's clock" in " ".join(replica.services.clock_monitor.describe())
    run_background(simulation, 80)
    assert read_state(simulation) is State.PAUSED, "it has become idle"
    simulation.move_database_clock(0)
    run_background(simulation, 15)
    for replica in simulation.replicas:
        assert abs(replica.clock() - simulation.now()) < timedelta(seconds=1)
        assert not replica.services.clock_monitor.describe()
    simulation.check_healed()
    assert not simulation.broken


@pytest.mark.parametrize("ahead_s", [5400.0, -5400.0])
def test_a_claim_does_not_outlast_its_dead_holder_when_the_databases_clock_jumps(
    simulation: Simulation, ahead_s: float
) -> None:
    """No replica is left that knows the time from before: the database's new one counts."""
    simulation.crash(0, after=3)
    simulation.request(0, "pause", "p1", lambda one: simulation.pause(one, "p1"))
    simulation.crash(1, after=0)
    simulation.background(1, "sweep")
    simulation.move_database_clock(ahead_s)
    simulation.advance(1)
    [record] = simulation.run(simulation.read_all())
    assert record.claim is not None
    simulation.restart()
    run_background(simulation, 30)
    simulation.check_healed()
    assert read_state(simulation) is State.RUNNING, "no second clock says that it is idle"
    simulation.move_database_clock(0)
    run_background(simulation, 15)
    for replica in simulation.replicas:
        assert abs(replica.clock() - simulation.now()) < timedelta(seconds=1), "two clocks agree"
    assert read_state(simulation) is State.RUNNING, "it was in use by the wrong time"
    assert not simulation.broken
