"""What people read and may do in each state: the only copy of these texts.

The server sends them with every status; pages show them unchanged. Labels, captions, actions and
colours are the product's promise. Do not polish them here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Final

from sandkeeper.domain.decisions.adaptive_timeout import compute_idle_timeout_s
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import State


class Action(StrEnum):
    """What a person may do."""

    REFRESH = "refresh"
    COPY_URL = "copy_url"
    OPEN = "open"
    WAKE = "wake"
    RETRY = "retry"


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


def present(sandbox: Sandbox, *, now: datetime) -> Presentation:
    """Return the texts for this sandbox. Times in a caption come from the sandbox's own policy."""
    if sandbox.is_waking(now):
        return WAKING
    words = PRESENTATIONS[sandbox.state]
    caption = _caption(words.caption, sandbox)
    return words if caption == words.caption else replace(words, caption=caption)


def _caption(caption: str, sandbox: Sandbox) -> str:
    """Return the caption with the real numbers where a policy differs from the default one."""
    state, policy = sandbox.state, sandbox.policy
    if state is State.PAUSED:
        idle_s = compute_idle_timeout_s(sandbox)
        return caption if idle_s is None else caption.replace("3 minutes", format_duration(idle_s))
    if state is State.RUNNING and policy.lifetime_s not in (None, 3600.0):
        return caption.replace("1 hour", format_duration(policy.lifetime_s or 0))
    if state is State.EXPIRED and policy.lifetime_s not in (None, 3600.0):
        span = format_duration(policy.lifetime_s or 0).removesuffix("s").replace(" ", "-")
        return caption.replace("1-hour", span)
    return caption


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
    rebuild: str = "Rebuild"
    confirm_rebuild: str = "This will use 1 build credit. Continue?"


JOB_TEXTS: Final = JobTexts()
