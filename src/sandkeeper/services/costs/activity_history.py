"""Record when sandboxes were in use, from what was written to their records.

It follows the positions of writes, in one replica at a time. Use is recorded as spans that join, so
the same write may be read again. A crash loses nothing: the position is saved with the spans.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import date, datetime
from typing import Final

from sandkeeper.domain.costs.activity_spans import Span, make_spans
from sandkeeper.domain.owner import OwnerKind
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import State
from sandkeeper.services.deps import Deps
from sandkeeper.store.costs.history import Recording

ROWS_MAX: Final = 500
"""Sandboxes of one transaction. Higher holds the database's writer for longer."""


@dataclass(frozen=True, slots=True)
class HistoryReport:
    """How many sandboxes were looked at."""

    sandboxes: int = 0


class ActivityHistory:
    """Record use."""

    def __init__(self, deps: Deps) -> None:
        self._store = deps.store
        self._clock = deps.clock

    async def record(self) -> HistoryReport:
        now = self._clock()
        async with self._store.activity_history.recording(now=now) as recording:
            if recording.position is None:
                recording.position = await self._store.changes.find_position()
                return HistoryReport()
            position = recording.position
        changes = await self._store.changes.since(position)
        ids = list(changes.sandbox_ids)
        for start in range(0, len(ids), ROWS_MAX):
            async with self._store.activity_history.recording(now=now) as recording:
                await _record(recording, ids[start : start + ROWS_MAX], now)
        async with self._store.activity_history.recording(now=now) as recording:
            if recording.position == position:
                recording.position = changes.position
        return HistoryReport(len(ids))


async def _record(recording: Recording, ids: list[str], now: datetime) -> None:
    sandboxes = {one.id: one for one in await recording.find_sandboxes(ids)}
    spans: dict[tuple[str, date], list[Span]] = defaultdict(list)
    for sandbox in sandboxes.values():
        for day, span in find_use(sandbox, now):
            spans[sandbox.id, day].append(span)
    await recording.add(spans, sandboxes)


def find_use(sandbox: Sandbox, now: datetime) -> list[tuple[date, Span]]:
    """Return what a record says about the use of its sandbox. A pool's member is not used."""
    if sandbox.owner.kind is OwnerKind.POOL:
        return []
    found: list[tuple[date, Span]] = []
    run_at = sandbox.run.run_started_at
    if sandbox.state is State.RUNNING and run_at is not None and sandbox.run.warmed_at is None:
        found += make_spans(run_at, run_at)
    last_at = sandbox.activity.last_active_at
    if last_at is not None:
        leased_until = sandbox.activity.leased_until or last_at
        is_leased = sandbox.state is State.RUNNING and leased_until > last_at
        found += make_spans(last_at, min(leased_until, now) if is_leased else last_at)
    busy_at = None if sandbox.work is None else sandbox.work.busy_at
    if busy_at is not None:
        found += make_spans(busy_at, busy_at)
    is_stopped = sandbox.state is State.PAUSED or sandbox.state.is_ended
    if is_stopped and not sandbox.is_paused_by_sweep:
        found += make_spans(sandbox.state_since, sandbox.state_since, stopped=True)
    return found
