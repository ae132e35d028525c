"""Warm-ups: a sleeping sandbox is resumed before its user asks, within a budget.

A warm-up is asked for, as when somebody lands on a project's page; looking alone still wakes
nothing. It resumes and never makes a new instance, it does not count as use, and a sandbox that
nobody used within its grace sleeps again. What is over the budget is told and not done.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import KilledReason, State

PREWARM_ACTOR: Final = "warm-up"
"""The actor of a resume that nobody waited for yet."""

HOUR: Final = timedelta(hours=1)

START: Final = timedelta(seconds=30)
"""What is unclear of a warm-up after this time, with no wake under way, becomes no clearer."""


class PrewarmOutcome(StrEnum):
    """What became of a warm-up."""

    USED = "used"
    """Somebody came: they did not have to wait."""
    UNUSED = "unused"
    """Nobody came: it ran for nothing."""
    FAILED = "failed"
    """It did not come up, or was gone."""


@dataclass(frozen=True, slots=True)
class Prewarm:
    """One warm-up; open until its outcome is known."""

    id: str
    sandbox_id: str
    actor: str
    started_at: datetime
    outcome: PrewarmOutcome | None = None
    settled_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class PrewarmBudget:
    """How much may be warmed up: at a time, and within an hour, of the fleet and of one owner."""

    at_once: int
    per_hour: int
    per_owner_hour: int


@dataclass(frozen=True, slots=True)
class PrewarmsSpent:
    """What of the budget is used up at this moment, and whether the sandbox has an open one."""

    at_once: int
    last_hour: int
    owner_last_hour: int
    is_open: bool = False


def find_refusal(sandbox: Sandbox) -> str | None:
    """Why this sandbox is not warmed up, whatever the budget; None if it may be."""
    if sandbox.state is State.PAUSED and sandbox.instance_id is not None:
        return None
    return f"it is {sandbox.state.value}, and only a sandbox that sleeps is warmed up"


def find_excess(spent: PrewarmsSpent, budget: PrewarmBudget) -> str | None:
    """Which part of the budget one more would exceed; None if it fits."""
    if spent.at_once >= budget.at_once:
        return f"{spent.at_once} warmed-up sandboxes wait for their users already"
    if spent.last_hour >= budget.per_hour:
        return f"there were {spent.last_hour} warm-ups within the last hour"
    if spent.owner_last_hour >= budget.per_owner_hour:
        return f"this sandbox was warmed up {spent.owner_last_hour} times within the last hour"
    return None


def find_outcome(
    warm_up: Prewarm, sandbox: Sandbox | None, *, is_waking: bool, now: datetime
) -> PrewarmOutcome | None:
    """How the warm-up ended, by what is true now; None while that is open."""
    if sandbox is None:
        return PrewarmOutcome.FAILED
    active_at = sandbox.activity.last_active_at
    if active_at is not None and active_at >= warm_up.started_at:
        return PrewarmOutcome.USED
    if sandbox.is_warm or is_waking:
        return None
    return _find_waste(warm_up, sandbox, is_young=now - warm_up.started_at <= START)


def _find_waste(warm_up: Prewarm, sandbox: Sandbox, *, is_young: bool) -> PrewarmOutcome | None:
    """Whether it ran for nothing or not at all, when nobody used it and its run is over."""
    if sandbox.state.is_ended:
        was_gone = sandbox.last_end.killed_reason is KilledReason.NOT_FOUND
        return PrewarmOutcome.FAILED if was_gone else PrewarmOutcome.UNUSED
    if sandbox.state is State.PAUSED and sandbox.state_since > warm_up.started_at:
        return PrewarmOutcome.UNUSED
    if is_young:
        return None
    return PrewarmOutcome.UNUSED if sandbox.state is State.RUNNING else PrewarmOutcome.FAILED
