"""Explain why a sandbox is awake or asleep, and what happens to it next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from sandkeeper.domain.decisions.adaptive_timeout import explain_idle_timeout
from sandkeeper.domain.decisions.idle import (
    Extend,
    Keep,
    Kill,
    Pause,
    Verify,
    awaits_work_check,
    compute_threshold_s,
    decide_idle,
    find_idle_due_at,
)
from sandkeeper.domain.owner import PROVIDER_ACTOR
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.sessions.lease import Lease
from sandkeeper.domain.states import State
from sandkeeper.domain.texts.presentation import (
    Presentation,
    find_shown_state,
    find_truth,
    format_duration,
    word_truth,
)


@dataclass(frozen=True, slots=True)
class Explanation:
    """The answers of ``explain``."""

    state: State
    label: str
    caption: str
    """The words of the status."""
    since: datetime
    why: str
    actor: str
    last_active_at: datetime
    """Before the first act, when it was started; ``last_active_class`` is None then."""
    last_active_class: str | None
    last_active_source: str | None
    ignored_passive_count: int
    ignored_passive_at: datetime | None
    ignored_passive_source: str | None
    idle_timeout_s: float | None
    idle_timeout_why: str
    idle_pauses: int
    early_pauses: int
    idle_tail_s: float
    next_rule: str
    next_at: datetime | None
    prevented_by: tuple[str, ...]
    work: str | None
    as_of: datetime
    leases: tuple[Lease, ...] = ()
    last_failure: str | None = None
    """Why the last act of the keeper failed, if that was in this state."""
    last_failure_at: datetime | None = None
    files: str | None = None
    """What is known of the saving of its files, if it is not as quick as usual."""


SILENCE: Final = "the provider does not answer"
ACTIVITY: Final = "any activity of class intent or work"


def explain(
    sandbox: Sandbox,
    leases: Sequence[Lease] = (),
    *,
    now: datetime,
    provider_down_since: datetime | None = None,
) -> Explanation:
    """Explain everything that decided the current state and will decide the next one."""
    words = word_truth(find_truth(sandbox, now=now, provider_down_since=provider_down_since))
    found = _explain(sandbox, leases, words, now)
    state = find_shown_state(sandbox, is_provider_down=provider_down_since is not None)
    if provider_down_since is None or state is sandbox.state:
        return found
    return replace(
        found,
        state=state,
        since=provider_down_since,
        why=SILENCE,
        actor=PROVIDER_ACTOR,
        next_rule=f"when the provider answers again: {found.next_rule}",
    )


def _explain(
    sandbox: Sandbox, leases: Sequence[Lease], words: Presentation, now: datetime
) -> Explanation:
    idle_timeout = explain_idle_timeout(sandbox)
    # What was learned so far applies next: only an act can change it.
    policy = replace(
        sandbox.policy, idle_timeout_s=idle_timeout.seconds, idle_min_s=None, idle_max_s=None
    )
    rule, at, prevented_by = _next(sandbox.evolve(policy=policy), now)
    active_class = sandbox.activity.last_active_class
    return Explanation(
        state=sandbox.state,
        label=words.label,
        caption=words.caption,
        since=sandbox.state_since,
        why=sandbox.reason,
        actor=sandbox.actor,
        last_active_at=sandbox.last_used_at,
        last_active_class=active_class.value if active_class else None,
        last_active_source=sandbox.activity.last_active_source,
        ignored_passive_count=sandbox.activity.passive_count,
        ignored_passive_at=sandbox.activity.passive_at,
        ignored_passive_source=sandbox.activity.passive_source,
        idle_timeout_s=idle_timeout.seconds,
        idle_timeout_why=idle_timeout.why,
        idle_pauses=sandbox.idle_stats.idle_pauses,
        early_pauses=sandbox.idle_stats.early_pauses,
        idle_tail_s=sandbox.idle_stats.idle_tail_ms / 1000,
        next_rule=rule,
        next_at=at,
        prevented_by=prevented_by,
        work=_describe_work(sandbox, now),
        as_of=sandbox.as_of,
        leases=tuple(leases),
    )


def _next(sandbox: Sandbox, now: datetime) -> tuple[str, datetime | None, tuple[str, ...]]:
    claim = sandbox.claim
    if claim is not None and claim.until > now:
        return f"a {claim.kind.value} by {claim.holder} is under way", claim.until, ()
    decision = decide_idle(sandbox, now=now)
    match decision:
        case Pause() | Kill():
            return _due(sandbox, decision)
        case Extend(to=to, reason=reason):
            return f"extend its lifetime: {reason}", to, ()
        case Verify(reason=reason):
            return f"verify at the provider: {reason}", now, ()
        case Keep(until=until):
            return _waiting(sandbox, until)


def _due(sandbox: Sandbox, decision: Pause | Kill) -> tuple[str, datetime, tuple[str, ...]]:
    """Return what is due now; for idleness it comes after a check whether known work still runs."""
    is_for_idleness = isinstance(decision, Pause) or decision.state is State.TERMINATED
    if is_for_idleness and awaits_work_check(sandbox, decision.due_at):
        return _work_check(sandbox), decision.due_at, (ACTIVITY,)
    if isinstance(decision, Pause):
        return f"pause: {decision.reason}", decision.due_at, (ACTIVITY,)
    rule = f"end as {decision.state.value}: {decision.reason}"
    return rule, decision.due_at, ("an extension of its lifetime",)


def _waiting(
    sandbox: Sandbox, until: datetime | None
) -> tuple[str, datetime | None, tuple[str, ...]]:
    """Return the rule that applies next while nothing is due."""
    if sandbox.state is not State.RUNNING:
        if until is not None:
            rule = "its sleep ends" if sandbox.state is State.PAUSED else "verify at the provider"
            return rule, until, ("a wake",)
        return "nothing, until it is woken", None, ()
    idle_due = find_idle_due_at(sandbox)
    if idle_due is not None and (until is None or idle_due <= until):
        threshold = format_duration(compute_threshold_s(sandbox) or 0)
        verb = sandbox.policy.on_idle.value
        rule = f"{verb} after {threshold} without activity"
        if awaits_work_check(sandbox, idle_due):
            rule = _work_check(sandbox)
        elif sandbox.is_warm:
            rule = f"pause again: it was warmed up and not used for {threshold}"
        return rule, idle_due, (ACTIVITY,)
    if until is None:
        return "nothing: its policy sets no limit", None, ()
    if sandbox.policy.extend_while_active:
        return "extend its lifetime while it is in use", until, ("becoming idle before that",)
    return "end as EXPIRED: its lifetime is over", until, ("an extension of its lifetime",)


def _work_check(sandbox: Sandbox) -> str:
    verb = "pause" if sandbox.is_warm else sandbox.policy.on_idle.value
    return f"check whether its work still runs, and {verb} if it does not"


def _describe_work(sandbox: Sandbox, now: datetime) -> str | None:
    """Return what runs inside and whether it keeps the sandbox awake; None if nothing was seen."""
    work, max_s = sandbox.work, sandbox.policy.work_max_s
    if sandbox.state is not State.RUNNING or work is None or not work.found:
        return None
    seen = f"seen {format_duration(round((now - work.seen_at).total_seconds()))} ago"
    item = work.find_counting(max_s)
    if item is None:
        most = format_duration(max_s)
        return f"{work.found[-1].text}, {seen}, counts no longer: it ran for more than {most}"
    until = item.since + timedelta(seconds=max_s)
    return f"{item.text}, {seen}, keeps it awake until {until:%H:%M:%S} UTC at the latest"
