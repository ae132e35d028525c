"""Decide when a sandbox is paused, ended or verified. Pure, so each answer can be explained."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sandkeeper.domain.decisions.adaptive_timeout import compute_idle_timeout_s
from sandkeeper.domain.policy import IdleAction
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import State

STARTING_CHECK_S: Final = 120.0
"""A creation without an answer is verified after this time; the create call may have been lost."""

UNKNOWN_CHECK_S: Final = 30.0
"""How often an unreachable sandbox is verified again; equals the breaker's pause."""

EXTEND_MARGIN_S: Final = 60.0
"""How long before its end a sandbox in use is extended, so that a slow call is still in time."""


@dataclass(frozen=True, slots=True)
class Keep:
    """Leave it as it is; nothing can be due before ``until``."""

    until: datetime | None
    why: str


@dataclass(frozen=True, slots=True)
class Pause:
    """Pause it. ``due_at`` is when the pause was due: the lag counts from there."""

    due_at: datetime
    idle_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class Kill:
    """End it; the record becomes ``state``."""

    due_at: datetime
    state: State
    reason: str


@dataclass(frozen=True, slots=True)
class Extend:
    """Move the end to ``to``: the sandbox is in use and near its end."""

    to: datetime
    reason: str


@dataclass(frozen=True, slots=True)
class Verify:
    """Ask the provider: the record has been uncertain for too long."""

    reason: str


IdleDecision = Keep | Pause | Kill | Extend | Verify


def find_idle_due_at(sandbox: Sandbox) -> datetime | None:
    """Return when a running sandbox counts as idle; None if its policy never says so.

    A new sandbox and one that was just woken get their grace, however short the threshold is. A
    sandbox with a lease is in use until the lease ends. Work that the last check found counts like
    an act, up to its own limit. One that was warmed up and not used yet has only the warm-up's
    grace.
    """
    policy = sandbox.policy
    threshold_s = compute_threshold_s(sandbox)
    if threshold_s is None:
        return None
    due = [
        sandbox.active_at + timedelta(seconds=threshold_s),
        sandbox.created_at + timedelta(seconds=policy.newborn_grace_s),
    ]
    if sandbox.run.run_started_at is not None:
        due.append(sandbox.run.run_started_at + timedelta(seconds=policy.woken_grace_s))
    if sandbox.activity.leased_until is not None:
        due.append(sandbox.activity.leased_until)
    worked_until = _find_work_end(sandbox, threshold_s)
    if worked_until is not None:
        due.append(worked_until)
    return max(due)


def find_idle_since(sandbox: Sandbox) -> datetime:
    """Return the start of the idle time: the last act, start, or check that found work."""
    busy_at = None if sandbox.work is None else sandbox.work.busy_at
    return sandbox.active_at if busy_at is None else max(sandbox.active_at, busy_at)


def find_sleeps_at(sandbox: Sandbox) -> datetime | None:
    """Return when a running sandbox is paused if nothing happens; None if that is not known.

    It is not known while work inside may keep it awake: when the time comes, a check decides.
    """
    idle_due = find_idle_due_at(sandbox)
    return None if idle_due is None or awaits_work_check(sandbox, idle_due) else idle_due


def awaits_work_check(sandbox: Sandbox, idle_due: datetime) -> bool:
    """Return True when the work that is known may keep the sandbox awake after ``idle_due``."""
    latest = _find_work_limit(sandbox)
    return latest is not None and idle_due < latest


def _find_work_end(sandbox: Sandbox, threshold_s: float) -> datetime | None:
    latest = _find_work_limit(sandbox)
    if sandbox.work is None or latest is None:
        return None
    return min(sandbox.work.seen_at + timedelta(seconds=threshold_s), latest)


def _find_work_limit(sandbox: Sandbox) -> datetime | None:
    """Return until when the work that the last check found counts at the latest."""
    max_s = sandbox.policy.work_max_s
    item = None if sandbox.work is None else sandbox.work.find_counting(max_s)
    return None if item is None else item.since + timedelta(seconds=max_s)


def compute_threshold_s(sandbox: Sandbox) -> float | None:
    """Return how long it may be idle at present; None if forever."""
    timeout_s = compute_idle_timeout_s(sandbox)
    if timeout_s is None or not sandbox.is_warm:
        return timeout_s
    return min(timeout_s, sandbox.policy.warm_grace_s)


def decide_idle(sandbox: Sandbox, *, now: datetime) -> IdleDecision:
    """Return what is due for this sandbox now. Deciding again on a newer record is always safe."""
    if sandbox.state is State.RUNNING:
        return _decide_running(sandbox, now)
    if sandbox.state is State.PAUSED:
        return _decide_paused(sandbox, now)
    if sandbox.state is State.STARTING:
        return _decide_doubtful(sandbox, now, STARTING_CHECK_S, "the creation was never answered")
    if sandbox.state is State.UNKNOWN:
        return _decide_doubtful(sandbox, now, UNKNOWN_CHECK_S, "the provider could not be reached")
    return Keep(None, "it has ended")


def find_next_check_at(sandbox: Sandbox) -> datetime | None:
    """Return the first moment at which ``decide_idle`` can return anything but Keep."""
    decision = decide_idle(sandbox, now=sandbox.state_since)
    if isinstance(decision, Keep):
        return decision.until
    return sandbox.state_since


def _decide_running(sandbox: Sandbox, now: datetime) -> IdleDecision:
    idle_due = find_idle_due_at(sandbox)
    if idle_due is not None and now >= idle_due:
        return _idle(sandbox, idle_due, now)
    idle_due = _find_idle_look_at(sandbox, idle_due, now)
    expires_at = sandbox.run.expires_at
    if expires_at is None:
        return Keep(idle_due, "it is in use")
    extended = _find_extension(sandbox, now)
    extend_at = expires_at - timedelta(seconds=_extend_margin_s(sandbox))
    if extended is not None and now >= extend_at:
        return Extend(extended, "it is in use near the end of its lifetime")
    if now >= expires_at:
        return Kill(expires_at, State.EXPIRED, "its lifetime is over")
    checks = [expires_at if extended is None else max(extend_at, now + timedelta(seconds=1))]
    if idle_due is not None:
        checks.append(idle_due)
    return Keep(min(checks), "it is in use")


def _find_idle_look_at(
    sandbox: Sandbox, idle_due: datetime | None, now: datetime
) -> datetime | None:
    """Return when to check again.

    A learned threshold may shrink with an act, and acts move no deadline. So the sandbox is checked
    after the shortest threshold first, and then when it is due.
    """
    shortest_s = sandbox.policy.idle_min_s
    if idle_due is None or shortest_s is None:
        return idle_due
    first_look_at = sandbox.active_at + timedelta(seconds=shortest_s)
    return min(idle_due, first_look_at) if now < first_look_at else idle_due


def _idle(sandbox: Sandbox, due_at: datetime, now: datetime) -> Pause | Kill:
    idle_s = (now - find_idle_since(sandbox)).total_seconds()
    if sandbox.is_warm:
        # Independent of its policy: it slept before, and its user did not ask for its end.
        unused_s = (now - sandbox.active_at).total_seconds()
        return Pause(due_at, idle_s, f"warmed up and not used for {unused_s:.0f} s")
    reason = _word_idle(sandbox, due_at, idle_s)
    if sandbox.policy.on_idle is IdleAction.KILL:
        return Kill(due_at, State.TERMINATED, reason)
    return Pause(due_at, idle_s, reason)


def _word_idle(sandbox: Sandbox, due_at: datetime, idle_s: float) -> str:
    """Return why it counts as idle."""
    since = find_idle_since(sandbox)
    threshold_s = compute_threshold_s(sandbox) or 0.0
    over_at = since + timedelta(seconds=threshold_s)
    if due_at < over_at and due_at == _find_work_limit(sandbox):
        return f"the {sandbox.policy.work_max_s:.0f} s for which its work counts are over"
    after = " after its work ended" if since > sandbox.active_at else ""
    reason = f"idle for {idle_s:.0f} s{after}, threshold {threshold_s:.0f} s"
    # Otherwise the difference between the two would look like a delay.
    return f"{reason} once its grace or lease was over" if due_at > over_at else reason


def _find_extension(sandbox: Sandbox, now: datetime) -> datetime | None:
    """Return the new end that the policy allows, if it is later than the current one."""
    policy = sandbox.policy
    if (
        not policy.extend_while_active
        or policy.lifetime_s is None
        or sandbox.run.expires_at is None
    ):
        return None
    started_at = sandbox.run.run_started_at or sandbox.state_since
    cap = started_at + timedelta(seconds=policy.lifetime_max_s)
    wanted = max(now, sandbox.run.expires_at) + timedelta(seconds=policy.lifetime_s)
    allowed = min(wanted, cap)
    return allowed if allowed > sandbox.run.expires_at else None


def _extend_margin_s(sandbox: Sandbox) -> float:
    """Return the margin: a quarter of a short lifetime, or it would be extended all the time."""
    return min(EXTEND_MARGIN_S, (sandbox.policy.lifetime_s or EXTEND_MARGIN_S) / 4)


def _decide_paused(sandbox: Sandbox, now: datetime) -> IdleDecision:
    kept_s = sandbox.policy.paused_lifetime_s
    if kept_s is None:
        return Keep(None, "it is asleep")
    due_at = sandbox.state_since + timedelta(seconds=kept_s)
    if now >= due_at:
        return Kill(due_at, State.EXPIRED, "it was asleep for longer than its policy keeps it")
    return Keep(due_at, "it is asleep")


def _decide_doubtful(sandbox: Sandbox, now: datetime, after_s: float, reason: str) -> IdleDecision:
    since = max(sandbox.state_since, sandbox.sightings.unreachable_at or sandbox.state_since)
    due_at = since + timedelta(seconds=after_s)
    return Verify(reason) if now >= due_at else Keep(due_at, reason)
