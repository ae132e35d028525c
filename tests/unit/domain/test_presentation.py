"""The words for every combination of state, cause, app, wake and provider: none is untrue."""

from __future__ import annotations

from itertools import product

import pytest

from sandkeeper.domain.owner import PROVIDER_ACTOR, SCHEDULER_ACTOR
from sandkeeper.domain.policy import Launch, Policy
from sandkeeper.domain.sandbox import Claim, ClaimKind, Sandbox
from sandkeeper.domain.states import KilledReason, State
from sandkeeper.domain.texts.console import Operation, summarize
from sandkeeper.domain.texts.presentation import (
    WAKING,
    Action,
    AppHealth,
    Badge,
    Cause,
    Truth,
    find_truth,
    format_duration,
    word_empty_log,
    word_truth,
)
from support.records import T0, at, record

TABLE = """
RUNNING|Live preview ready|Sandboxes stay active for 1 hour with smart auto-pause.|green
STARTING|Preparing sandbox…|Setting up your development environment…|blue
PAUSED|Sandbox asleep|Auto-paused after 3 minutes of inactivity. Wake it to continue.|amber
KILLED|Sandbox not found|Sandbox was terminated. Wake to create a new one with your files.|red
EXPIRED|Sandbox expired|Reached 1-hour lifetime limit. Wake to create a fresh sandbox.|orange
TERMINATED|Sandbox stopped|Sandbox was shut down. Wake to restart with your project files.|gray
UNKNOWN|Connection issue|Cannot verify sandbox status. Check your connection and try again.|yellow
"""

COMBINATIONS = [
    Truth(
        state=state,
        cause=cause,
        app=app,
        is_waking=is_waking,
        exit_code=1 if app is AppHealth.CRASHED else None,
        provider_down_since=T0 if is_down else None,
    )
    for state, cause, app, is_waking, is_down in product(
        State, Cause, AppHealth, (False, True), (False, True)
    )
]


def test_the_promised_words_are_shown_where_they_are_true() -> None:
    rows = [line.split("|") for line in TABLE.strip().splitlines()]
    assert {State(row[0]) for row in rows} == set(State)
    for name, label, caption, badge in rows:
        cause = Cause.OUTSIDE if name == "KILLED" else Cause.AUTOMATIC
        words = word_truth(Truth(State(name), cause, app=AppHealth.ANSWERS))
        assert (words.label, words.caption, words.badge.value) == (label, caption, badge)


@pytest.mark.parametrize("truth", COMBINATIONS, ids=str)
def test_no_combination_says_something_untrue(truth: Truth) -> None:
    words = word_truth(truth)
    text = f"{words.label} {words.caption}"
    is_up = truth.state is State.RUNNING and truth.provider_down_since is None
    is_seen = is_up and not truth.is_waking
    assert (words.badge is Badge.GREEN) == (
        is_seen and truth.app in (AppHealth.ANSWERS, AppHealth.NONE)
    )
    assert ("Live preview ready" in text) == (is_seen and truth.app is AppHealth.ANSWERS)
    assert ("crashed" in text) == (is_seen and truth.app is AppHealth.CRASHED)
    assert (Action.RESTART in words.actions) == (
        is_seen and truth.app in (AppHealth.CRASHED, AppHealth.ENDED, AppHealth.SILENT)
    )
    if "Auto-paused" in text:
        assert truth.cause is Cause.AUTOMATIC
    if "on request" in text:
        assert truth.cause is Cause.ON_REQUEST
    if "Sandbox not found" in text:
        assert truth.cause not in (Cause.ON_REQUEST, Cause.NOT_CREATED)
    if truth.provider_down_since is not None:
        assert "has not answered since 03:04 UTC" in text
        assert "connection" not in text
    assert "corrupt" not in text
    assert words.label
    assert words.caption
    assert (words == WAKING) == (truth.is_waking and truth.provider_down_since is None)


@pytest.mark.parametrize(
    ("sandbox", "cause", "label", "caption"),
    [
        (
            record(State.PAUSED, actor=SCHEDULER_ACTOR, paused_by_scheduler_at=T0),
            Cause.AUTOMATIC,
            "Sandbox asleep",
            "Auto-paused after 3 minutes of inactivity. Wake it to continue.",
        ),
        (
            record(State.PAUSED, actor="operator"),
            Cause.ON_REQUEST,
            "Sandbox asleep",
            "Paused on request. Wake it to continue.",
        ),
        (
            record(State.PAUSED, actor=PROVIDER_ACTOR),
            Cause.OUTSIDE,
            "Sandbox asleep",
            "Paused at the provider. Wake it to continue.",
        ),
        (
            record(State.KILLED, actor="operator", killed_reason=KilledReason.MANUAL),
            Cause.ON_REQUEST,
            "Sandbox killed",
            "Killed on request. Wake to create a new one with your files.",
        ),
        (
            record(
                State.KILLED,
                actor="operator",
                killed_reason=KilledReason.MANUAL,
                paused_by_scheduler_at=T0,
            ),
            Cause.ON_REQUEST,
            "Sandbox killed",
            "Killed on request. Wake to create a new one with your files.",
        ),
        (
            record(State.KILLED, actor=PROVIDER_ACTOR, killed_reason=KilledReason.NOT_FOUND),
            Cause.NOT_FOUND,
            "Sandbox not found",
            "Sandbox was terminated. Wake to create a new one with your files.",
        ),
        (
            record(State.KILLED, killed_reason=KilledReason.CREATION_FAILED),
            Cause.NOT_CREATED,
            "Sandbox not created",
            "Its creation failed. Wake to try again.",
        ),
    ],
)
def test_the_cause_of_a_record_decides_its_words(
    sandbox: Sandbox, cause: Cause, label: str, caption: str
) -> None:
    truth = find_truth(sandbox, now=T0)
    words = word_truth(truth)
    assert (truth.cause, words.label, words.caption) == (cause, label, caption)


@pytest.mark.parametrize(
    ("run", "app", "label"),
    [
        ({"ready": True}, AppHealth.ANSWERS, "Live preview ready"),
        ({"ready": False}, AppHealth.STARTING, "Starting the app…"),
        ({"ready": False, "app_down_at": T0}, AppHealth.SILENT, "App not responding"),
        (
            {"ready": False, "app_down_at": T0, "app_exit_code": 1},
            AppHealth.CRASHED,
            "App crashed (exit 1)",
        ),
        ({"ready": False, "app_down_at": T0, "app_exit_code": 0}, AppHealth.ENDED, "App ended"),
    ],
)
def test_how_the_app_does_decides_the_words_of_a_running_sandbox(
    run: dict[str, object], app: AppHealth, label: str
) -> None:
    truth = find_truth(record(State.RUNNING, launch=Launch(port=8000), **run), now=T0)
    assert (truth.app, word_truth(truth).label) == (app, label)
    assert truth.is_ready == (app is AppHealth.ANSWERS)


def test_a_wake_is_shown_until_its_claim_ends() -> None:
    waking = record(State.PAUSED, claim=Claim(ClaimKind.WAKE, "w", at(60)))
    assert word_truth(find_truth(waking, now=at(1))) == WAKING
    assert word_truth(find_truth(waking, now=at(61))).label == "Sandbox asleep"


def test_the_first_start_of_an_app_is_no_wake() -> None:
    claim = Claim(ClaimKind.WAKE, "w", at(60))
    created = record(State.RUNNING, claim=claim, launch=Launch(port=8000))
    assert word_truth(find_truth(created, now=at(1))).label == "Starting the app…"


def test_an_earlier_end_at_the_provider_is_told_instead_of_our_lifetime() -> None:
    fields = {"ready": True, "expires_at": at(3600), "launch": Launch(port=8000)}
    early = record(State.RUNNING, end_at=at(300), **fields)
    assert word_truth(find_truth(early, now=at(1))).caption == (
        "The provider ends this run at 03:09 UTC, or sooner when idle."
    )
    equal = record(State.RUNNING, end_at=at(3599), **fields)
    assert "1 hour" in word_truth(find_truth(equal, now=at(1))).caption


def test_captions_say_the_sandboxs_own_times() -> None:
    policy = Policy(idle_timeout_s=600, lifetime_s=7200)

    def caption(state: State, **fields: object) -> str:
        sandbox = record(state, policy=policy, launch=Launch(port=1), **fields)
        return word_truth(find_truth(sandbox, now=T0)).caption

    paused = caption(State.PAUSED, actor=SCHEDULER_ACTOR)
    assert paused == "Auto-paused after 10 minutes of inactivity. Wake it to continue."
    running = caption(State.RUNNING, ready=True)
    assert running == "Sandboxes stay active for 2 hours with smart auto-pause."
    expired = caption(State.EXPIRED)
    assert expired == "Reached 2-hour lifetime limit. Wake to create a fresh sandbox."
    spans = [format_duration(span) for span in (1, 45, 60, 3600)]
    assert spans == ["1 second", "45 seconds", "1 minute", "1 hour"]


def test_an_empty_log_says_why_it_is_empty() -> None:
    app = Launch(start_command="serve")

    def note(state: State, shown: State | None = None) -> str:
        return word_empty_log(record(state, launch=app), shown or state)

    assert "nothing yet" in note(State.RUNNING)
    assert "asleep" in note(State.PAUSED)
    assert "does not answer" in note(State.UNKNOWN)
    assert "does not answer" in note(State.RUNNING, State.UNKNOWN)
    assert "ended" in note(State.KILLED)


@pytest.mark.parametrize("state", list(State))
def test_only_what_ran_at_a_silent_provider_is_shown_as_unknown(state: State) -> None:
    sandbox = record(state, launch=Launch(port=8000), ready=state is State.RUNNING)
    truth = find_truth(sandbox, now=at(60), provider_down_since=T0)
    assert truth.state is (State.UNKNOWN if state is State.RUNNING else state)
    assert not truth.is_ready
    back = find_truth(sandbox, now=at(61))
    assert (back.state, back.is_ready) == (state, state is State.RUNNING)


@pytest.mark.parametrize("truth", COMBINATIONS, ids=str)
def test_an_operator_reads_one_sentence_and_is_offered_only_what_makes_sense(truth: Truth) -> None:
    sandbox = record(truth.state, launch=Launch(port=3000, start_command="serve"))
    summary = summarize(sandbox, truth)
    assert summary.word
    assert summary.sentence.endswith(".")
    operations = set(summary.operations)
    assert Operation.WAKE not in operations or truth.state is not State.RUNNING
    assert Operation.PAUSE not in operations or truth.state is State.RUNNING
    assert not {Operation.KILL, Operation.PAUSE} & operations or not truth.state.is_ended
    if truth.provider_down_since is not None:
        assert operations == {Operation.VERIFY}


def test_a_crashed_app_has_its_own_word_since_it_ended_and_a_restart_first() -> None:
    sandbox = record(launch=Launch(port=3000, start_command="serve"))
    ended = sandbox.evolve(app_exit_code=1, app_down_at=at(7), ready=False)
    summary = summarize(ended, find_truth(ended, now=at(9)))
    assert (summary.word, summary.since) == ("App crashed (exit 1)", at(7))
    assert summary.operations[0] is Operation.RESTART
