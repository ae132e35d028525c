"""Buffer activity in memory, merge it per sandbox, and write acts about once a second.

Passive activity keeps no sandbox awake and is only counted, so sandboxes with nothing else are
written less often. A crash loses at most what arrived since the last flush. The fleet bounds the
buffer: it holds one merged touch per sandbox, however often the sandbox is touched and however long
the database is away. Writes are upsert-if-newer, so a touch may be written twice, late, and by
several replicas in any order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Protocol

from sandkeeper.domain.activity import Activity, ActivityClass, Touch, fold

# Touches per statement. Higher holds SQLite's single writer longer, and a core of a machine that
# PostgreSQL shares; lower takes more time.
BATCH = 200


class ActivityWriter(Protocol):
    """The destination of touches: the sandboxes of the store."""

    async def touch(self, touches: Sequence[Touch]) -> set[str]: ...


class ActivityBuffer:
    """Activity that this process has received and not yet written."""

    def __init__(self, *, sandboxes: ActivityWriter, clock: Callable[[], datetime]) -> None:
        self._sandboxes = sandboxes
        self._clock = clock
        self._waiting: dict[str, Touch] = {}
        self._being_written: dict[str, Touch] = {}
        self._one_flush_at_a_time = asyncio.Lock()
        self._listeners: list[Callable[[str], None]] = []

    def on_act(self, listener: Callable[[str], None]) -> None:
        """Call `listener` with the sandbox of each act as it arrives; it must return at once."""
        self._listeners.append(listener)

    def record(
        self,
        sandbox_id: str,
        *,
        kind: ActivityClass,
        source: str,
        at: datetime | None = None,
        count: int = 1,
    ) -> None:
        """Record an act. A future time counts as now: a wrong clock keeps no sandbox awake."""
        now = self._clock()
        activity = Activity(
            at=now if at is None else min(at, now), kind=kind, source=source, count=count
        )
        self._waiting[sandbox_id] = fold(
            sandbox_id, [activity], before=self._waiting.get(sandbox_id)
        )
        if kind.keeps_awake:
            for listener in self._listeners:
                listener(sandbox_id)

    def find_active_at(self, sandbox_id: str) -> datetime | None:
        """Return when the sandbox was last active, according to activity not yet written."""
        times = [
            touch.active.at
            for touch in (self._waiting.get(sandbox_id), self._being_written.get(sandbox_id))
            if touch is not None and touch.active is not None
        ]
        return max(times, default=None)

    def is_waiting(self, sandbox_id: str) -> bool:
        """Return whether activity of this sandbox is not yet written."""
        return sandbox_id in self._waiting or sandbox_id in self._being_written

    @property
    def waiting(self) -> int:
        """Return how many sandboxes have activity that is not yet written."""
        return len(self._waiting) + len(self._being_written)

    async def flush(self, *, passive: bool = True) -> int:
        """Write all buffered activity and return the number of sandboxes; keep it on failure.

        Without `passive`, sandboxes that have only passive activity stay in the buffer too.
        """
        async with self._one_flush_at_a_time:
            self._being_written, waiting, self._waiting = {}, self._waiting, {}
            for sandbox_id, touch in waiting.items():
                is_written = passive or touch.active is not None
                kept = self._being_written if is_written else self._waiting
                kept[sandbox_id] = touch
            written = 0
            try:
                touches = list(self._being_written.values())
                for start in range(0, len(touches), BATCH):
                    batch = touches[start : start + BATCH]
                    await self._sandboxes.touch(batch)
                    written += len(batch)
                    for touch in batch:
                        del self._being_written[touch.sandbox_id]
            finally:
                self._requeue()
            return written

    def _requeue(self) -> None:
        for sandbox_id, touch in self._being_written.items():
            again = [part for part in (touch.active, touch.passive) if part is not None]
            self._waiting[sandbox_id] = fold(
                sandbox_id, again, before=self._waiting.get(sandbox_id)
            )
        self._being_written = {}
