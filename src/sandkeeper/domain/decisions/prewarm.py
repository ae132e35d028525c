"""Warm-ups: resume a sleeping sandbox before its user asks, within a budget.

A warm-up is requested, for example when a user opens a project's page; reading a status still wakes
nothing. It resumes and never creates a new instance. It does not count as use, and a sandbox that
is not used within its grace is paused again. A warm-up over the budget is reported and not done.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import KilledReason, State

PREWARM_ACTOR: Final = "warm-up"
"""The actor of a resume that no caller is waiting for yet."""

HOUR: Final = timedelta(hours=1)

START: Final = timedelta(seconds=30)
"""After this time, with no wake in progress, an unclear warm-up does not become clearer."""


class PrewarmOutcome(StrEnum):
    """How a warm-up ended."""

    USED = "used"
    """The sandbox was used: its user did not have to wait."""
    UNUSED = "unused"
    """The sandbox was not used: the warm-up was wasted."""
    FAILED = "failed"
    """The sandbox did not start, or was gone."""


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
    """How much may be warmed up: at a time and within an hour, for the fleet and for one owner."""

    at_once: int
    per_hour: int
    per_owner_hour: int


@dataclass(frozen=True, slots=True)
class PrewarmsSpent:
    """The part of the budget in use now, and whether the sandbox has an open warm-up."""

    at_once: int
    last_hour: int
    owner_last_hour: int
    is_open: bool = False


def find_refusal(sandbox: Sandbox) -> str | None:
    """Return why this sandbox is not warmed up, whatever the budget; None if it may be."""
    if sandbox.state is State.PAUSED and sandbox.instance_id is not None:
        return None
    return f"it is {sandbox.state.value}, and only a sandbox that sleeps is warmed up"


def find_excess(spent: PrewarmsSpent, budget: PrewarmBudget) -> str | None:
    """Return the part of the budget that one more would exceed; None if it fits."""
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
    """Return how the warm-up ended, judged by the current state; None while it is open."""
    if sandbox is None:
        return PrewarmOutcome.FAILED
    active_at = sandbox.activity.last_active_at
    if active_at is not None and active_at >= warm_up.started_at:
        return PrewarmOutcome.USED
    if sandbox.is_warm or is_waking:
        return None
    return _find_waste(warm_up, sandbox, is_young=now - warm_up.started_at <= START)


def _find_waste(warm_up: Prewarm, sandbox: Sandbox, *, is_young: bool) -> PrewarmOutcome | None:
    """Return the outcome of a warm-up that was not used and whose run is over: wasted or failed."""
    if sandbox.state.is_ended:
        was_gone = sandbox.last_end.killed_reason is KilledReason.NOT_FOUND
        return PrewarmOutcome.FAILED if was_gone else PrewarmOutcome.UNUSED
    if sandbox.state is State.PAUSED and sandbox.state_since > warm_up.started_at:
        return PrewarmOutcome.UNUSED
    if is_young:
        return None
    return PrewarmOutcome.UNUSED if sandbox.state is State.RUNNING else PrewarmOutcome.FAILED
