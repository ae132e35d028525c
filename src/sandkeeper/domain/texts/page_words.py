"""The words of pages where no status can bring them: before the first one, and without the server.

The server sends them with its scripts, as `words.js`. The scripts themselves have none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from sandkeeper.domain.states import State
from sandkeeper.domain.texts.presentation import JOB_TEXTS, PRESENTATIONS, WAKING, Action


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
    not_woken: str = "No wake was needed yet."
    no_files: str = "No files are kept yet."
    no_session: str = "No session uses it."
    not_paused: str = "It was not paused"


PAGE_WORDS: Final = PageWords()

ACTION_LABELS: Final = {
    Action.WAKE: "Wake sandbox",
    Action.RETRY: "Retry",
    Action.RESTART: "Restart app",
}
"""The buttons; what is not here is a tool of the page."""


def render_page_words() -> dict[str, Any]:
    """Return all words that pages have without a status, as the scripts name them."""
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
        "page": {_camel(name): getattr(PAGE_WORDS, name) for name in PAGE_WORDS.__slots__},
        "job": {_camel(name): getattr(JOB_TEXTS, name) for name in JOB_TEXTS.__slots__},
    }


def _camel(name: str) -> str:
    head, *tail = name.split("_")
    return head + "".join(part.capitalize() for part in tail)
