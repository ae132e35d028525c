"""Count from the event log for how long each sandbox ran and slept, for whom, on which day.

A *meter* is where the counting of one sandbox stands. Every count is a difference between two
instants, so a count that went too far (an event arrived late) is taken back by counting backwards,
and time that is counted in many steps gives the same sums as in one. Days are days in UTC.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum

from sandkeeper.domain.events import EndExplained, OwnerChanged, SandboxCreated, StateChanged
from sandkeeper.domain.owner import Owner, OwnerKind
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import State
from sandkeeper.domain.tenant import DEFAULT_TENANT

METERED_TYPES = (SandboxCreated.type, StateChanged.type, OwnerChanged.type, EndExplained.type)
"""The events that begin, end or reassign what is counted."""

ENGINE = "engine"
"""The provider under which the local engine's sandboxes are counted and priced."""

_ENGINE_ISOLATIONS = frozenset({"bubblewrap", "gvisor"})
_MS = timedelta(milliseconds=1)


class Phase(StrEnum):
    """What a meter counts. An unreachable sandbox stays in its phase, as far as is known."""

    OFF = "off"
    RUNNING = "running"
    PAUSED = "paused"


@dataclass(frozen=True, slots=True)
class UsageAccount:
    """What usage is counted under. A size of 0 is not known yet; it is priced as the default."""

    owner: Owner
    tenant: str = DEFAULT_TENANT
    template: str = ""
    provider: str = "e2b"
    region: str = ""
    vcpus: int = 0
    memory_mb: int = 0


@dataclass(frozen=True, slots=True)
class UsageAmounts:
    """Amounts of one account on one day, in milliseconds and MiB-milliseconds.

    ``idle_ms`` is the part of ``running_ms`` between the last use and the end of the run,
    ``unused_ms`` that of warm-ups that were never used. ``timeout_ms`` is the part of ``paused_ms``
    in which the provider's timeout alone would have let the sandbox run on.
    """

    running_ms: int = 0
    paused_ms: int = 0
    idle_ms: int = 0
    unused_ms: int = 0
    timeout_ms: int = 0
    kept_mib_ms: int = 0

    def __add__(self, other: UsageAmounts) -> UsageAmounts:
        return UsageAmounts(*(getattr(self, name) + getattr(other, name) for name in USAGE_FIELDS))


USAGE_FIELDS = tuple(item.name for item in fields(UsageAmounts))


@dataclass(frozen=True, slots=True)
class Count:
    """Amounts of one sandbox on one day, under one account."""

    day: date
    sandbox_id: str
    account: UsageAccount
    usage: UsageAmounts


@dataclass(frozen=True, slots=True)
class Meter:
    """Where the counting of one sandbox stands.

    ``since`` is when its phase or its account began, and everything up to ``counted_to`` is
    counted. ``earlier`` is the phase before, which a late explanation of an end may shorten.
    ``timeout_at`` is when the provider's timeout would have ended the last run; None is never.
    """

    sandbox_id: str
    account: UsageAccount
    since: datetime
    counted_to: datetime
    phase: Phase = Phase.OFF
    run_started_at: datetime | None = None
    timeout_at: datetime | None = None
    kept_mib: int = 0
    earlier: Phase = Phase.OFF
    earlier_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class MeteredEvent:
    """The part of a log entry that is metered."""

    type: str
    sandbox_id: str
    owner: Owner
    at: datetime
    data: Mapping[str, object]


def make_account(sandbox: Sandbox, owner: Owner | None = None) -> UsageAccount:
    """Return the account of a sandbox, or the one it had while ``owner`` was its owner.

    A member of a pool is the default tenant's until a session claims it.
    """
    owner = owner or sandbox.owner
    was_pooled = owner != sandbox.owner and owner.kind is OwnerKind.POOL
    is_engine = sandbox.isolation in _ENGINE_ISOLATIONS
    return UsageAccount(
        owner=owner,
        tenant=DEFAULT_TENANT if was_pooled else sandbox.tenant,
        template=sandbox.launch.template or "",
        provider=ENGINE if is_engine else sandbox.provider,
        region=sandbox.region or "",
        vcpus=sandbox.vcpus or 0,
        memory_mb=sandbox.memory_mb or 0,
    )


def start_meter(sandbox: Sandbox) -> Meter:
    """Return the meter of a sandbox without entries in the log; it begins with its state."""
    began = Meter(sandbox.id, make_account(sandbox), sandbox.state_since, sandbox.state_since)
    phase = _find_phase(sandbox.state)
    if phase is None or phase is Phase.OFF:
        return began
    run_at = sandbox.run.run_started_at or sandbox.state_since
    return _enter(began, phase, sandbox.state_since, sandbox.policy.lifetime_s, run_at)


def advance(meter: Meter, to: datetime) -> tuple[Meter, list[Count]]:
    """Count up to an instant, or back to it if it is earlier."""
    counts = _count(meter, meter.phase, meter.counted_to, to)
    return replace(meter, counted_to=to), counts


def follow(
    meter: Meter | None, event: MeteredEvent, sandbox: Sandbox | None
) -> tuple[Meter | None, list[Count]]:
    """Apply one log entry; ``sandbox`` is its record as it is now, None if it was removed.

    Entries of one sandbox come in the order of the log. Without a record and a meter there is
    nothing to count under.
    """
    account = None if sandbox is None else make_account(sandbox, event.owner)
    if meter is None:
        if account is None:
            return None, []
        meter = Meter(event.sandbox_id, account, event.at, event.at)
    if account is not None and event.type != OwnerChanged.type:
        meter = replace(meter, account=_learn_size(meter.account, account))
    at = max(meter.since, event.at)
    if event.type == EndExplained.type:
        return _correct_end(meter, event.at)
    if event.type == OwnerChanged.type:
        meter, counts = advance(meter, at)
        return replace(meter, account=account or meter.account, since=at), counts
    if event.type != StateChanged.type:
        return meter, []
    lifetime_s = None if sandbox is None else sandbox.policy.lifetime_s
    return _change_state(meter, at, event.data, lifetime_s)


def refresh(meter: Meter, sandbox: Sandbox, kept_mib: int) -> Meter:
    """Return the meter with what is known now: a size that was learned, and the kept files."""
    known = _learn_size(meter.account, make_account(sandbox, meter.account.owner))
    return replace(meter, account=known, kept_mib=kept_mib)


def sum_by_day(counts: Iterable[Count]) -> dict[tuple[date, str, UsageAccount], UsageAmounts]:
    """Return the sums of counts by day, sandbox and account; empty ones are left out."""
    sums: dict[tuple[date, str, UsageAccount], UsageAmounts] = {}
    for one in counts:
        key = (one.day, one.sandbox_id, one.account)
        sums[key] = sums.get(key, UsageAmounts()) + one.usage
    return {key: usage for key, usage in sums.items() if usage != UsageAmounts()}


def split_days(start: datetime, end: datetime) -> Iterator[tuple[date, datetime, datetime]]:
    """Yield the days (UTC) that a span touches, each with the part of the span in it."""
    at = start
    while at < end:
        day = at.astimezone(UTC).date()
        next_day = datetime.combine(day + timedelta(days=1), time(), UTC)
        yield day, at, min(end, next_day)
        at = next_day


def _change_state(
    meter: Meter, at: datetime, data: Mapping[str, object], lifetime_s: float | None
) -> tuple[Meter, list[Count]]:
    phase = _find_phase(State(str(data["new_state"])))
    if phase is None or phase is meter.phase:
        return meter, []
    counted, counts = advance(meter, at)
    if meter.phase is Phase.RUNNING:
        counts += _count_waste(meter, at, data)
    return _enter(counted, phase, at, lifetime_s, at), counts


def _enter(
    meter: Meter, phase: Phase, at: datetime, lifetime_s: float | None, run_at: datetime
) -> Meter:
    entered = replace(meter, phase=phase, since=at, earlier=meter.phase, earlier_since=meter.since)
    if phase is not Phase.RUNNING:
        return entered
    timeout_at = None if lifetime_s is None else run_at + timedelta(seconds=lifetime_s)
    return replace(entered, run_started_at=run_at, timeout_at=timeout_at)


def _correct_end(meter: Meter, ended_at: datetime) -> tuple[Meter, list[Count]]:
    """Take back what was counted between the true end and the moment at which it was found."""
    if meter.phase is not Phase.OFF or meter.earlier_since is None:
        return meter, []
    at = min(max(ended_at, meter.earlier_since), meter.since)
    counts = _count(meter, meter.earlier, meter.since, at)
    return replace(meter, since=at), counts


def _count_waste(meter: Meter, at: datetime, data: Mapping[str, object]) -> list[Count]:
    """Count the end of a run in which nothing used it; a pool's member waits, which is its use."""
    if meter.account.owner.kind is OwnerKind.POOL:
        return []
    if data.get("unused"):
        return _spread(meter, "unused_ms", meter.since, at)
    idle_s = data.get("idle_s")
    if not isinstance(idle_s, int | float):
        return []
    return _spread(meter, "idle_ms", max(meter.since, at - timedelta(seconds=idle_s)), at)


def _count(meter: Meter, phase: Phase, start: datetime, end: datetime) -> list[Count]:
    """Return the usage of a span in a phase; of a span that goes back, less than nothing."""
    if phase is Phase.OFF:
        return []
    sign = 1 if start <= end else -1
    counts = []
    for day, begin, until in split_days(min(start, end), max(start, end)):
        span_ms = sign * ((until - begin) // _MS)
        usage = UsageAmounts(kept_mib_ms=span_ms * meter.kept_mib)
        if phase is Phase.RUNNING:
            usage = replace(usage, running_ms=span_ms)
        else:
            reach = until if meter.timeout_at is None else min(until, meter.timeout_at)
            timeout_ms = sign * (max(reach - begin, timedelta()) // _MS)
            usage = replace(usage, paused_ms=span_ms, timeout_ms=timeout_ms)
        counts.append(Count(day, meter.sandbox_id, meter.account, usage))
    return counts


def _spread(meter: Meter, name: str, start: datetime, end: datetime) -> list[Count]:
    return [
        Count(
            day,
            meter.sandbox_id,
            meter.account,
            replace(UsageAmounts(), **{name: (until - begin) // _MS}),
        )
        for day, begin, until in split_days(start, end)
    ]


def _learn_size(known: UsageAccount, now: UsageAccount) -> UsageAccount:
    """Return the account with a size and a provider that were learned after it began."""
    if known.memory_mb and known.provider == now.provider:
        return known
    return replace(
        known, provider=now.provider, vcpus=now.vcpus, memory_mb=now.memory_mb, region=now.region
    )


def _find_phase(state: State) -> Phase | None:
    if state is State.UNKNOWN:
        return None
    return {State.RUNNING: Phase.RUNNING, State.PAUSED: Phase.PAUSED}.get(state, Phase.OFF)
