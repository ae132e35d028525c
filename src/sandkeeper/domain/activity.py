"""What counts as use of a sandbox, and what is only passive traffic.

*Intent* (a person or an agent did something) and *work* (a command still runs) keep a sandbox
awake. *Passive* activity (polls, status reads, streams, dashboards) is counted and shown, but never
keeps a sandbox awake.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class ActivityClass(StrEnum):
    """Who or what was active."""

    INTENT = "intent"
    WORK = "work"
    PASSIVE = "passive"

    @property
    def keeps_awake(self) -> bool:
        """Return True when this class moves the idle deadline."""
        return self is not ActivityClass.PASSIVE


@dataclass(frozen=True, slots=True)
class Activity:
    """One activity, or several of one sandbox folded into one."""

    at: datetime
    kind: ActivityClass
    source: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class Touch:
    """All activity of one sandbox since the last flush: the newest act and the passive count."""

    sandbox_id: str
    active: Activity | None
    passive: Activity | None


def fold(sandbox_id: str, activities: Iterable[Activity], *, before: Touch | None = None) -> Touch:
    """Fold activity in any order into one touch: the newest act wins, passive ones are counted.

    When two acts have the same time, intent wins over work, so the order of arrival does not
    matter.
    """
    active = before.active if before else None
    passive = before.passive if before else None
    for item in activities:
        if item.kind.keeps_awake:
            if active is None or _rank(item) > _rank(active):
                active = item
        elif passive is None:
            passive = item
        else:
            newest = max(passive, item, key=lambda one: (one.at, one.source))
            passive = Activity(
                at=newest.at,
                kind=ActivityClass.PASSIVE,
                source=newest.source,
                count=passive.count + item.count,
            )
    return Touch(sandbox_id=sandbox_id, active=active, passive=passive)


def _rank(item: Activity) -> tuple[datetime, bool, str]:
    return item.at, item.kind is ActivityClass.INTENT, item.source
