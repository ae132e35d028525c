"""Replay recorded use under another policy, through the functions that decide in production.

The idle decision, the learned timeout, the record's transitions and the rule for pauses that came
too early are the real ones; only the provider is left out. A run's maximum lifetime is not
replayed. Nothing of a replay is ever stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from sandkeeper.domain.decisions.adaptive_timeout import add_gap
from sandkeeper.domain.decisions.idle import Keep, Pause, decide_idle
from sandkeeper.domain.observe.observation import Observation, ObservedStatus, Source
from sandkeeper.domain.observe.transitions import StateChange, absorb
from sandkeeper.domain.owner import SCHEDULER_ACTOR, Owner
from sandkeeper.domain.policy import IdleAction, Policy
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import State

STEPS_MAX: Final = 1000
"""Decisions between two uses. The idle decision needs two; more would be a loop."""

USER: Final = "user"
"""The actor of what a person does in a replay."""

Use = tuple[datetime, datetime, bool]
"""From when to when a sandbox was used, and whether it was stopped then by other than idleness."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a policy would have led to. Each wake kept a person waiting."""

    running_s: float = 0.0
    pauses: int = 0
    early: int = 0
    wakes: int = 0

    def __add__(self, other: Replayed) -> Replayed:
        return Replayed(
            self.running_s + other.running_s,
            self.pauses + other.pauses,
            self.early + other.early,
            self.wakes + other.wakes,
        )


def replay(uses: Sequence[Use], policy: Policy, *, until: datetime) -> Replayed:
    """Return what the policy would have done with a sandbox that was used like this.

    It runs from its first use on, and whatever is unused at ``until`` runs until its pause is due.
    """
    if not uses:
        return Replayed()
    # It sleeps where it would end: the end of a session is no cost of another policy.
    policy = replace(policy, lifetime_s=None, on_idle=IdleAction.PAUSE)
    sandbox = _begin(uses[0][0], policy)
    total = Replayed()
    starts = [use[0] for use in uses[1:]] + [until]
    for (start, end, stopped), next_at in zip(uses, starts, strict=True):
        if not stopped or start < end:
            sandbox, woken = _use(sandbox, start, end)
            total += woken
        if sandbox.run.run_started_at is None:
            continue  # It was stopped while it would have slept.
        stop_at = end if stopped else _find_pause(sandbox, end, next_at)
        if stop_at is not None:
            ran_s = (stop_at - sandbox.run.run_started_at).total_seconds()
            total += Replayed(running_s=ran_s, pauses=not stopped)
            actor = USER if stopped else SCHEDULER_ACTOR
            sandbox = _observe(sandbox, ObservedStatus.PAUSED, stop_at, actor)
    if sandbox.run.run_started_at is not None:
        ran_s = (until - sandbox.run.run_started_at).total_seconds()
        total += Replayed(running_s=max(0.0, ran_s))
    return total


def _begin(at: datetime, policy: Policy) -> Sandbox:
    waiting = Sandbox(
        id="replayed",
        owner=Owner.project("replayed"),
        provider="replayed",
        created_at=at,
        updated_at=at,
        state_since=at,
        instance_id="replayed",
        policy=policy,
    )
    return _observe(waiting, ObservedStatus.RUNNING, at, USER)


def _observe(sandbox: Sandbox, seen: ObservedStatus, at: datetime, actor: str) -> Sandbox:
    """Return the record after the provider's reply, as in production."""
    reply = Observation("replayed", seen, at, Source.REPLY, actor=actor)
    changed = absorb(sandbox, reply)
    return changed.sandbox if isinstance(changed, StateChange) else sandbox


def _use(sandbox: Sandbox, start: datetime, end: datetime) -> tuple[Sandbox, Replayed]:
    """Return the sandbox after a use of it, woken if it slept, and what that took."""
    woken = Replayed()
    last_at = sandbox.last_used_at
    gaps = add_gap(sandbox.activity.gaps, (start - last_at).total_seconds())
    if sandbox.state is State.PAUSED:
        before = sandbox.idle_stats.early_pauses
        sandbox = _observe(sandbox, ObservedStatus.RUNNING, start, USER)
        woken = Replayed(wakes=1, early=sandbox.idle_stats.early_pauses - before)
    used = replace(sandbox.activity, last_active_at=max(last_at, end), gaps=gaps)
    return replace(sandbox, activity=used), woken


def _find_pause(sandbox: Sandbox, at: datetime, next_at: datetime) -> datetime | None:
    """Return when the sandbox is paused before its next use; None if it runs until then."""
    for _ in range(STEPS_MAX):
        decision = decide_idle(sandbox, now=at)
        if isinstance(decision, Pause):
            return max(decision.due_at, at) if decision.due_at < next_at else None
        if not isinstance(decision, Keep) or decision.until is None or decision.until >= next_at:
            return None
        at = max(decision.until, at + timedelta(milliseconds=1))
    return None
