"""Count usage from the event log into the sums of each day, a bounded part at a time.

What is counted, up to which entry, and the state of every meter are one transaction. So a counting
that dies in the middle, runs twice, late, or on another replica ends in the same sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sandkeeper.domain.costs.metering import (
    Count,
    Meter,
    MeteredEvent,
    Phase,
    advance,
    follow,
    refresh,
    start_meter,
)
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.services.deps import Deps
from sandkeeper.store.costs.usage import Counting

ENTRIES_MAX: Final = 500
"""Log entries, or meters, of one transaction. Higher holds the database's writer for longer."""
TRANSACTIONS_MAX: Final = 200
"""Transactions of one run; the next run goes on. Higher lets a long absence delay other tasks."""
RUNNING_COUNTED_S: Final = 300.0
"""How old the count of a running sandbox may be. Lower writes more often for nothing new."""
PAUSED_COUNTED_S: Final = 3600.0
"""The same of a paused one."""

UNMETERED_S: Final = 600.0
"""How long a sandbox without a meter must have been in its state to get one without an entry."""


@dataclass(frozen=True, slots=True)
class RollUpReport:
    """How many log entries were read, and how many meters were counted further."""

    entries: int = 0
    meters: int = 0


class CostRollUp:
    """Count what the log says, and what goes on without an entry."""

    def __init__(self, deps: Deps) -> None:
        self._store = deps.store
        self._clock = deps.clock
        self._knows_all = False

    async def run(self) -> RollUpReport:
        entries = meters = 0
        for _ in range(TRANSACTIONS_MAX):
            read, has_more = await self._follow_log()
            entries += read
            if not has_more:
                break
        else:
            return RollUpReport(entries)
        for _ in range(TRANSACTIONS_MAX):
            counted, has_more = await self._count_further()
            meters += counted
            if not has_more:
                break
        return RollUpReport(entries, meters)

    async def _follow_log(self) -> tuple[int, bool]:
        async with self._store.costs.counting(now=self._clock()) as counting:
            entries, has_more = await counting.read_log(limit=ENTRIES_MAX)
            ids = {entry.sandbox_id for entry in entries}
            meters = await counting.find_meters(ids)
            sandboxes = await counting.find_sandboxes(ids)
            counts: list[Count] = []
            for entry in entries:
                counts += _follow(meters, entry, sandboxes.get(entry.sandbox_id))
            await counting.save(meters.values(), counts)
        return len(entries), has_more

    async def _count_further(self) -> tuple[int, bool]:
        now = self._clock()
        async with self._store.costs.counting(now=now) as counting:
            due = [] if self._knows_all else await self._find_unmetered(counting, now)
            for phase, period_s in (
                (Phase.RUNNING, RUNNING_COUNTED_S),
                (Phase.PAUSED, PAUSED_COUNTED_S),
            ):
                before = now - timedelta(seconds=period_s)
                room = ENTRIES_MAX - len(due)
                if room > 0:
                    due += await counting.list_due(phase, before=before, limit=room)
            await self._advance(counting, due, now)
        return len(due), len(due) >= ENTRIES_MAX

    async def _find_unmetered(self, counting: Counting, now: datetime) -> list[Meter]:
        """Return meters for sandboxes about which the kept part of the log says nothing.

        What changed just now has an entry that may not be read yet.
        """
        before = now - timedelta(seconds=UNMETERED_S)
        found = await counting.list_unmetered(before=before, limit=ENTRIES_MAX)
        self._knows_all = len(found) < ENTRIES_MAX
        return [start_meter(one) for one in found]

    async def _advance(self, counting: Counting, due: list[Meter], now: datetime) -> None:
        sandboxes = await counting.find_sandboxes({meter.sandbox_id for meter in due})
        kept = await counting.measure_kept(sandboxes.values())
        meters: list[Meter] = []
        counts: list[Count] = []
        for known in due:
            sandbox = sandboxes.get(known.sandbox_id)
            meter = known
            if sandbox is not None:
                meter = refresh(known, sandbox, kept.get(sandbox.owner, 0))
            meter, more = advance(meter, max(now, meter.counted_to))
            meters.append(meter)
            counts += more
        await counting.save(meters, counts)


def _follow(meters: dict[str, Meter], entry: MeteredEvent, sandbox: Sandbox | None) -> list[Count]:
    meter, counts = follow(meters.get(entry.sandbox_id), entry, sandbox)
    if meter is not None:
        meters[entry.sandbox_id] = meter
    return counts
