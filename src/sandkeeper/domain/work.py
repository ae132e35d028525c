"""Work inside a sandbox, as the check before a due pause finds it.

A command that was started through the sandbox's own agent is work while it runs, and so is a busy
processor. Each counts for at most the policy's ``work_max_s`` from when it was first seen, so a
forgotten daemon does not keep its sandbox awake for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

BUSY_PCT: Final = 10.0
"""Processor use that counts as work. Lower takes an idle development server for work; higher misses
one busy thread on a machine of many processors."""

FOUND_MAX: Final = 20
"""How many findings a record keeps; a sandbox with more is at work anyway."""

PROCESSOR_PID: Final = 0
"""Stands for the busy processor among the findings."""


@dataclass(frozen=True, slots=True)
class RunningCommand:
    """A command that runs in an instance and was started through its agent."""

    pid: int
    command: str


@dataclass(frozen=True, slots=True)
class WorkItem:
    """One command, or the busy processor, and when it was first seen."""

    pid: int
    name: str
    since: datetime

    @property
    def text(self) -> str:
        """Return what it is, for people."""
        if self.pid == PROCESSOR_PID:
            return f"a busy processor ({self.name})"
        return f"`{self.name}` (pid {self.pid})"


@dataclass(frozen=True, slots=True)
class Work:
    """What the last check found, also what no longer counts: it would count again otherwise."""

    seen_at: datetime
    found: tuple[WorkItem, ...] = ()
    busy_at: datetime | None = None
    """When a check last found work that counts: the idle time begins there."""

    def find_counting(self, max_s: float) -> WorkItem | None:
        """Return the finding that counts for longest; None if there is none."""
        newest = max(self.found, key=lambda item: item.since, default=None)
        if newest is None or self.seen_at >= newest.since + timedelta(seconds=max_s):
            return None
        return newest


def observe_work(
    before: Work | None,
    commands: Sequence[RunningCommand],
    cpu_pct: float | None,
    *,
    now: datetime,
    max_s: float,
) -> Work:
    """Return what a check found now; what was seen before keeps the time of its first sight.

    Each finding counts for ``max_s`` from then.
    """
    found = [(one.pid, one.command) for one in commands[-FOUND_MAX:]]
    if cpu_pct is not None and cpu_pct >= BUSY_PCT:
        found.append((PROCESSOR_PID, f"{cpu_pct:.0f} %"))
    known = {} if before is None else {_key(one.pid, one.name): one.since for one in before.found}
    work = Work(
        now,
        tuple(WorkItem(pid, name, known.get(_key(pid, name), now)) for pid, name in found),
        busy_at=None if before is None else before.busy_at,
    )
    return work if work.find_counting(max_s) is None else replace(work, busy_at=now)


def render_work(work: Work) -> dict[str, Any]:
    """Return the findings as plain values for the store."""
    items = [asdict(one) | {"since": one.since.timestamp()} for one in work.found]
    busy_at = None if work.busy_at is None else work.busy_at.timestamp()
    return {"seen_at": work.seen_at.timestamp(), "found": items, "busy_at": busy_at}


def parse_work(values: dict[str, Any]) -> Work:
    """Parse what ``render_work`` wrote; earlier versions wrote no ``busy_at``."""
    busy_at = values.get("busy_at")
    return Work(
        datetime.fromtimestamp(values["seen_at"], UTC),
        tuple(
            WorkItem(one["pid"], one["name"], datetime.fromtimestamp(one["since"], UTC))
            for one in values["found"]
        ),
        busy_at=None if busy_at is None else datetime.fromtimestamp(busy_at, UTC),
    )


def _key(pid: int, name: str) -> tuple[int, str]:
    """Return what makes a finding the same as one before; the processor is always the same."""
    return (pid, "" if pid == PROCESSOR_PID else name)
