"""The clock of the process follows the database's time, without its jumps, and nothing else."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from sandkeeper.services.clock import DatabaseTime, ProcessClock, find_ahead
from sandkeeper.store.replicas.repository import LastBeat

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


class Machine:
    """A machine's two clocks: one that may jump, and the time that passes."""

    def __init__(self) -> None:
        self.wall = NOON
        self.elapsed_s = 1000.0
        self.clock = ProcessClock(wall=lambda: self.wall, elapsed_s=lambda: self.elapsed_s)

    def wait(self, seconds: float) -> None:
        self.wall += timedelta(seconds=seconds)
        self.elapsed_s += seconds

    async def follow(
        self, theirs: datetime, *, answer_s: float = 0.0, ahead: timedelta | None = None
    ) -> None:
        async def read() -> DatabaseTime:
            self.wait(answer_s)
            return DatabaseTime(theirs, ahead)

        await self.clock.follow(read)


@pytest.mark.parametrize("jump", [timedelta(hours=1), timedelta(hours=-1)])
def test_a_jump_of_the_machines_clock_changes_nothing(jump: timedelta) -> None:
    machine = Machine()
    machine.wall += jump
    assert machine.clock() == NOON
    assert machine.clock.machine_ahead == jump
    machine.wait(5)
    assert machine.clock() == NOON + timedelta(seconds=5)


@pytest.mark.parametrize("off", [timedelta(hours=1), timedelta(hours=-1), timedelta(seconds=5)])
async def test_it_moves_to_the_databases_time(off: timedelta) -> None:
    machine = Machine()
    await machine.follow(NOON - off)
    assert machine.clock() == NOON - off
    assert machine.clock.machine_ahead == off


async def test_a_slow_answer_moves_it_only_as_far_as_is_certain() -> None:
    machine = Machine()
    await machine.follow(NOON, answer_s=8)
    assert machine.clock() == NOON + timedelta(seconds=8)
    await machine.follow(NOON + timedelta(seconds=13.5), answer_s=4)
    assert machine.clock() == NOON + timedelta(seconds=13.5)
    await machine.follow(NOON + timedelta(seconds=12), answer_s=0)
    assert machine.clock() == NOON + timedelta(seconds=12)


@pytest.mark.parametrize("jump", [timedelta(hours=1), timedelta(hours=-1), timedelta(seconds=5)])
async def test_it_does_not_follow_a_jump_of_the_databases_clock(jump: timedelta) -> None:
    machine = Machine()
    await machine.follow(NOON)
    machine.wait(10)
    await machine.follow(machine.wall + jump)
    machine.wait(10)
    await machine.follow(machine.wall + jump)
    assert (machine.clock(), machine.clock.database_ahead) == (machine.wall, jump)
    await machine.follow(machine.wall)
    assert (machine.clock(), machine.clock.database_ahead) == (machine.wall, timedelta())


async def test_it_follows_a_jump_to_the_right_time() -> None:
    """It started while the database was wrong; then database and machine agree."""
    machine = Machine()
    await machine.follow(NOON + timedelta(hours=1))
    assert machine.clock() == NOON + timedelta(hours=1)
    machine.wait(10)
    await machine.follow(machine.wall)
    assert (machine.clock(), machine.clock.database_ahead) == (machine.wall, timedelta())


async def test_it_takes_the_difference_from_an_older_replica() -> None:
    machine = Machine()
    hour = timedelta(hours=1)
    await machine.follow(NOON + hour, ahead=hour)
    assert (machine.clock(), machine.clock.database_ahead) == (NOON, hour)


def beat(*, started_s: float, age_s: float, ahead_s: float) -> LastBeat:
    ahead = timedelta(seconds=ahead_s)
    return LastBeat(
        1, NOON - ahead - timedelta(seconds=age_s), NOON - timedelta(seconds=started_s), ahead
    )


def test_the_oldest_living_replica_is_believed() -> None:
    dead = beat(started_s=900, age_s=60, ahead_s=-7)
    oldest = beat(started_s=800, age_s=1, ahead_s=3600)
    young = beat(started_s=100, age_s=1, ahead_s=0)
    beats = {"dead": dead, "oldest": oldest, "young": young}
    hour = timedelta(hours=1)
    assert find_ahead(beats, "new", NOON) == hour
    assert find_ahead(beats, "young", NOON) == hour
    assert find_ahead(beats, "oldest", NOON) is None
    assert find_ahead(beats, "dead", NOON) == hour, "it stood still with its machine"
    # They agree; if the database has jumped now, each notices by itself.
    assert find_ahead({"oldest": oldest, "own": oldest}, "own", NOON) is None
    assert find_ahead({"dead": dead}, "new", NOON) is None
