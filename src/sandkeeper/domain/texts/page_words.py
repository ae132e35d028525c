"""The words of pages where no status can bring them: before the first one, and without the server.

The server sends them with its scripts. The scripts themselves have none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from sandkeeper.domain.states import State
from sandkeeper.domain.texts.console import OPERATION_LABELS
from sandkeeper.domain.texts.presentation import (
    JOB_TEXTS,
    PRESENTATIONS,
    WAKING,
    Action,
    JobTexts,
)


@dataclass(frozen=True, slots=True)
class PageWords:
    """Texts about a sandbox, its preview and the page's own connection."""

    loading: str = "Loading…"
    absent: str = "No sandbox yet"
    absent_caption: str = "The preview appears when one is created."
    refused: str = "Preview refused"
    refused_caption: str = (
        "The preview has the same origin as this page. Serve it from another host name."
    )
    broken: str = "Preview not loaded"
    broken_caption: str = "The app was ready, but the preview does not load. It is tried again."
    reconnecting: str = "Reconnecting…"
    wake_failed: str = "The wake did not succeed."
    late: str = "This takes longer than usual."
    sleeps_in: str = "sleeps in"
    about_to_sleep: str = "about to sleep"
    as_of: str = "as of"
    recreated: str = "Recreated"
    recreated_caption: str = "A new sandbox."
    restored: str = "Restored"
    not_restored: str = "Not restored"


@dataclass(frozen=True, slots=True)
class DashboardWords:
    """Texts of the dashboard about a sandbox and a job."""

    not_woken: str = "No wake was needed yet."
    no_files: str = "No files are kept yet."
    no_session: str = "No session uses it."
    not_paused: str = "It was not paused"
    connection_lost: str = "Connection lost."
    connecting: str = "Connecting…"
    waking_for_terminal: str = "The sandbox is being woken…"
    no_terminal: str = "Only an operator or an editor may open a terminal."


ACTION_LABELS: Final = {
    Action.WAKE: "Wake sandbox",
    Action.RETRY: "Retry",
    Action.RESTART: "Restart app",
}
"""The buttons; what is not here is a tool of the page."""


def render_word_modules() -> dict[str, tuple[str, dict[str, Any]]]:
    """Return the modules that bring words to pages: the constant of each, and its value.

    They are apart so that a page loads only what it shows.
    """
    return {
        "words.js": ("WORDS", _render_pane()),
        "job-words.js": ("JOB_WORDS", _render_texts(JOB_TEXTS)),
        "dashboard/words.js": ("FLEET_WORDS", _render_dashboard()),
    }


def _render_pane() -> dict[str, Any]:
    unreachable = PRESENTATIONS[State.UNKNOWN]
    return {
        "unreachable": {"label": unreachable.label, "caption": unreachable.caption},
        "waking": {
            "label": WAKING.label,
            "caption": WAKING.caption,
            "badge": WAKING.badge.value,
            "icon": WAKING.icon,
            "pollAfterMs": WAKING.poll_after_ms,
        },
        "actions": {action.value: label for action, label in ACTION_LABELS.items()},
        "page": _render_texts(PageWords()),
    }


def _render_dashboard() -> dict[str, Any]:
    labels = {operation.value: label for operation, label in OPERATION_LABELS.items()}
    return {**_render_texts(DashboardWords()), "operations": labels}


def _render_texts(texts: PageWords | DashboardWords | JobTexts) -> dict[str, str]:
    return {_camel(name): getattr(texts, name) for name in texts.__slots__}


def _camel(name: str) -> str:
    head, *tail = name.split("_")
    return head + "".join(part.capitalize() for part in tail)
