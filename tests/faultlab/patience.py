"""How long something may last before it counts as stuck: judged by events, never by the time.

A busy machine is slow, so seconds say nothing. What does not change while every replica's
reconciler has run several times will not change by itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

RECORD_PASSES: Final = 2
"""Two periods of the reconciler: the promise about records."""
WORK_PASSES: Final = 10
"""A claim or a wake may last longer than a record may be wrong, as long as it gets on."""


class Patience:
    """Counts the reconciler's runs of each replica, and during how many of them a thing lasts."""

    def __init__(self, replicas: int) -> None:
        self._runs: dict[int, set[str]] = defaultdict(set)
        self._replicas = range(replicas)
        self._since: dict[str, tuple[int, ...]] = {}

    def note_run(self, replica: int, at: str) -> None:
        """Note the time at which a replica's reconciler last succeeded; the same may come again."""
        self._runs[replica].add(at)

    def find_stuck(self, seen: Iterable[str], *, passes: int) -> list[str]:
        """Return what has lasted during so many complete runs of every replica."""
        now = self._count()
        return [
            line
            for line in seen
            # One run may have begun before it was first seen, and one was already over.
            if all(
                count - before > passes
                for count, before in zip(now, self._since[line], strict=True)
            )
        ]

    def look(self, seen: Iterable[str]) -> None:
        """Note what is there now. What has changed or was not there for a look begins again."""
        now = self._count()
        self._since = {line: self._since.get(line, now) for line in seen}

    def _count(self) -> tuple[int, ...]:
        return tuple(len(self._runs[number]) for number in self._replicas)
