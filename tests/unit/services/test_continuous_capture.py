"""Which sandboxes are captured when: soon after an act, while files change, and more rarely."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from sandkeeper.background import continuous_capture
from sandkeeper.background.checkpoint import CAPTURES_AT_ONCE, DueCaptures
from sandkeeper.background.continuous_capture import FAILING_AT_ONCE, PASS_S, ContinuousCapture
from sandkeeper.services.deps import Deps
from sandkeeper.services.files.folder_watches import FolderWatches
from sandkeeper.settings import Settings
from sandkeeper.telemetry import Metrics


@dataclass
class Clock:
    """The monotonic time that the schedule sees."""

    now: float = 1000.0

    def monotonic(self) -> float:
        return self.now


@dataclass
class ScriptedCaptures:
    """Answers with what a test says, and counts what runs at once."""

    answers: dict[str, str] = field(default_factory=dict)
    hangs: dict[str, asyncio.Event] = field(default_factory=dict)
    done: Counter[str] = field(default_factory=Counter)
    running: list[str] = field(default_factory=list)
    most: int = 0

    async def capture(self, sandbox_id: str, *, fresh_s: float) -> str:
        assert fresh_s == 8.0
        self.running.append(sandbox_id)
        self.most = max(self.most, len(self.running))
        await asyncio.sleep(0)
        if sandbox_id in self.hangs:
            await self.hangs[sandbox_id].wait()
        self.running.remove(sandbox_id)
        self.done[sandbox_id] += 1
        return self.answers.get(sandbox_id, "unchanged")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(continuous_capture, "time", clock)
    return clock


@pytest.fixture
def captures() -> ScriptedCaptures:
    return ScriptedCaptures()


@pytest.fixture
def capturing(clock: Clock, captures: ScriptedCaptures) -> ContinuousCapture:
    settings = Settings(capture_min_interval_s=10, files_checkpoint_s=300)
    deps = cast(Deps, _Deps(settings, Metrics()))
    return ContinuousCapture(deps, cast(DueCaptures, captures), FolderWatches(deps))


@dataclass
class _Deps:
    settings: Settings
    metrics: Metrics
    store: Any = None
    providers: Any = None
    clock: Any = time.time


async def run_for(capturing: ContinuousCapture, clock: Clock, seconds: float) -> None:
    """Run every due pass until so much time has passed."""
    ends = clock.now + seconds
    while True:
        again = (await capturing.run()).again_in_s
        if again is None or clock.now + again > ends:
            break
        clock.now += again
    clock.now = ends


async def run_pass(capturing: ContinuousCapture, clock: Clock) -> float | None:
    """Run one pass to its end while a capture hangs, and return when the next one follows."""
    passing = asyncio.create_task(capturing.run())
    await asyncio.sleep(0.01)
    clock.now += PASS_S
    return (await passing).again_in_s


async def test_an_act_is_captured_soon_and_a_change_again_after_the_interval(
    capturing: ContinuousCapture, clock: Clock, captures: ScriptedCaptures
) -> None:
    captures.answers["a"] = "captured"
    capturing.follow("a")
    assert (await capturing.run()).again_in_s == pytest.approx(1.0)
    await run_for(capturing, clock, 1.0)
    assert captures.done["a"] == 1
    await run_for(capturing, clock, 60.0)
    assert captures.done["a"] == 7


async def test_what_does_not_change_is_looked_at_ever_more_rarely(
    capturing: ContinuousCapture, clock: Clock, captures: ScriptedCaptures
) -> None:
    capturing.follow("a")
    await run_for(capturing, clock, 1 + 20 + 40 + 80 + 160)
    assert captures.done["a"] == 5
    await run_for(capturing, clock, 3000)
    assert captures.done["a"] == 15


async def test_many_acts_are_captured_no_more_often_than_allowed(
    capturing: ContinuousCapture, clock: Clock, captures: ScriptedCaptures
) -> None:
    for _ in range(100):
        capturing.follow("a")
        await run_for(capturing, clock, 1.0)
    assert 9 <= captures.done["a"] <= 11


async def test_what_sleeps_is_forgotten_and_what_is_held_is_tried_again(
    capturing: ContinuousCapture, clock: Clock, captures: ScriptedCaptures
) -> None:
    captures.answers = {"asleep": "skipped", "held": "busy"}
    capturing.follow("asleep")
    capturing.follow("held")
    await run_for(capturing, clock, 9.0)
    assert captures.done == {"asleep": 1, "held": 5}


async def test_many_sandboxes_in_use_share_the_budget_and_each_has_its_turn(
    capturing: ContinuousCapture, clock: Clock, captures: ScriptedCaptures
) -> None:
    for number in range(100):
        capturing.follow(f"s{number}")
    await run_for(capturing, clock, 1.0)
    assert set(captures.done.values()) == {1}
    assert len(captures.done) == 100
    assert captures.most == CAPTURES_AT_ONCE


async def test_what_fails_is_tried_ever_more_rarely_however_often_it_is_used(
    capturing: ContinuousCapture, clock: Clock, captures: ScriptedCaptures
) -> None:
    captures.answers["a"] = "failed"
    for _ in range(100):
        capturing.follow("a")
        await run_for(capturing, clock, 1.0)
    assert captures.done["a"] == 3, "after 1, 21 and 61 s"
    captures.answers["a"] = "captured"
    await run_for(capturing, clock, 200.0)
    before = captures.done["a"]
    await run_for(capturing, clock, 20.0)
    assert captures.done["a"] == before + 2


async def test_one_that_hangs_uses_one_place_and_is_not_started_twice(
    capturing: ContinuousCapture, clock: Clock, captures: ScriptedCaptures
) -> None:
    captures.hangs["hung"] = asyncio.Event()
    capturing.follow("hung")
    clock.now += 1.0
    assert await run_pass(capturing, clock) == 0.0, "a pass ends while one hangs"
    for number in range(20):
        capturing.follow("hung")
        capturing.follow(f"s{number}")
        clock.now += 20.0
    await run_pass(capturing, clock)
    assert captures.running.count("hung") == 1
    captures.hangs["hung"].set()
    await run_for(capturing, clock, 2.0)
    assert captures.done["hung"] == 2, "what was asked for in between is done after it"
    assert all(captures.done[f"s{number}"] for number in range(20))


async def test_those_that_failed_leave_places_to_the_others(
    capturing: ContinuousCapture, clock: Clock, captures: ScriptedCaptures
) -> None:
    failing = [f"f{number}" for number in range(10)]
    for name in failing:
        captures.answers[name] = "failed"
        capturing.follow(name)
    await run_for(capturing, clock, 1.0)
    captures.hangs = {name: asyncio.Event() for name in failing}
    clock.now += 60.0
    await run_pass(capturing, clock)
    assert len(captures.running) == FAILING_AT_ONCE
    capturing.follow("well")
    clock.now += 60.0
    await run_pass(capturing, clock)
    assert captures.done["well"]
    assert len(set(captures.running) & set(failing)) == FAILING_AT_ONCE
    await capturing.stop()
