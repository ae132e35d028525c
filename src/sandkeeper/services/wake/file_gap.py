"""How old the saved files of a sandbox were when its last instance stopped running."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from sandkeeper.domain.events import StateChanged
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import State
from sandkeeper.store import Store

PAGES_MAX: Final = 10
"""Pages of the history that are read; the end of the last run is nearly always on the first."""


async def find_file_gap_ms(store: Store, sandbox: Sandbox) -> int | None:
    """Return the time between the last capture and the end of the run; None if nothing was saved.

    What changed inside in that time is lost. The result is never too small: if a wake that was cut
    short has restored the files already, the age of the version itself counts.
    """
    version = await store.files.find_latest(sandbox.owner)
    ended_at = await _find_run_end(store, sandbox)
    if version is None or ended_at is None:
        return None
    as_of = version.seen_at if version.seen_at <= ended_at else version.created_at
    return max(0, round((ended_at - as_of).total_seconds() * 1000))


async def _find_run_end(store: Store, sandbox: Sandbox) -> datetime | None:
    """Return when the sandbox last stopped running, or None if it never ran."""
    before: int | None = None
    for _ in range(PAGES_MAX):
        events = await store.events.of(sandbox.id, before=before)
        for event in events:
            if event.type == StateChanged.type and event.data["old_state"] == State.RUNNING.value:
                return event.at
        if not events:
            return None
        before = events[-1].seq
    return None
