"""Decide who gets a slot when not all can run at once, and which sandbox makes room.

A *slot* is the right of one sandbox to run at its provider. Everything that runs or may run has
one. Who waits is served by priority, and within one by tenant: the one that has the fewest slots
first, and of its requests the oldest.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from sandkeeper.domain.decisions.priority import Overflow, Priority
from sandkeeper.domain.owner import OwnerKind
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import State

IN_USE: Final = timedelta(seconds=30)
"""A sandbox that was used more recently is in use and never makes room. Longer lets people wait
beside sandboxes that are not used; shorter takes one away from a person who reads."""

MADE_ROOM: Final = "its slot was needed"
"""In the reason of a pause that made room for another sandbox."""

TURNOVER_WEIGHT: Final = 0.3
"""How much the newest grant counts in the estimate of the time between two."""


_RANK: Final = {priority: rank for rank, priority in enumerate(Priority)}


@dataclass(frozen=True, slots=True)
class Place:
    """One account at one provider: the unit that has a limit."""

    provider: str
    region: str


@dataclass(frozen=True, slots=True)
class Limits:
    """How many sandboxes may run in one place: in all, of a template, and of a tenant."""

    total: int | None = None
    by_template: Mapping[str, int] = field(default_factory=dict)
    by_tenant: Mapping[str, int | None] = field(default_factory=dict)
    """Of a tenant; those that are not named have the one of ``*``."""

    def get_of_tenant(self, tenant: str) -> int | None:
        """Return how many of a tenant may run."""
        return self.by_tenant.get(tenant, self.by_tenant.get("*"))

    def are_none_for(self, tenant: str) -> bool:
        """Return True when nothing limits a tenant's sandboxes."""
        has_none = self.total is None and not self.by_template
        return has_none and self.get_of_tenant(tenant) is None

    def lowered_to(self, total: int | None) -> Limits:
        """Return the limits with a total that is not higher than this one."""
        if total is None:
            return self
        lowest = total if self.total is None else min(total, self.total)
        return Limits(lowest, self.by_template, self.by_tenant)

    def allows(self, usage: SlotUsage, template: str, tenant: str) -> bool:
        """Return whether one more sandbox of the template and tenant fits."""
        is_full = self.total is not None and usage.total >= self.total
        of_tenant = self.get_of_tenant(tenant)
        has_all = of_tenant is not None and usage.by_tenant.get(tenant, 0) >= of_tenant
        return not is_full and not has_all and self.allows_template(usage, template)

    def allows_template(self, usage: SlotUsage, template: str) -> bool:
        """Return whether the template's own limit lets one more run."""
        of_template = self.by_template.get(template)
        return of_template is None or usage.by_template.get(template, 0) < of_template


@dataclass(slots=True)
class SlotUsage:
    """How many slots of a place are taken: in all, by template and by tenant."""

    total: int = 0
    by_template: Counter[str] = field(default_factory=Counter)
    by_tenant: Counter[str] = field(default_factory=Counter)

    def add(self, template: str, tenant: str, count: int = 1) -> None:
        """Count slots as taken."""
        self.total += count
        self.by_template[template] += count
        self.by_tenant[tenant] += count


@dataclass(frozen=True, slots=True)
class Waiter:
    """A request for a slot. ``key`` is its owner, who waits once, however often it asks."""

    key: str
    sandbox_id: str
    generation: int
    place: Place
    template: str
    tenant: str
    priority: Priority
    overflow: Overflow
    since: datetime


@dataclass(frozen=True, slots=True)
class SlotDecision:
    """Who gets a slot now, and who waits, in the order in which they are served."""

    granted: tuple[Waiter, ...] = ()
    waiting: tuple[Waiter, ...] = ()


def decide_admission(waiters: Iterable[Waiter], usage: SlotUsage, limits: Limits) -> SlotDecision:
    """Return who gets a slot now. One that does not fit lets those behind it pass that do.

    ``usage`` is left as it is after the grants.
    """
    granted: list[Waiter] = []
    waiting: list[Waiter] = []
    for waiter in order_fairly(waiters, usage):
        if limits.allows(usage, waiter.template, waiter.tenant):
            usage.add(waiter.template, waiter.tenant)
            granted.append(waiter)
        else:
            waiting.append(waiter)
    return SlotDecision(tuple(granted), tuple(waiting))


def order_fairly(waiters: Iterable[Waiter], usage: SlotUsage) -> list[Waiter]:
    """Return the waiters by priority; within one, the tenant with the fewest slots is next."""
    lines: dict[tuple[int, str], list[Waiter]] = {}
    for waiter in sorted(waiters, key=lambda one: (one.since, one.key)):
        lines.setdefault((_RANK[waiter.priority], waiter.tenant), []).append(waiter)
    taken = Counter(usage.by_tenant)
    ordered: list[Waiter] = []
    for rank in sorted({rank for rank, _ in lines}):
        heap = [
            (taken[tenant], line[0].since, tenant, 0)
            for (of_rank, tenant), line in lines.items()
            if of_rank == rank
        ]
        heapq.heapify(heap)
        while heap:
            _, _, tenant, place = heapq.heappop(heap)
            line = lines[rank, tenant]
            ordered.append(line[place])
            taken[tenant] += 1
            if place + 1 < len(line):
                item = (taken[tenant], line[place + 1].since, tenant, place + 1)
                heapq.heappush(heap, item)
    return ordered


def find_use(sandbox: Sandbox, *, now: datetime) -> str | None:
    """Return why this sandbox may not make room; None if it may."""
    activity, work = sandbox.activity, sandbox.work
    recent = now - IN_USE
    busy_at = None if work is None else work.busy_at
    watched_at = None if _is_spare(sandbox) else activity.passive_at
    used_at = None if _is_spare(sandbox) else sandbox.active_at
    uses = (
        (sandbox.state is not State.RUNNING, f"it is {sandbox.state.value}"),
        (activity.leased_until is not None and activity.leased_until > now, "it is leased"),
        (busy_at is not None and busy_at > recent, "a command runs in it"),
        (used_at is not None and used_at > recent, "it was used a moment ago"),
        (watched_at is not None and watched_at > recent, "a person looks at it"),
    )
    return next((why for is_used, why in uses if is_used), None)


def choose_victims(
    candidates: Iterable[Sandbox], *, count: int, now: datetime
) -> Sequence[Sandbox]:
    """Return those that are needed least: spare ones first, then the ones unused for longest."""
    free = [one for one in candidates if find_use(one, now=now) is None]
    return sorted(free, key=lambda one: (not _is_spare(one), one.active_at, one.id))[:count]


def _is_spare(sandbox: Sandbox) -> bool:
    """Return True for a pool's member and for what was warmed up and not used yet."""
    return sandbox.owner.kind is OwnerKind.POOL or sandbox.is_warm


def average_grant_ms(before_ms: int | None, elapsed: timedelta, grants: int) -> int:
    """Return the usual time between two grants, with the newest ones counted."""
    newest_ms = elapsed / timedelta(milliseconds=1) / max(1, grants)
    if before_ms is None:
        return round(newest_ms)
    return round((1 - TURNOVER_WEIGHT) * before_ms + TURNOVER_WEIGHT * newest_ms)


def estimate_wait_s(position: int, grant_every_ms: int | None) -> float | None:
    """Return when a request at this place in line is served; None if nothing was measured."""
    return None if grant_every_ms is None else position * grant_every_ms / 1000
