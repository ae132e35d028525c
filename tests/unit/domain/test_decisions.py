"""Wake, acquire, the breaker, the words and the error tree."""

from __future__ import annotations

import pytest

from sandkeeper.domain import errors
from sandkeeper.domain.breaker import Breaker, BreakerState
from sandkeeper.domain.decisions import acquire, wake
from sandkeeper.domain.decisions.acquire import RefuseAcquire
from sandkeeper.domain.decisions.generation import begin_generation
from sandkeeper.domain.errors import (
    InvalidTransitionError,
    ProviderUnavailableError,
    SandkeeperError,
)
from sandkeeper.domain.owner import Owner
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.sessions.session import Session, SessionKind
from sandkeeper.domain.states import KilledReason, State
from sandkeeper.domain.texts.presentation import (
    JOB_TEXTS,
    PRESENTATIONS,
    WAKING,
    Action,
)
from support.records import at, record


def test_a_wake_resumes_recreates_joins_or_has_nothing_to_do() -> None:
    assert wake.decide_wake(record(State.RUNNING)) == wake.AlreadyRunning()
    assert wake.decide_wake(record(State.STARTING)) == wake.JoinCreation()
    assert wake.decide_wake(record(State.PAUSED)) == wake.Resume("i")
    assert wake.decide_wake(record(State.UNKNOWN)) == wake.Resume("i")
    for state in (State.KILLED, State.EXPIRED, State.TERMINATED):
        ended = record(state, killed_reason=KilledReason.EXPIRED)
        assert wake.decide_wake(ended) == wake.Recreate("expired")


def test_memory_is_given_up_only_when_the_provider_said_so_or_after_minutes() -> None:
    refused = [
        ProviderUnavailableError(),
        ProviderUnavailableError(status=502),
        ProviderUnavailableError(status=503),
        errors.ProviderRateLimitedError(status=429),
        errors.ProviderAmbiguousError(status=502),
    ]
    unclear = [
        ProviderUnavailableError(timed_out=True),
        ProviderUnavailableError(status=504),
        errors.ProviderAmbiguousError(),
    ]
    assert wake.may_reboot(errors.ResumeFailedError(status=500), waited_s=0)
    for error in (*refused, *unclear):
        assert not wake.may_reboot(error, waited_s=wake.REBOOT_AFTER_S - 1)
    assert not any(wake.may_reboot(error, waited_s=3600) for error in refused)
    assert all(wake.may_reboot(error, waited_s=wake.REBOOT_AFTER_S) for error in unclear)


def test_a_living_sandbox_is_never_replaced() -> None:
    for state in (State.RUNNING, State.PAUSED, State.STARTING):
        with pytest.raises(InvalidTransitionError):
            begin_generation(record(state), reason="r", actor="a", now=at(1))
    change = begin_generation(
        record(State.KILLED, killed_reason=KilledReason.MANUAL),
        reason="manual",
        actor="u",
        now=at(1),
    )
    begun = change.sandbox
    assert (begun.state, begun.generation, begun.instance_id) == (State.STARTING, 2, None)
    assert (begun.last_end.recreated, begun.last_end.recreation_reason) == (True, "manual")


FAILED = {"killed_reason": KilledReason.CREATION_FAILED, "reason": "no such template"}


@pytest.mark.parametrize(
    ("sandbox", "is_shared", "decision"),
    [
        (None, False, acquire.Create()),
        (record(State.STARTING), False, acquire.AwaitCreation()),
        (record(State.RUNNING), False, acquire.Reuse()),
        (record(State.PAUSED), False, acquire.WakeExisting()),
        (record(State.UNKNOWN), False, acquire.WakeExisting()),
        (record(State.KILLED), False, acquire.Replace()),
        (record(State.TERMINATED), False, acquire.StartOver()),
        (record(State.EXPIRED), False, acquire.StartOver()),
        (record(State.EXPIRED), True, acquire.Replace()),
        (record(State.KILLED, state_since=at(6), **FAILED), False, RefuseAcquire(FAILED["reason"])),
        (record(State.KILLED, state_since=at(4), **FAILED), False, acquire.Replace()),
    ],
)
def test_acquire_decides_by_the_state_of_the_sandbox(
    sandbox: Sandbox | None, is_shared: bool, decision: acquire.AcquireDecision
) -> None:
    session = Session(
        id="se-1",
        kind=SessionKind.EXECUTION,
        user_id="ann",
        task_id="t",
        home="shared" if is_shared else "se-1",
        folder="",
        idle_timeout_s=60,
        created_at=at(0),
        last_used_at=at(0),
        idle_at=at(60),
    )
    assert acquire.decide_acquire(session, sandbox, began_at=at(5)) == decision


def test_no_session_is_opened_beyond_the_limit() -> None:
    assert acquire.find_limit_reached(sessions_open=2, sessions_max=2) is not None
    assert acquire.find_limit_reached(sessions_open=1, sessions_max=2) is None
    assert acquire.find_limit_reached(sessions_open=9, sessions_max=None) is None


def test_five_failures_in_a_row_open_the_breaker_and_one_probe_closes_it() -> None:
    breaker = Breaker()
    for _ in range(4):
        breaker.fail(at(0))
    breaker.succeed()
    for _ in range(5):
        assert breaker.admits(at(0))
        breaker.fail(at(0))
    assert breaker.state(at(29)) is BreakerState.OPEN
    with pytest.raises(ProviderUnavailableError) as refused:
        breaker.check(at(10))
    assert refused.value.retry_after_s == 20
    assert breaker.state(at(30)) is BreakerState.HALF_OPEN
    assert [breaker.admits(at(30)) for _ in range(5)] == [True, False, False, False, False]
    breaker.fail(at(31))
    assert not breaker.admits(at(60))
    assert breaker.admits(at(61))
    breaker.succeed()
    assert breaker.state(at(61)) is BreakerState.CLOSED


def test_a_probe_that_never_reports_gives_its_place_away() -> None:
    breaker = Breaker(failures_max=1, open_s=30)
    breaker.fail(at(0))
    assert breaker.admits(at(30))
    assert not breaker.admits(at(59))
    assert breaker.admits(at(60))


def test_a_wake_is_offered_where_something_sleeps_ended_or_is_out_of_sight() -> None:
    for state, words in PRESENTATIONS.items():
        is_up = state in (State.STARTING, State.RUNNING)
        assert (Action.WAKE in words.actions) != is_up
    assert PRESENTATIONS[State.UNKNOWN].actions == (Action.RETRY, Action.WAKE)
    assert PRESENTATIONS[State.RUNNING].actions == (Action.REFRESH, Action.COPY_URL, Action.OPEN)


def test_polling_is_slow_when_running_fast_when_waking_and_absent_when_asleep() -> None:
    polls = {state: words.poll_after_ms for state, words in PRESENTATIONS.items()}
    assert (polls[State.RUNNING], polls[State.STARTING], polls[State.PAUSED]) == (
        30_000,
        5_000,
        None,
    )
    assert (WAKING.label, WAKING.poll_after_ms) == ("Waking sandbox...", 2_000)


def test_the_words_of_a_job_are_the_promised_ones() -> None:
    assert JOB_TEXTS.paused_title == "Your preview is sleeping."
    assert JOB_TEXTS.resume == "Resume preview"
    assert JOB_TEXTS.resuming == "Resuming preview..."
    assert JOB_TEXTS.failed_title == "Resume failed"
    assert JOB_TEXTS.rebuild == "Rebuild"
    assert JOB_TEXTS.confirm_rebuild == "This will use 1 build credit. Continue?"


def tree(kind: type[SandkeeperError]) -> list[type[SandkeeperError]]:
    return [kind, *(one for child in kind.__subclasses__() for one in tree(child))]


def test_the_drawn_tree_is_the_real_one_and_every_error_says_what_to_do() -> None:
    ours = [kind for kind in tree(SandkeeperError) if kind.__module__.startswith(errors.__name__)]
    drawing = errors.__doc__ or ""
    for kind in ours:
        assert f" {kind.__name__} " in drawing.replace("\n", " \n ")
        assert kind.hint
        assert kind.__doc__
    codes = [kind.code for kind in errors.SandkeeperError.walk() if kind in ours]
    assert len(set(codes)) == len(codes)
    assert errors.ProviderRateLimitedError.code == "provider_rate_limited"
    assert errors.NotADesktopSessionError.code == "not_a_desktop_session"
    assert errors.SavedFileNotFoundError.code == "file_not_found"


def test_a_branch_of_the_error_tree_has_no_code_and_cannot_be_raised() -> None:
    branches = [kind for kind in tree(SandkeeperError) if kind.is_abstract]
    assert {errors.InputError, errors.AccessError, errors.StoreError} < set(branches)
    for kind in branches:
        assert not hasattr(kind, "code")
        with pytest.raises(TypeError, match="is abstract"):
            kind()


def test_an_error_carries_its_facts() -> None:
    error = errors.WrongStateError(state="PAUSED")
    assert str(error) == "The action is not allowed in the sandbox's current state. (state=PAUSED)"
    assert error.retry_after_s is None
    assert errors.ProviderRateLimitedError(retry_after_s=3).retry_after_s == 3.0


def test_an_owner_reads_back_from_its_text() -> None:
    for owner in (Owner.project("a:b"), Owner.parse("session:u:t"), Owner.parse("job:1")):
        assert Owner.parse(str(owner)) == owner
    assert Owner.parse("shop") == Owner.project("shop")
