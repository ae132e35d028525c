"""Work inside a sandbox: what a look finds counts for a while, and not for ever."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sandkeeper.domain.decisions.idle import Keep, Pause, decide_idle, find_next_check_at
from sandkeeper.domain.owner import Owner
from sandkeeper.domain.policy import Policy
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import State
from sandkeeper.domain.texts.explain import explain
from sandkeeper.domain.work import RunningCommand, observe_work, parse_work, render_work

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


def test_a_running_command_puts_the_pause_off_by_one_threshold() -> None:
    sandbox = running(work=observe_work(None, [BUILD], None, now=at(61)))
    assert decide_idle(sandbox, now=at(61)) == Keep(at(121), "it is in use")
    assert find_next_check_at(sandbox) == at(121)
    assert isinstance(decide_idle(sandbox, now=at(121)), Pause)


def test_a_command_counts_from_its_first_sight_and_no_longer_than_the_policy_says() -> None:
    work = observe_work(None, [BUILD], None, now=at(61))
    for seconds in range(121, 3661, 60):
        work = observe_work(work, [BUILD], None, now=at(seconds))
        assert isinstance(decide_idle(running(work=work), now=at(seconds)), Keep)
    work = observe_work(work, [BUILD], None, now=at(3661))
    assert isinstance(decide_idle(running(work=work), now=at(3661)), Pause)
    told = explain(running(work=work), now=at(3661)).work
    assert told is not None
    assert "counts no longer" in told


def test_a_new_command_counts_beside_a_forgotten_one() -> None:
    old = observe_work(None, [BUILD], None, now=at(0))
    both = observe_work(old, [BUILD, RunningCommand(8, "make test")], None, now=at(5000))
    assert isinstance(decide_idle(running(work=both), now=at(5000)), Keep)
    told = explain(running(work=both), now=at(5003)).work
    assert told is not None
    assert told.startswith("`make test` (pid 8), seen 3 seconds ago, keeps it awake until")


def test_the_last_look_of_a_command_is_not_after_its_limit() -> None:
    work = observe_work(None, [BUILD], None, now=at(0))
    work = observe_work(work, [BUILD], None, now=at(3590))
    assert find_next_check_at(running(work=work)) == at(3600)


def test_a_busy_processor_is_work_and_an_idle_one_is_not() -> None:
    busy = observe_work(None, [], 55.0, now=at(61))
    assert isinstance(decide_idle(running(work=busy), now=at(61)), Keep)
    told = explain(running(work=busy), now=at(62)).work
    assert told is not None
    assert told.startswith("a busy processor (55 %)")
    still = observe_work(busy, [], 70.0, now=at(121))
    assert still.found[0].since == at(61)
    for pct in (None, 0.0, 9.9):
        quiet = observe_work(busy, [], pct, now=at(121))
        assert isinstance(decide_idle(running(work=quiet), now=at(121)), Pause)
        assert explain(running(work=quiet), now=at(121)).work is None


def test_findings_survive_the_store() -> None:
    work = observe_work(None, [BUILD], 30.0, now=at(61))
    assert parse_work(render_work(work)) == work
