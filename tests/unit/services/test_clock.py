"""The clock of the process follows the database's time and nothing else."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from sandkeeper.services.clock import ProcessClock

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

    async def follow(self, theirs: datetime, *, answer_s: float = 0.0) -> None:
        async def read() -> datetime:
            self.wait(answer_s)
            return theirs

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
    await machine.follow(NOON + timedelta(seconds=20), answer_s=4)
    assert machine.clock() == NOON + timedelta(seconds=20)
    await machine.follow(NOON - timedelta(seconds=20), answer_s=4)
    assert machine.clock() == NOON - timedelta(seconds=16)
