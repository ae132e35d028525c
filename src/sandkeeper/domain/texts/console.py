"""What those who run sandboxes read: one word for a state, one sentence, and what can be done now.

The end user's words are in `presentation`. Neither has an age in it: a status is encoded once and
shown for as long as it is true, so a page adds how long that is by `stateSince`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from sandkeeper.domain.decisions.capacity import MADE_ROOM
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import State
from sandkeeper.domain.texts.presentation import AppHealth, Cause, Truth, format_duration

STATE_WORDS: Final[dict[State, str]] = {
    State.RUNNING: "Running",
    State.STARTING: "Starting",
    State.PAUSED: "Asleep",
    State.KILLED: "Killed",
    State.EXPIRED: "Expired",
    State.TERMINATED: "Stopped",
    State.UNKNOWN: "Unknown",
}


class Operation(StrEnum):
    """What an operator may do with a sandbox; the first one that applies is the usual one."""

    WAKE = "wake"
    RESTART = "restart"
    PAUSE = "pause"
    EXTEND = "extend"
    VERIFY = "verify"
    KILL = "kill"


OPERATION_LABELS: Final = {
    Operation.WAKE: "Wake",
    Operation.RESTART: "Restart app",
    Operation.PAUSE: "Pause",
    Operation.EXTEND: "Extend 1 h",
    Operation.VERIFY: "Verify",
    Operation.KILL: "Kill",
}


@dataclass(frozen=True, slots=True)
class Summary:
    """A sandbox in one word and one sentence, and since when that is so."""

    word: str
    sentence: str
    since: datetime
    operations: tuple[Operation, ...]


def summarize(sandbox: Sandbox, truth: Truth) -> Summary:
    """Return what is true now, for a list, a page's top and a terminal."""
    word, sentence, since = _word(sandbox, truth)
    return Summary(word, sentence, since, _list_operations(sandbox, truth))


def _word(sandbox: Sandbox, truth: Truth) -> tuple[str, str, datetime]:
    since = sandbox.state_since
    silent_since = truth.provider_down_since
    if silent_since is not None and truth.state is State.PAUSED:
        return "Asleep", "The provider does not answer: it cannot be woken now.", since
    if silent_since is not None:
        return "Provider unreachable", "Its provider does not answer.", silent_since
    if truth.is_waking and truth.line is not None:
        return "Waiting for capacity", f"It is {truth.line}.", since
    if truth.is_waking:
        started_at = sandbox.wake.started_at if sandbox.wake is not None else None
        return "Waking", "A wake is under way.", started_at or sandbox.updated_at
    if truth.state is State.RUNNING:
        return _word_running(sandbox, truth)
    sentence = {
        State.STARTING: "It is being created at the provider.",
        State.PAUSED: _say_paused(sandbox, truth),
        State.KILLED: _say_killed(truth),
        State.EXPIRED: "Its lifetime is over. A wake creates a new instance with its files.",
        State.TERMINATED: "It was shut down. A wake creates a new instance with its files.",
        State.UNKNOWN: "The provider gave no clear answer about it.",
    }[truth.state]
    return STATE_WORDS[truth.state], sentence, since


def _word_running(sandbox: Sandbox, truth: Truth) -> tuple[str, str, datetime]:
    since, port = sandbox.state_since, sandbox.launch.port
    down_at = sandbox.run.app_down_at or since
    match truth.app:
        case AppHealth.ANSWERS:
            return "Running", f"Its app answers on port {port}.", since
        case AppHealth.NONE:
            return "Running", "It has no port, so no preview.", since
        case AppHealth.STARTING:
            return "Starting app", f"Its app does not answer on port {port} yet.", since
        case AppHealth.CRASHED:
            code = truth.exit_code
            return f"App crashed (exit {code})", f"Its app ended with exit code {code}.", down_at
        case AppHealth.ENDED:
            return "App ended", "Its app ended by itself, without an error.", down_at
        case AppHealth.SILENT:
            return "App not responding", f"Its app stopped answering on port {port}.", down_at


def _say_paused(sandbox: Sandbox, truth: Truth) -> str:
    if sandbox.reason.startswith(MADE_ROOM):
        return "It was paused because its slot was needed."
    match truth.cause:
        case Cause.ON_REQUEST:
            return "It was paused on request."
        case Cause.AUTOMATIC if truth.idle_timeout_s is not None:
            return f"It was paused after {format_duration(truth.idle_timeout_s)} without activity."
        case Cause.AUTOMATIC:
            return "It was paused for inactivity."
        case _:
            return "It was paused at the provider."


def _say_killed(truth: Truth) -> str:
    match truth.cause:
        case Cause.ON_REQUEST:
            return "It was killed on request. A wake creates a new instance with its files."
        case Cause.NOT_CREATED:
            return "Its creation failed. A wake tries again."
        case Cause.NOT_FOUND:
            return "The provider no longer has it. A wake creates a new instance with its files."
        case _:
            return "It was ended. A wake creates a new instance with its files."


def _list_operations(sandbox: Sandbox, truth: Truth) -> tuple[Operation, ...]:
    """Return what makes sense now: nothing of a wake under way, little of a silent provider."""
    if truth.provider_down_since is not None:
        return (Operation.VERIFY,)
    if truth.is_waking or truth.state is State.STARTING:
        kill = () if truth.state.is_ended else (Operation.KILL,)
        return (Operation.VERIFY, *kill)
    if truth.state is State.RUNNING:
        has_app = sandbox.launch.start_command is not None
        is_down = truth.app in (AppHealth.CRASHED, AppHealth.ENDED, AppHealth.SILENT)
        restart = (Operation.RESTART,) if has_app and is_down else ()
        return (*restart, Operation.PAUSE, Operation.EXTEND, Operation.VERIFY, Operation.KILL)
    if truth.state.is_ended:
        return (Operation.WAKE,)
    return (Operation.WAKE, Operation.VERIFY, Operation.KILL)
