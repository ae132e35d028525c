"""Activity: taken in at memory speed, folded per sandbox, acts written about once a second.

Looks keep nothing awake and are only counted, so sandboxes that were only looked at are written
less often. A crash loses at most what arrived since the last flush. What waits here is bounded by
the fleet: one folded touch per sandbox, however often it is touched and however long the database
is away. Writing is upsert-if-newer, so a touch may be written twice, late, and by several replicas
in any order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Protocol

from sandkeeper.domain.activity import Activity, ActivityClass, Touch, fold

# Touches written by one statement. Higher holds SQLite's one writer longer, and a core of a machine
# that PostgreSQL shares; lower costs time.
BATCH = 200


OnWritten = Callable[[Sequence[Touch]], Awaitable[None]]


class ActivityWriter(Protocol):
    """Where touches go: the sandboxes of the store."""

    async def touch(self, touches: Sequence[Touch]) -> set[str]: ...


class ActivityBuffer:
    """The activity that this process has seen and not yet written."""

    def __init__(self, *, sandboxes: ActivityWriter, clock: Callable[[], datetime]) -> None:
        self._sandboxes = sandboxes
        self._clock = clock
        self._waiting: dict[str, Touch] = {}
        self._being_written: dict[str, Touch] = {}
        self._one_flush_at_a_time = asyncio.Lock()
        self._listeners: list[OnWritten] = []

    def on_written(self, listener: OnWritten) -> None:
        """Call `listener` with each batch of touches that was written.

        Activity makes no event and no new version, so the feed does not carry it.
        """
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
        """Note an act. A time in the future counts as now: nobody stays awake by a wrong clock."""
        now = self._clock()
        activity = Activity(
            at=now if at is None else min(at, now), kind=kind, source=source, count=count
        )
        self._waiting[sandbox_id] = fold(
            sandbox_id, [activity], before=self._waiting.get(sandbox_id)
        )

    def find_active_at(self, sandbox_id: str) -> datetime | None:
        """When the sandbox was last active, by what is not yet in the database."""
        times = [
            touch.active.at
            for touch in (self._waiting.get(sandbox_id), self._being_written.get(sandbox_id))
            if touch is not None and touch.active is not None
        ]
        return max(times, default=None)

    def is_waiting(self, sandbox_id: str) -> bool:
        """True while an act or a look of this sandbox is not yet in the database."""
        return sandbox_id in self._waiting or sandbox_id in self._being_written

    @property
    def waiting(self) -> int:
        """How many sandboxes have activity that is not yet written."""
        return len(self._waiting) + len(self._being_written)

    async def flush(self, *, looks: bool = True) -> int:
        """Write all that waits and give the number of sandboxes; on failure it waits on.

        Without `looks`, sandboxes that were only looked at wait on as well.
        """
        async with self._one_flush_at_a_time:
            self._being_written, waiting, self._waiting = {}, self._waiting, {}
            for sandbox_id, touch in waiting.items():
                is_written = looks or touch.active is not None
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
                    for listener in self._listeners:
                        await listener(batch)
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
