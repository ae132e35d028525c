"""The record of a sandbox. It outlives its instances: one row per owner, kept after the end."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from sandkeeper.domain.activity import ActivityClass
from sandkeeper.domain.observe.observation import ObservedStatus
from sandkeeper.domain.owner import Owner
from sandkeeper.domain.policy import Launch, Policy
from sandkeeper.domain.receipt import WakeSummary
from sandkeeper.domain.states import KilledReason, State
from sandkeeper.domain.tenant import DEFAULT_TENANT
from sandkeeper.domain.work import Work


class ClaimKind(StrEnum):
    """Which operation holds the row."""

    CREATE = "create"
    PAUSE = "pause"
    WAKE = "wake"
    KILL = "kill"
    EXTEND = "extend"
    SWEEP = "sweep"


@dataclass(frozen=True, slots=True)
class Claim:
    """A lease on a row. After ``until`` it has no effect: no cleanup is needed."""

    kind: ClaimKind
    holder: str
    until: datetime


@dataclass(frozen=True, slots=True)
class CurrentRun:
    """The current run of the instance. Empty while the sandbox is not running."""

    run_id: str | None = None
    run_started_at: datetime | None = None
    url: str | None = None
    ready: bool = False
    expires_at: datetime | None = None
    """When our policy ends the run."""
    end_at: datetime | None = None
    """When the provider ends the run unless it is extended."""
    end_as_of: datetime | None = None
    """When ``end_at`` was read."""
    warmed_at: datetime | None = None
    """When the run was started by a warm-up."""
    app_down_at: datetime | None = None
    """When a probe found that the app does not answer; None while it answers or first starts."""
    app_exit_code: int | None = None
    """How the app ended, if it did."""

    @property
    def end(self) -> datetime | None:
        """Return when the run ends: by our policy or at the provider, whichever is earlier."""
        return min((at for at in (self.expires_at, self.end_at) if at is not None), default=None)


@dataclass(frozen=True, slots=True)
class LastActivity:
    """The newest activity of each kind, the longest lease and the learned gaps."""

    last_active_at: datetime | None = None
    last_active_class: ActivityClass | None = None
    last_active_source: str | None = None
    passive_count: int = 0
    passive_at: datetime | None = None
    passive_source: str | None = None
    leased_until: datetime | None = None
    gaps: str = ""


@dataclass(frozen=True, slots=True)
class IdleStats:
    """Pauses by the idle sweep, pauses that came too early, and the idle time before them."""

    paused_by_scheduler_at: datetime | None = None
    idle_pauses: int = 0
    early_pauses: int = 0
    idle_tail_ms: int = 0


@dataclass(frozen=True, slots=True)
class Sightings:
    """The clock by which ``absorb`` orders observations, and the result of verifications."""

    observed_at: datetime | None = None
    state_as_of: datetime | None = None
    """Since when the state is known, by the clock of its source."""
    state_received_at: datetime | None = None
    """The same by our own clock."""
    acted_at: datetime | None = None
    """When our own call caused the current state."""
    last_event_at: datetime | None = None
    """The time, kind and id of the newest provider event."""
    last_event_seen: ObservedStatus | None = None
    last_event_id: str | None = None
    last_webhook_at: datetime | None = None
    last_verified_at: datetime | None = None
    verification_failures: int = 0
    unreachable_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class LastEnd:
    """How the last instance ended, and whether the current one replaced it."""

    killed_at: datetime | None = None
    killed_reason: KilledReason | None = None
    recreated: bool = False
    recreation_reason: str | None = None


GROUPS: Final[dict[str, type[CurrentRun | LastActivity | IdleStats | Sightings | LastEnd]]] = {
    "run": CurrentRun,
    "activity": LastActivity,
    "idle_stats": IdleStats,
    "sightings": Sightings,
    "last_end": LastEnd,
}
"""The fields of ``Sandbox`` that are groups. No two groups share a field name."""

GROUP_OF: Final[dict[str, str]] = {
    item.name: group for group, kind in GROUPS.items() for item in fields(kind)
}


@dataclass(frozen=True, slots=True)
class Sandbox:
    """What we know about one sandbox.

    A column of its row is a field here or in a group. ``absorb`` (domain.observe.transitions, with
    clock_bounds) and ``begin_generation`` (domain.decisions.generation) compute most changes; these
    are all modules that choose new values:

    ==============  ==============================================================================
    field           written by
    ==============  ==============================================================================
    state, reason,  absorb, begin_generation; services.lifecycle.lost_creations ends a record whose
    actor           instance was never found; ``reason``: store.sessions.pools
    owner, policy,  services.lifecycle.creation, services.observe.adoption; store.sessions.pools
    launch, tenant  when a session claims a pooled sandbox
    instance_id,    absorb, begin_generation (also ``generation``)
    isolation, size
    run             absorb, begin_generation; ``expires_at``: services.lifecycle.lifecycle and
                    store.sessions.pools;
                    ``ready``: services.lifecycle.creation and lost_creations; ``ready``, ``url``
                    and how the app does: services.wake (executor, wakes, app_monitor,
                    after_resume); ``warmed_at``: services.wake.prewarm
    activity        store.sandboxes.activity_sql, store.sessions.leases and pools; ``gaps``:
                    store.sessions.usage_history. A save never writes this group
    idle_stats      absorb, begin_generation; ``idle_pauses`` and ``idle_tail_ms``:
                    services.lifecycle.lifecycle
    sightings       absorb, begin_generation; store.sandboxes.repository.confirm
    last_end        absorb, begin_generation; services.lifecycle.lost_creations
    wake            services.wake (progress, after_resume)
    work            services.lifecycle.lifecycle; begin_generation
    claim           store.sandboxes.repository, services.lifecycle (claims, creation)
    next_check_at   absorb, begin_generation; services.lifecycle (creation, lifecycle, claims,
                    verification, lost_creations); store.sandboxes.repository;
                    store.sessions.leases and pools
    ==============  ==============================================================================
    """

    id: str
    owner: Owner
    provider: str
    created_at: datetime
    updated_at: datetime
    state_since: datetime
    state: State = State.STARTING
    reason: str = "created"
    actor: str = "api"
    version: int = 1
    generation: int = 1
    instance_id: str | None = None
    isolation: str | None = None
    """What isolates the instance, as its provider told; None until it did."""
    vcpus: int | None = None
    memory_mb: int | None = None
    """The size of the instance, as its provider told; None until it did."""
    region: str | None = None
    launch: Launch = field(default_factory=Launch)
    policy: Policy = field(default_factory=Policy)
    tenant: str = DEFAULT_TENANT

    run: CurrentRun = field(default_factory=CurrentRun)
    activity: LastActivity = field(default_factory=LastActivity)
    idle_stats: IdleStats = field(default_factory=IdleStats)
    sightings: Sightings = field(default_factory=Sightings)
    last_end: LastEnd = field(default_factory=LastEnd)

    wake: WakeSummary | None = None
    work: Work | None = None
    claim: Claim | None = None
    next_check_at: datetime | None = None

    @property
    def active_at(self) -> datetime:
        """Return the start of the idle time: the last act, the wake, or the creation."""
        known = (self.activity.last_active_at, self.run.run_started_at, self.created_at)
        return max(at for at in known if at is not None)

    @property
    def last_used_at(self) -> datetime:
        """Return the last act; before the first one, when it was started."""
        return self.activity.last_active_at or self.active_at

    @property
    def as_of(self) -> datetime:
        """Return the time of the newest knowledge in this record."""
        known = (self.sightings.last_verified_at, self.sightings.observed_at, self.created_at)
        return max(at for at in known if at is not None)

    @property
    def is_warm(self) -> bool:
        """Return True while it runs only because of a warm-up and has not been used since."""
        if self.run.warmed_at is None or self.run.run_started_at is None:
            return False
        return (
            self.activity.last_active_at is None
            or self.activity.last_active_at < self.run.warmed_at
        )

    @property
    def is_paused_by_sweep(self) -> bool:
        """Return True while it is paused and the idle sweep did it, not a caller."""
        return self.state is State.PAUSED and self.idle_stats.paused_by_scheduler_at is not None

    @property
    def is_end_ours(self) -> bool:
        """Return True when we ended the instance and no event or check reported the end."""
        is_missed = self.last_end.killed_reason is KilledReason.NOT_FOUND
        return self.state.is_ended and self.sightings.acted_at is not None and not is_missed

    @property
    def may_be_alive(self) -> bool:
        """Return True for an end that only an event or a check reported: it may be contradicted."""
        return self.state.is_ended and self.instance_id is not None and not self.is_end_ours

    @property
    def has_outdated_app(self) -> bool:
        """Return True when the last wake left the app alone, and restored files under it."""
        receipt = None if self.wake is None else self.wake.receipt
        return receipt is not None and receipt.is_app_outdated

    def is_claimed(self, now: datetime) -> bool:
        """Return True while a claim on it has not expired."""
        return self.claim is not None and self.claim.until > now

    def is_waking(self, now: datetime) -> bool:
        """Return True while a wake is in progress, even if a crash left it without a driver."""
        if self.wake is not None and self.wake.step is not None:
            return self.wake.is_shown
        if self.state is State.RUNNING or self.claim is None:
            return False  # At most its app is started.
        return self.claim.kind is ClaimKind.WAKE and self.is_claimed(now)

    def is_stale(self, now: datetime, stale_after_s: float) -> bool:
        """Return True when a live record was not confirmed for too long."""
        return self.state.is_live and now - self.as_of > timedelta(seconds=stale_after_s)

    def evolve(self, **changes: object) -> Sandbox:
        """Return a copy with some fields changed; a group's field is named without its group.

        ``sandbox.evolve(state=State.RUNNING, ready=True)`` changes ``run.ready``.
        """
        grouped: dict[str, dict[str, Any]] = {}
        for name in changes.keys() & GROUP_OF.keys():
            grouped.setdefault(GROUP_OF[name], {})[name] = changes.pop(name)
        for group, values in grouped.items():
            changes[group] = replace(changes.get(group, getattr(self, group)), **values)  # type: ignore[type-var]
        return replace(self, **changes)  # type: ignore[arg-type]  # Fields vary in type.
