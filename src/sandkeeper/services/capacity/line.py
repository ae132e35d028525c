"""The line: wait for a slot, make room for it, and tell where in line a request is.

A request that finds no free slot is a row, ordered with those of all replicas. Each process serves
its own in the order of all: about twice a second, and at once when something stopped. If the
process dies, its requests are passed over, and a caller that asks again has its place back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import structlog

from sandkeeper.common.elapsed import now_s
from sandkeeper.domain.clock import to_ms
from sandkeeper.domain.decisions.capacity import Place, Waiter, estimate_wait_s
from sandkeeper.domain.decisions.priority import NEVER_WAITS, PRIORITY_OF_OWNER, Overflow, Priority
from sandkeeper.domain.errors import CapacityFullError, QuotaExceededError, SandkeeperError
from sandkeeper.domain.events import StateChanged
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.services.capacity.quotas import Quotas
from sandkeeper.services.capacity.slots import RESERVED_S, Slots, place_of
from sandkeeper.services.deps import Deps
from sandkeeper.store.capacity.slots import Slot
from sandkeeper.store.events import LoggedEvent

log = structlog.get_logger(__name__)

# How often the line is looked at when nothing was heard. Lower costs the database more while many
# wait; higher serves later what another replica's crash made free.
POLL_S = 0.5
# The shortest time between two looks, however much stops at once.
LOOK_MIN_S = 0.05
# How long one that should make room is not tried again, whether or not it could be paused.
EVICT_S = 60.0

NO_ROOM = (CapacityFullError, QuotaExceededError)
"""Nothing is wrong with what was refused so; it may be started later."""

OnPlace = Callable[[int, float | None], Awaitable[None]]
Evict = Callable[[Sandbox], Coroutine[Any, Any, None]]


async def nothing_on_place(_position: int, _wait_s: float | None) -> None:
    """Do nothing: the default listener."""


@dataclass(slots=True)
class _Waiting:
    """A request that waits in this process."""

    waiter: Waiter
    slot: Slot
    moved: asyncio.Event = field(default_factory=asyncio.Event)
    position: int | None = None
    wait_s: float | None = None
    is_granted: bool = False
    is_lost: bool = False


class Line:
    """Admit requests to slots, in order."""

    def __init__(self, deps: Deps, slots: Slots, quotas: Quotas, evict: Evict) -> None:
        self._quotas = quotas
        self._store = deps.store.line
        self._clock = deps.clock
        self._metrics = deps.metrics
        self._slots = slots
        self._evict = evict
        self._wait_s = deps.settings.capacity_wait_s
        self._waiting: dict[Place, dict[str, _Waiting]] = {}
        self._serving: dict[Place, asyncio.Task[None]] = {}
        self._evicting: set[asyncio.Task[None]] = set()
        self._freed = asyncio.Event()

    async def admit(
        self,
        sandbox: Sandbox,
        *,
        generation: int | None = None,
        priority: Priority | None = None,
        overflow: Overflow | None = None,
        on_place: OnPlace = nothing_on_place,
    ) -> None:
        """Return when the sandbox has a slot. Raise CapacityFullError if it gets none in time.

        `on_place` hears of its place in line, and of each change.
        """
        place = place_of(sandbox)
        await self._quotas.check_start(sandbox.tenant)
        if not self._slots.is_limited(place, sandbox.tenant):
            return
        slot = self._slots.make_slot(sandbox.id, generation or sandbox.generation, sandbox)
        waiter = self._make_waiter(sandbox, slot, priority, overflow)
        # Behind others it would only ask to be told to wait.
        if place not in self._waiting and await self._slots.try_reserve(slot):
            self._metrics.admissions.labels("at_once").inc()
            return
        if waiter.overflow is Overflow.REJECT:
            self._metrics.admissions.labels("refused").inc()
            raise self._slots.make_refusal(place)
        began_s = now_s()
        outcome = "refused"
        try:
            await self._wait(waiter, slot, ends_s=began_s + self._wait_s, on_place=on_place)
            outcome = "waited"
        finally:
            self._metrics.admissions.labels(outcome).inc()
            self._metrics.admission_wait.observe(now_s() - began_s)

    async def admit_new(self, sandbox: Sandbox) -> None:
        """Do as `admit` for a sandbox that is about to be created, and count its creation.

        Raise QuotaExceededError if its tenant may have no more.
        """
        await self.admit(sandbox)
        try:
            await self._quotas.count_creation(sandbox.tenant)
        except BaseException:
            await self.give_back(sandbox)
            raise

    async def give_back(self, sandbox: Sandbox) -> None:
        """Give back the slot of an admitted sandbox that is not started after all."""
        await self._slots.give_back(sandbox.id, sandbox.generation)

    def on_events(self, events: Sequence[LoggedEvent]) -> None:
        """Look at the line when something may have stopped."""
        if self._waiting and any(event.type == StateChanged.type for event in events):
            self._freed.set()

    async def close(self) -> None:
        """Stop; those who wait are refused, and have their places back when they ask again."""
        for waiting in [one for here in self._waiting.values() for one in here.values()]:
            waiting.is_lost = True
            waiting.moved.set()
        tasks = [*self._serving.values(), *self._evicting]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _make_waiter(
        self,
        sandbox: Sandbox,
        slot: Slot,
        priority: Priority | None,
        overflow: Overflow | None,
    ) -> Waiter:
        policy, owner = sandbox.policy, sandbox.owner
        urgency = priority or policy.priority or PRIORITY_OF_OWNER[owner.kind]
        usual = Overflow.REJECT if urgency in NEVER_WAITS else Overflow.EVICT
        return Waiter(
            str(owner),
            slot.sandbox_id,
            slot.generation,
            slot.place,
            slot.template,
            slot.tenant,
            urgency,
            overflow or policy.overflow or usual,
            to_ms(self._clock()),
        )

    async def _wait(self, waiter: Waiter, slot: Slot, *, ends_s: float, on_place: OnPlace) -> None:
        waiting = await self._join(waiter, slot)
        try:
            async with asyncio.timeout(max(0.0, ends_s - now_s())):
                await self._follow(waiting, on_place)
        except TimeoutError:
            if not waiting.is_granted:
                await self._store.step_aside(waiter.key, now=self._clock())
                raise self._slots.make_refusal(waiter.place, waiting.position) from None
        except BaseException:
            if waiting.is_granted:
                await self._slots.give_back(slot.sandbox_id, slot.generation)
            raise
        finally:
            here = self._waiting[waiter.place]
            del here[waiter.key]
            if not here:
                del self._waiting[waiter.place]

    async def _follow(self, waiting: _Waiting, on_place: OnPlace) -> None:
        """Return when the slot is granted; tell the place in line until then."""
        while not waiting.is_granted:
            await waiting.moved.wait()
            waiting.moved.clear()
            if waiting.is_lost:
                raise self._slots.make_refusal(waiting.waiter.place)
            if waiting.position is not None and not waiting.is_granted:
                await on_place(waiting.position, waiting.wait_s)

    async def _join(self, waiter: Waiter, slot: Slot) -> _Waiting:
        joined = await self._store.join(waiter, now=self._clock())
        if joined is None:
            raise CapacityFullError("Too many wait for a slot already.", retry_after_s=30)
        here = self._waiting.setdefault(waiter.place, {})
        if waiter.key in here:
            raise self._slots.make_refusal(waiter.place, here[waiter.key].position)
        waiting = here[waiter.key] = _Waiting(waiter, slot)
        task = self._serving.get(waiter.place)
        if task is None or task.done():
            self._serving[waiter.place] = asyncio.create_task(self._serve(waiter.place))
        return waiting

    async def _serve(self, place: Place) -> None:
        """Look at the line of one place for as long as a request waits here."""
        while self._waiting.get(place):
            self._freed.clear()
            try:
                await self._look(place)
            except SandkeeperError as error:
                log.warning("line_not_served", region=place.region, error=str(error))
            await asyncio.sleep(LOOK_MIN_S)
            try:
                async with asyncio.timeout(POLL_S):
                    await self._freed.wait()
            except TimeoutError:
                continue

    async def _look(self, place: Place) -> None:
        here = dict(self._waiting.get(place, {}))
        now, asked_s = self._clock(), now_s()
        turn = await self._store.serve(
            place,
            self._slots.get_limits(place),
            mine={key: one.slot for key, one in here.items()},
            until=now + timedelta(seconds=RESERVED_S),
            evict_until=now + timedelta(seconds=EVICT_S),
            now=now,
        )
        for key, one in here.items():
            if key in turn.granted:
                self._slots.remember(one.slot, asked_s)
                one.is_granted = True
                if self._waiting.get(place, {}).get(key) is not one:  # It gave up in that time.
                    await self._slots.give_back(one.slot.sandbox_id, one.slot.generation)
            elif key in turn.positions:
                one.wait_s = estimate_wait_s(turn.positions[key], turn.grant_every_ms)
                if one.position == turn.positions[key]:
                    continue
                one.position = turn.positions[key]
            else:
                one.is_lost = True  # The owner got a slot through another replica.
            one.moved.set()
        for victim in turn.victims:
            task = asyncio.create_task(self._evict(victim))
            self._evicting.add(task)
            task.add_done_callback(self._evicting.discard)
