"""The record of a sandbox. It outlives its instances: one row per owner, kept after the end."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum

from sandkeeper.domain.activity import ActivityClass
from sandkeeper.domain.observation import ObservedStatus
from sandkeeper.domain.owner import Owner
from sandkeeper.domain.policy import Launch, Policy
from sandkeeper.domain.receipt import WakeSummary
from sandkeeper.domain.states import KilledReason, State


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
    """A lease on a row. Past ``until`` it is as if it were not there: no reaper is needed."""

    kind: ClaimKind
    holder: str
    until: datetime


@dataclass(frozen=True, slots=True)
class Sandbox:
    """What we know of one sandbox.

    Written by three hands only: ``absorb`` sets what was observed (state, run, ends, verification),
    ``store.sandboxes.touch`` and ``store.leases`` the activity, and ``store.sandboxes.claim`` the
    claim. Whoever pauses the idle counts that with it.
    """

    id: str
    owner: Owner
    provider: str
    created_at: datetime
    updated_at: datetime
    state_since: datetime
    state: State = State.STARTING
    version: int = 1
    generation: int = 1
    launch: Launch = field(default_factory=Launch)
    policy: Policy = field(default_factory=Policy)
    region: str | None = None

    # The present instance and its present run.
    instance_id: str | None = None
    run_id: str | None = None
    run_started_at: datetime | None = None
    url: str | None = None
    ready: bool = False
    reason: str = "created"
    actor: str = "api"

    # Ends: ours by policy, and the provider's own clock with the time at which it was read.
    expires_at: datetime | None = None
    end_at: datetime | None = None
    end_as_of: datetime | None = None

    # Activity.
    last_active_at: datetime | None = None
    last_active_class: ActivityClass | None = None
    last_active_source: str | None = None
    passive_count: int = 0
    passive_at: datetime | None = None
    passive_source: str | None = None
    leased_until: datetime | None = None
    gaps: str = ""

    # What idling cost: pauses, those that came too early, and the time that ran before them.
    idle_pauses: int = 0
    early_pauses: int = 0
    idle_tail_ms: int = 0

    # When it was last resumed ahead of its user.
    warmed_at: datetime | None = None

    # Verification and the order of what was seen.
    last_verified_at: datetime | None = None
    verification_failures: int = 0
    unreachable_at: datetime | None = None
    observed_at: datetime | None = None
    state_as_of: datetime | None = None
    state_received_at: datetime | None = None
    acted_at: datetime | None = None
    edge_at: datetime | None = None
    edge_seen: ObservedStatus | None = None
    edge_id: str | None = None
    last_webhook_at: datetime | None = None

    # The end of the last instance, and the next one's beginning.
    killed_at: datetime | None = None
    killed_reason: KilledReason | None = None
    paused_by_scheduler_at: datetime | None = None
    recreated: bool = False
    recreation_reason: str | None = None
    wake: WakeSummary | None = None

    claim: Claim | None = None
    next_check_at: datetime | None = None

    @property
    def active_at(self) -> datetime:
        """The instant from which idle time counts: the last act, the wake, or the birth."""
        known = (self.last_active_at, self.run_started_at, self.created_at)
        return max(at for at in known if at is not None)

    @property
    def as_of(self) -> datetime:
        """How old the knowledge in this record is."""
        known = (self.last_verified_at, self.observed_at, self.created_at)
        return max(at for at in known if at is not None)

    @property
    def is_warm(self) -> bool:
        """True while it runs only because it was warmed up: nobody acted since."""
        if self.warmed_at is None or self.run_started_at is None:
            return False
        return self.last_active_at is None or self.last_active_at < self.warmed_at

    @property
    def is_paused_by_sweep(self) -> bool:
        """True when the idle sweep, and nobody by hand, put it to sleep."""
        return self.paused_by_scheduler_at is not None

    @property
    def is_end_ours(self) -> bool:
        """True when we ended the instance ourselves, and were told so by no event or look."""
        is_missed = self.killed_reason is KilledReason.NOT_FOUND
        return self.state.is_ended and self.acted_at is not None and not is_missed

    @property
    def may_be_alive(self) -> bool:
        """True for an end that only an event or a look told of: the provider may say otherwise."""
        return self.state.is_ended and self.instance_id is not None and not self.is_end_ours

    def is_claimed(self, now: datetime) -> bool:
        """True while somebody's claim has not run out."""
        return self.claim is not None and self.claim.until > now

    def is_waking(self, now: datetime) -> bool:
        """True while a wake is under way, also while nobody drives it because of a crash."""
        if self.wake is not None and self.wake.step is not None:
            return self.wake.is_shown
        return self.claim is not None and self.claim.kind is ClaimKind.WAKE and self.is_claimed(now)

    def is_stale(self, now: datetime, stale_after_s: float) -> bool:
        """True when a live record was not confirmed for too long."""
        return self.state.is_live and now - self.as_of > timedelta(seconds=stale_after_s)

    def evolve(self, **changes: object) -> Sandbox:
        """A copy with some fields changed."""
        return replace(self, **changes)  # type: ignore[arg-type]  # Fields vary in type.
