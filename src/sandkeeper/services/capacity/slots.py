"""Slots: nothing is started at a provider with a limit before it was counted.

`hold` surrounds each call that starts something: a creation, a resume. The slot is reserved in the
database first. A trigger makes it live in the transaction that records the result, so success needs
no write here. After a definite refusal it is given back. After an unclear one, or a crash, it stays
reserved until nothing can be sent for it any more and the provider was asked (`settlement.py`).

Without a limit nothing is reserved, and the database is not asked.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

import structlog

from sandkeeper.common.elapsed import now_s
from sandkeeper.domain.decisions.capacity import Limits, Place, SlotUsage, estimate_wait_s
from sandkeeper.domain.errors import (
    CapacityFullError,
    InstanceGoneError,
    ProviderFullError,
    ProviderRateLimitedError,
    ProviderRefusedError,
    ProviderUnauthorizedError,
    ProviderUnsupportedError,
    SandkeeperError,
    WrongStateError,
)
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.services.capacity.quotas import Quotas
from sandkeeper.services.deps import Deps
from sandkeeper.store.capacity.line import SEEN
from sandkeeper.store.capacity.slots import PlaceStatus, Slot

log = structlog.get_logger(__name__)

# How long a reservation stands by itself. After it, one on whose sandbox no process works is
# settled. Longer frees the slots of a dead process later.
RESERVED_S = 30.0
# How long one reservation is used without writing it again; shorter than it stands.
FRESH_S = 15.0
# What a refusal without a measured time tells its caller to wait.
RETRY_AFTER_S = 10.0

# Answers that say that nothing was started, and that nothing will be.
NOT_STARTED = (
    ProviderRefusedError,
    ProviderUnauthorizedError,
    ProviderUnsupportedError,
    ProviderRateLimitedError,
    InstanceGoneError,
    WrongStateError,
)


def place_of(sandbox: Sandbox) -> Place:
    """Return where the sandbox is counted."""
    return Place(sandbox.provider, sandbox.region or "")


@dataclass(frozen=True, slots=True)
class PlaceReport:
    """What runs at a place, how much may by the settings, and how many wait."""

    status: PlaceStatus
    limits: Limits
    usage: SlotUsage
    waiting: int


class Slots:
    """Reserve slots for what this process starts."""

    def __init__(self, deps: Deps, quotas: Quotas) -> None:
        self._quotas = quotas
        self._store = deps.store.slots
        self._line = deps.store.line
        self._clock = deps.clock
        self._metrics = deps.metrics
        self._replica = deps.replica
        self._given = deps.settings.max_running
        self._known: dict[Place, PlaceStatus] = {}
        self._own: dict[tuple[str, int], tuple[Slot, float]] = {}

    def get_limits(self, place: Place) -> Limits:
        """Return the limits that the settings give a place: the most specific one counts."""
        by_template: dict[str, int] = {}
        total: int | None = None
        for region in ("*", place.region):
            for key, limit in self._given.items():
                of_region, _, template = key.partition("/")
                if of_region != region:
                    continue
                if template:
                    by_template[template] = limit
                else:
                    total = limit
        return Limits(total, by_template, self._quotas.list_running())

    def is_limited(self, place: Place, tenant: str) -> bool:
        """Return whether a tenant's start there has to be counted first."""
        known = self._known.get(place)
        is_learned = known is not None and known.learned_limit is not None
        return is_learned or not self.get_limits(place).are_none_for(tenant)

    def make_slot(self, sandbox_id: str, generation: int, sandbox: Sandbox) -> Slot:
        """Return a slot for one instance of a sandbox, to be reserved by this process."""
        return Slot(
            sandbox_id,
            generation,
            place_of(sandbox),
            sandbox.launch.template_name,
            sandbox.tenant,
            token=f"{self._replica}:{secrets.token_hex(6)}",
            reserved_until=self._clock() + timedelta(seconds=RESERVED_S),
        )

    async def reserve(self, sandbox: Sandbox, *, generation: int | None = None) -> None:
        """Reserve a slot for the sandbox, or for its next instance.

        Raise CapacityFullError if none is free, or others wait for one.
        """
        slot = self.make_slot(sandbox.id, generation or sandbox.generation, sandbox)
        if self._has(slot):
            return
        await self._quotas.check_start(sandbox.tenant)
        if self.is_limited(slot.place, slot.tenant) and not await self.try_reserve(slot):
            raise self.make_refusal(slot.place)

    async def try_reserve(self, slot: Slot) -> bool:
        """Return whether the slot is reserved, now or a moment ago."""
        if self._has(slot):
            return True
        now, asked_s = self._clock(), now_s()
        if not await self._store.reserve(
            slot, self.get_limits(slot.place), seen_after=now - SEEN, now=now
        ):
            return False
        self.remember(slot, asked_s)
        return True

    def _has(self, slot: Slot) -> bool:
        """Return whether this process reserved the slot a moment ago."""
        own = self._own.get((slot.sandbox_id, slot.generation))
        return own is not None and now_s() - own[1] < FRESH_S

    def remember(self, slot: Slot, asked_s: float) -> None:
        """Note a slot that was reserved for this process by a request made at `asked_s`."""
        self._own[slot.sandbox_id, slot.generation] = slot, asked_s

    async def give_back(self, sandbox_id: str, generation: int) -> None:
        """Give back a slot that is not used; if that fails it is settled later."""
        own = self._own.pop((sandbox_id, generation), None)
        if own is not None:
            with contextlib.suppress(SandkeeperError):
                await self._store.release(own[0])

    @asynccontextmanager
    async def hold(self, sandbox: Sandbox) -> AsyncIterator[None]:
        """Hold a slot while the block starts the sandbox at its provider."""
        await self.reserve(sandbox)
        key = sandbox.id, sandbox.generation
        try:
            yield
        except ProviderFullError as error:
            await self.give_back(*key)
            await self._learn(place_of(sandbox), error)
            raise self.make_refusal(place_of(sandbox)) from error
        except NOT_STARTED:
            await self.give_back(*key)
            raise
        finally:
            self._own.pop(key, None)

    def make_refusal(self, place: Place, position: int | None = None) -> CapacityFullError:
        """Return the error for a request that gets no slot now."""
        known = self._known.get(place)
        every_ms = None if known is None else known.grant_every_ms
        after_s = estimate_wait_s(position or 1, every_ms) or RETRY_AFTER_S
        limit = self._describe_limit(place)
        where = "" if position is None else f" This request is number {position} in line."
        facts = {} if position is None else {"position": position}
        return CapacityFullError(
            f"All {limit} sandboxes that may run at a time are in use.{where}",
            retry_after_s=max(1.0, after_s),
            **facts,
        )

    def _describe_limit(self, place: Place) -> str:
        known = self._known.get(place)
        limits = self.get_limits(place)
        if known is not None:
            limits = limits.lowered_to(known.learned_limit)
        return "" if limits.total is None else str(limits.total)

    async def _learn(self, place: Place, error: ProviderFullError) -> None:
        limit = error.fields.get("limit")
        learned = await self._store.learn(
            place, limit if isinstance(limit, int) else None, now=self._clock()
        )
        log.warning("capacity_learned", region=place.region, limit=learned)
        await self.refresh()

    async def refresh(self) -> Mapping[Place, PlaceStatus]:
        """Read what other replicas set or learned: quotas, and the limits of providers."""
        await self._quotas.refresh()
        for place in await self._store.forget_outdated():
            log.info("capacity_limit_forgotten", region=place.region)
        self._known = {one.place: one for one in await self._store.list_places()}
        return self._known

    async def report(self) -> list[PlaceReport]:
        """Return how each place is used."""
        known = await self.refresh()
        usages, waiting = await self._store.read_usage(), await self._line.count()
        return [
            PlaceReport(
                known.get(place, PlaceStatus(place)),
                self.get_limits(place),
                usages.get(place, SlotUsage()),
                waiting.get(place, 0),
            )
            for place in sorted({*usages, *known}, key=lambda one: (one.provider, one.region))
        ]

    async def measure(self) -> None:
        """Report how many slots are taken, and how many there are."""
        for place, usage in (await self._store.read_usage()).items():
            known = self._known.get(place)
            unrecorded = 0 if known is None else known.unrecorded
            self._metrics.slots_taken.labels(place.region).set(usage.total + unrecorded)
            limits = self.get_limits(place)
            if known is not None:
                limits = limits.lowered_to(known.learned_limit)
            if limits.total is not None:
                self._metrics.slots_max.labels(place.region).set(limits.total)
