"""Work inside a sandbox: what a look finds counts for a while, and not for ever."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sandkeeper.domain.decisions.idle import (
    Keep,
    Pause,
    decide_idle,
    find_next_check_at,
    find_sleeps_at,
)
from sandkeeper.domain.owner import Owner
from sandkeeper.domain.policy import Policy
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import State
from sandkeeper.domain.texts.explain import explain
from sandkeeper.domain.work import RunningCommand, Work, observe_work, parse_work, render_work

T0 = datetime(2026, 1, 1, tzinfo=UTC)
BUILD = RunningCommand(7, "make build")
POLICY = Policy(
    idle_timeout_s=60, lifetime_s=None, newborn_grace_s=0, woken_grace_s=0, work_max_s=3600
)


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def running(**values: object) -> Sandbox:
    sandbox = Sandbox(
        id="s",
        owner=Owner.project("shop"),
        provider="p",
        created_at=T0,
        updated_at=T0,
        state_since=T0,
        state=State.RUNNING,
        policy=POLICY,
    )
    return sandbox.evolve(**values)


def observe(
    before: Work | None, commands: list[RunningCommand], cpu_pct: float | None, *, now: datetime
) -> Work:
    return observe_work(before, commands, cpu_pct, now=now, max_s=POLICY.work_max_s)


def test_a_running_command_puts_the_pause_off_by_one_threshold() -> None:
    sandbox = running(work=observe(None, [BUILD], None, now=at(61)))
    assert decide_idle(sandbox, now=at(61)) == Keep(at(121), "it is in use")
    assert find_next_check_at(sandbox) == at(121)
    assert isinstance(decide_idle(sandbox, now=at(121)), Pause)


def test_while_work_runs_the_next_thing_is_a_check_and_no_time_of_sleep_is_told() -> None:
    work = observe(None, [BUILD], None, now=at(61))
    sandbox = running(work=work)
    check = "check whether its work still runs, and pause if it does not"
    for now in (at(62), at(122)):
        told = explain(sandbox, now=now)
        assert (told.next_rule, told.next_at) == (check, at(121))
    assert find_sleeps_at(sandbox) is None
    used = sandbox.evolve(last_active_at=at(100))
    assert explain(used, now=at(110)).next_at == at(160)
    assert find_sleeps_at(used) is None
    at_the_limit = running(work=observe(work, [BUILD], None, now=at(3650)))
    assert find_sleeps_at(at_the_limit) == at(3661)
    ended = observe(work, [], None, now=at(121))
    assert find_sleeps_at(running(work=ended, last_active_at=at(100))) == at(160)


def test_the_idle_time_is_counted_from_the_last_check_that_found_work() -> None:
    work = observe(None, [BUILD], None, now=at(61))
    ended = observe(parse_work(render_work(work)), [], None, now=at(121))
    for known in (work, ended):
        decision = decide_idle(running(work=known), now=at(121))
        assert isinstance(decision, Pause)
        assert decision.idle_s == 60
        assert decision.reason == "idle for 60 s after its work ended, threshold 60 s"
    used = decide_idle(running(work=ended, last_active_at=at(130)), now=at(190))
    assert isinstance(used, Pause)
    assert used.reason == "idle for 60 s, threshold 60 s"
    before = {name: value for name, value in render_work(work).items() if name != "busy_at"}
    assert parse_work(before).busy_at is None, "as an earlier version wrote it"


def test_a_pause_at_the_limit_of_its_work_says_so() -> None:
    work = observe(observe(None, [BUILD], None, now=at(0)), [BUILD], None, now=at(3590))
    decision = decide_idle(running(work=work), now=at(3600))
    assert isinstance(decision, Pause)
    assert decision.reason == "the 3600 s for which its work counts are over"


def test_a_command_counts_from_its_first_sight_and_no_longer_than_the_policy_says() -> None:
    work = observe(None, [BUILD], None, now=at(61))
    for seconds in range(121, 3661, 60):
        work = observe(work, [BUILD], None, now=at(seconds))
        assert isinstance(decide_idle(running(work=work), now=at(seconds)), Keep)
    work = observe(work, [BUILD], None, now=at(3661))
    assert isinstance(decide_idle(running(work=work), now=at(3661)), Pause)
    told = explain(running(work=work), now=at(3661)).work
    assert told is not None
    assert "counts no longer" in told


def test_a_new_command_counts_beside_a_forgotten_one() -> None:
    old = observe(None, [BUILD], None, now=at(0))
    both = observe(old, [BUILD, RunningCommand(8, "make test")], None, now=at(5000))
    assert isinstance(decide_idle(running(work=both), now=at(5000)), Keep)
    told = explain(running(work=both), now=at(5003)).work
    assert told is not None
    assert told.startswith("`make test` (pid 8), seen 3 seconds ago, keeps it awake until")


def test_the_last_look_of_a_command_is_not_after_its_limit() -> None:
    work = observe(None, [BUILD], None, now=at(0))
    work = observe(work, [BUILD], None, now=at(3590))
    assert find_next_check_at(running(work=work)) == at(3600)


def test_a_busy_processor_is_work_and_an_idle_one_is_not() -> None:
    busy = observe(None, [], 55.0, now=at(61))
    assert isinstance(decide_idle(running(work=busy), now=at(61)), Keep)
    told = explain(running(work=busy), now=at(62)).work
    assert told is not None
    assert told.startswith("a busy processor (55 %)")
    still = observe(busy, [], 70.0, now=at(121))
    assert still.found[0].since == at(61)
    for pct in (None, 0.0, 9.9):
        quiet = observe(busy, [], pct, now=at(121))
        assert isinstance(decide_idle(running(work=quiet), now=at(121)), Pause)
        assert explain(running(work=quiet), now=at(121)).work is None


def test_findings_survive_the_store() -> None:
    work = observe(None, [BUILD], 30.0, now=at(61))
    assert parse_work(render_work(work)) == work
