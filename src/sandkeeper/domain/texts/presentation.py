"""What people read and may do: one function, `word_truth`, chooses the words for what is true.

The server sends them with every status; pages and the CLI show them unchanged and have no words of
their own. The texts of `PRESENTATIONS` are the product's promise: each is shown only where it is
true, and other texts are shown where it is not. Do not polish them here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from sandkeeper.domain.decisions.adaptive_timeout import compute_idle_timeout_s
from sandkeeper.domain.owner import PROVIDER_ACTOR, SCHEDULER_ACTOR
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import KilledReason, State


class Action(StrEnum):
    """What a person may do."""

    REFRESH = "refresh"
    COPY_URL = "copy_url"
    OPEN = "open"
    WAKE = "wake"
    RETRY = "retry"
    RESTART = "restart"
    """Start the app again. It is a wake: a running sandbox keeps running."""


class Badge(StrEnum):
    """The colour of a state."""

    GREEN = "green"
    BLUE = "blue"
    AMBER = "amber"
    RED = "red"
    ORANGE = "orange"
    GRAY = "gray"
    YELLOW = "yellow"


@dataclass(frozen=True, slots=True)
class Presentation:
    """One row of the table. ``poll_after_ms`` is None where polling makes no sense."""

    label: str
    caption: str
    actions: tuple[Action, ...]
    badge: Badge
    icon: str
    poll_after_ms: int | None
    pulses: bool = False


_WAKE = (Action.WAKE, Action.REFRESH)

PRESENTATIONS: Final[dict[State, Presentation]] = {
    State.RUNNING: Presentation(
        label="Live preview ready",
        caption="Sandboxes stay active for 1 hour with smart auto-pause.",
        actions=(Action.REFRESH, Action.COPY_URL, Action.OPEN),
        badge=Badge.GREEN,
        icon="play",
        poll_after_ms=30_000,
    ),
    State.STARTING: Presentation(
        label="Preparing sandbox…",
        caption="Setting up your development environment…",
        actions=(Action.REFRESH,),
        badge=Badge.BLUE,
        icon="spinner",
        poll_after_ms=5_000,
        pulses=True,
    ),
    State.PAUSED: Presentation(
        label="Sandbox asleep",
        caption="Auto-paused after 3 minutes of inactivity. Wake it to continue.",
        actions=_WAKE,
        badge=Badge.AMBER,
        icon="moon",
        poll_after_ms=None,
    ),
    State.KILLED: Presentation(
        label="Sandbox not found",
        caption="Sandbox was terminated. Wake to create a new one with your files.",
        actions=_WAKE,
        badge=Badge.RED,
        icon="error",
        poll_after_ms=None,
    ),
    State.EXPIRED: Presentation(
        label="Sandbox expired",
        caption="Reached 1-hour lifetime limit. Wake to create a fresh sandbox.",
        actions=_WAKE,
        badge=Badge.ORANGE,
        icon="clock",
        poll_after_ms=None,
    ),
    State.TERMINATED: Presentation(
        label="Sandbox stopped",
        caption="Sandbox was shut down. Wake to restart with your project files.",
        actions=_WAKE,
        badge=Badge.GRAY,
        icon="stop",
        poll_after_ms=None,
    ),
    State.UNKNOWN: Presentation(
        label="Connection issue",
        caption="Cannot verify sandbox status. Check your connection and try again.",
        actions=(Action.RETRY, Action.WAKE),
        badge=Badge.YELLOW,
        icon="warning",
        poll_after_ms=30_000,
    ),
}

WAKING: Final = Presentation(
    label="Waking sandbox...",
    caption="Your files and your app are coming back.",
    actions=(),
    badge=Badge.BLUE,
    icon="spinner",
    poll_after_ms=2_000,
    pulses=True,
)
"""Shown while a wake is in progress, whatever the state below it is."""


EARLY: Final = timedelta(minutes=1)
"""The provider's end is told if it is earlier than ours by this; both are set by one call."""


class Cause(StrEnum):
    """Who brought the sandbox into its state."""

    AUTOMATIC = "automatic"
    """The keeper itself: the idle sweep, a lifetime."""
    ON_REQUEST = "on_request"
    """A caller of the keeper."""
    OUTSIDE = "outside"
    """The provider, or another client of it."""
    NOT_FOUND = "not_found"
    """The provider no longer has it, and did not say why."""
    NOT_CREATED = "not_created"
    """Its creation failed."""


class AppHealth(StrEnum):
    """How the app does, seen from outside."""

    NONE = "none"
    """The sandbox has no port to ask."""
    STARTING = "starting"
    ANSWERS = "answers"
    SILENT = "silent"
    CRASHED = "crashed"
    ENDED = "ended"
    """It ended by itself, without an error."""


@dataclass(frozen=True, slots=True)
class Truth:
    """Everything that the words depend on."""

    state: State
    """The state to show: of what ran at a provider that is silent, nothing is known."""
    cause: Cause = Cause.AUTOMATIC
    app: AppHealth = AppHealth.NONE
    is_waking: bool = False
    line: str | None = None
    """The place in line of a wake that waits for a slot."""
    exit_code: int | None = None
    provider_down_since: datetime | None = None
    idle_timeout_s: float | None = 180.0
    lifetime_s: float | None = 3600.0
    ends_at: datetime | None = None
    """When the provider ends the run, if that is before our own end."""

    @property
    def is_ready(self) -> bool:
        """Return True when a browser that opens the preview now gets an answer."""
        is_up = self.app in (AppHealth.ANSWERS, AppHealth.NONE)
        return self.state is State.RUNNING and is_up and self.provider_down_since is None


def find_truth(
    sandbox: Sandbox, *, now: datetime, provider_down_since: datetime | None = None
) -> Truth:
    """Return what is true of this sandbox, as far as the record and the provider's health say."""
    state = find_shown_state(sandbox, is_provider_down=provider_down_since is not None)
    return Truth(
        state=state,
        cause=_find_cause(sandbox) if state is sandbox.state else Cause.OUTSIDE,
        app=_find_app_health(sandbox),
        is_waking=sandbox.is_waking(now),
        line=_find_line(sandbox),
        exit_code=sandbox.run.app_exit_code,
        provider_down_since=provider_down_since if sandbox.state.is_live else None,
        idle_timeout_s=compute_idle_timeout_s(sandbox),
        lifetime_s=sandbox.policy.lifetime_s,
        ends_at=_find_early_end(sandbox),
    )


def word_line(position: int, wait_s: float | None) -> str:
    """Return a place in line, and how long it takes if that was measured."""
    is_teen = 10 < position % 100 < 14
    ending = "th" if is_teen else {1: "st", 2: "nd", 3: "rd"}.get(position % 10, "th")
    about = "" if wait_s is None else f", about {format_duration(max(1.0, wait_s))}"
    return f"{position}{ending} in line{about}"


def _find_line(sandbox: Sandbox) -> str | None:
    mark = sandbox.wake
    if mark is None or mark.step is None or mark.position is None:
        return None
    return word_line(mark.position, None if mark.wait_ms is None else mark.wait_ms / 1000)


def find_shown_state(sandbox: Sandbox, *, is_provider_down: bool) -> State:
    """Return the state that everything shows; the store's lists and counts use the same rule.

    What sleeps stays asleep without its provider, and what is being created has no answer yet.
    """
    is_lost = is_provider_down and sandbox.state is State.RUNNING
    return State.UNKNOWN if is_lost else sandbox.state


def word_truth(truth: Truth) -> Presentation:
    """Return the words for what is true."""
    since = truth.provider_down_since
    if since is not None:
        return _word_provider_down(truth, since)
    if truth.is_waking and truth.line is not None:
        return replace(WAKING, label="Waiting for capacity", caption=f"It is {truth.line}.")
    if truth.is_waking:
        return WAKING
    choose = {
        State.RUNNING: _word_running,
        State.PAUSED: _word_paused,
        State.KILLED: _word_killed,
        State.EXPIRED: _word_expired,
    }.get(truth.state)
    words = PRESENTATIONS[truth.state]
    return words if choose is None else choose(truth, words)


def _word_provider_down(truth: Truth, since: datetime) -> Presentation:
    """Return the words while the provider does not answer: nothing can be known or done."""
    silence = f"The provider has not answered since {since:%H:%M} UTC."
    if truth.state is State.PAUSED:
        words = PRESENTATIONS[State.PAUSED]
        return replace(words, caption=f"{silence} It can be woken when the provider is back.")
    return replace(
        PRESENTATIONS[State.UNKNOWN],
        label="Provider unreachable",
        caption=f"{silence} Your sandbox is shown again as soon as it does.",
        actions=(Action.RETRY,),
    )


def _word_running(truth: Truth, words: Presentation) -> Presentation:
    if truth.app is AppHealth.ANSWERS:
        return _word_ready(truth, words)
    if truth.app is AppHealth.NONE:
        return replace(
            words,
            label="Running",
            caption="There is no preview: no port is set.",
            actions=(Action.REFRESH,),
        )
    if truth.app is AppHealth.STARTING:
        return replace(
            PRESENTATIONS[State.STARTING],
            label="Starting the app…",
            caption="The sandbox is running; its app does not respond yet.",
            actions=(Action.REFRESH, Action.RETRY),
        )
    is_crashed = truth.app is AppHealth.CRASHED
    label, end = {
        AppHealth.CRASHED: (
            f"App crashed (exit {truth.exit_code})",
            f"ended with exit code {truth.exit_code}",
        ),
        AppHealth.ENDED: ("App ended", "has ended, without an error"),
    }.get(truth.app, ("App not responding", "does not answer"))
    return replace(
        words,
        label=label,
        caption=f"The sandbox is running, but its app {end}.",
        actions=(Action.RESTART, Action.REFRESH),
        badge=Badge.RED if is_crashed else Badge.YELLOW,
        icon="error" if is_crashed else "warning",
    )


def _word_ready(truth: Truth, words: Presentation) -> Presentation:
    if truth.ends_at is not None:
        at = f"{truth.ends_at:%H:%M} UTC"
        return replace(words, caption=f"The provider ends this run at {at}, or sooner when idle.")
    if truth.lifetime_s is None:
        return replace(words, caption="It stays active until it is idle.")
    span = format_duration(truth.lifetime_s)
    return replace(words, caption=words.caption.replace("1 hour", span))


def _word_expired(truth: Truth, words: Presentation) -> Presentation:
    if truth.lifetime_s is None:
        caption = "Its lifetime ended at the provider. Wake to create a fresh sandbox."
        return replace(words, caption=caption)
    span = format_duration(truth.lifetime_s).removesuffix("s").replace(" ", "-")
    return replace(words, caption=words.caption.replace("1-hour", span))


def _word_paused(truth: Truth, words: Presentation) -> Presentation:
    if truth.cause is Cause.ON_REQUEST:
        return replace(words, caption="Paused on request. Wake it to continue.")
    if truth.cause is not Cause.AUTOMATIC:
        return replace(words, caption="Paused at the provider. Wake it to continue.")
    if truth.idle_timeout_s is None:
        return replace(words, caption="Auto-paused after inactivity. Wake it to continue.")
    span = format_duration(truth.idle_timeout_s)
    return replace(words, caption=words.caption.replace("3 minutes", span))


def _word_killed(truth: Truth, words: Presentation) -> Presentation:
    if truth.cause is Cause.ON_REQUEST:
        return replace(
            words,
            label="Sandbox killed",
            caption="Killed on request. Wake to create a new one with your files.",
        )
    if truth.cause is Cause.NOT_CREATED:
        return replace(
            words,
            label="Sandbox not created",
            caption="Its creation failed. Wake to try again.",
        )
    return words


def word_empty_log(sandbox: Sandbox, state: State) -> str:
    """Return why the app's log shows nothing: it may be empty, or it may not be readable now."""
    if state is State.RUNNING:
        has_app = sandbox.launch.start_command is not None
        return "The app has written nothing yet." if has_app else "No start command is set."
    reasons = {
        State.PAUSED: "The sandbox is asleep. Its log can be read again when it runs.",
        State.STARTING: "The sandbox is being created.",
        State.UNKNOWN: "The provider does not answer, so the log cannot be read now.",
    }
    return reasons.get(state, "The sandbox has ended, and its log with it.")


def _find_cause(sandbox: Sandbox) -> Cause:
    ended = sandbox.last_end.killed_reason if sandbox.state.is_ended else None
    if ended is KilledReason.NOT_FOUND:
        return Cause.NOT_FOUND
    if ended is KilledReason.CREATION_FAILED:
        return Cause.NOT_CREATED
    if sandbox.is_paused_by_sweep or sandbox.actor == SCHEDULER_ACTOR:
        return Cause.AUTOMATIC
    return Cause.OUTSIDE if sandbox.actor == PROVIDER_ACTOR else Cause.ON_REQUEST


def _find_early_end(sandbox: Sandbox) -> datetime | None:
    ours, theirs = sandbox.run.expires_at, sandbox.run.end_at
    if ours is None or theirs is None or ours - theirs < EARLY:
        return None
    return theirs


def _find_app_health(sandbox: Sandbox) -> AppHealth:
    run = sandbox.run
    if run.app_exit_code is not None:
        return AppHealth.CRASHED if run.app_exit_code else AppHealth.ENDED
    if run.app_down_at is not None:
        return AppHealth.SILENT
    if sandbox.launch.port is None:
        return AppHealth.NONE
    return AppHealth.ANSWERS if run.ready else AppHealth.STARTING


def format_duration(span_s: float) -> str:
    """Format a duration in words: ``3 minutes``, ``1 hour``, ``45 seconds``."""
    for unit_s, unit in ((3600, "hour"), (60, "minute")):
        if span_s >= unit_s and span_s % unit_s == 0:
            count = int(span_s // unit_s)
            return f"{count} {unit}" if count == 1 else f"{count} {unit}s"
    return "1 second" if span_s == 1 else f"{span_s:g} seconds"


@dataclass(frozen=True, slots=True)
class JobTexts:
    """The wording of a job's preview: minimal, without technical explanation."""

    paused_title: str = "Your preview is sleeping."
    resume: str = "Resume preview"
    resuming: str = "Resuming preview..."
    failed_title: str = "Resume failed"
    expired: str = "The sandbox has expired and can't be recovered."
    unreachable: str = "The sandbox couldn't be reached. It may be corrupted."
    killed: str = "The sandbox was killed. A rebuild brings back its saved files."
    provider_down: str = "The provider can't be reached. Try again in a moment."
    rebuild: str = "Rebuild"
    confirm_rebuild: str = "This will use 1 build credit. Continue?"


JOB_TEXTS: Final = JobTexts()
