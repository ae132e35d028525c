"""Several simulated replicas over one store and one provider, in simulated time, with faults.

Services, store and decisions are the shipped ones; only the provider, the clock and the processes
are simulated. Each replica reaches store and provider through gates. A gate is where a fault
happens: a call that fails before or after its act, a late reply, a freeze, a crash. A crashed
replica never passes a gate again, so nothing of it is unwound.

`Simulation.broken` lists what an invariant forbids and what happened anyway.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any

from sandkeeper.api.errors import status_of
from sandkeeper.background.idle_sweep import ClocksDifferError
from sandkeeper.background.tasks import make_sweep
from sandkeeper.domain.activity import ActivityClass
from sandkeeper.domain.clock import SKEW_MAX
from sandkeeper.domain.errors import (
    InstanceGoneError,
    ProviderAmbiguousError,
    ProviderRateLimitedError,
    ProviderUnavailableError,
    SandkeeperError,
    StoreUnavailableError,
)
from sandkeeper.domain.owner import Owner
from sandkeeper.domain.policy import Launch, Policy
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.sessions.lease import Lease
from sandkeeper.domain.states import State
from sandkeeper.providers.base import (
    EventKind,
    Instance,
    InstancePage,
    InstanceState,
    LifecycleEvent,
    Provider,
)
from sandkeeper.providers.e2b.signature import sign
from sandkeeper.services.clock import ProcessClock, read_database_time
from sandkeeper.services.composition import Overrides, Services
from sandkeeper.services.monitoring.clock_monitor import ALONE_SKEW_MAX
from sandkeeper.store import Store
from sandkeeper.store.database import Database
from sandkeeper.store.replicas.lock import ProcessLock
from sandkeeper.testing.providers import SimulatedProvider
from support.deps import make_deps
from support.signed_webhooks import render_event
from support.virtual_time import VirtualLoop

BEGIN = datetime(2030, 1, 1, tzinfo=UTC)
IDLE_S = 60.0
LEASE_S = 60.0
POLICY = Policy(idle_timeout_s=IDLE_S, lifetime_s=None, newborn_grace_s=0, woken_grace_s=0)
RECONCILE_S = 60.0
# Activity is known to another replica after a flush and counts from there.
FLUSH_S = 2.0
# The outcomes of a webhook that was absorbed now; every other one says that it was not.
ABSORBED = frozenset({"changed", "confirmed", "ended"})


class Fault(StrEnum):
    """What one call of the provider does wrong. `SLOW` answers late; the others raise."""

    NONE = "none"
    SLOW = "slow"
    VERY_SLOW = "very slow"
    REFUSED = "refused"
    LOST = "lost"
    GARBAGE = "garbage"
    LIMITED = "limited"
    WRONG_404 = "wrong 404"


class StoreFault(StrEnum):
    """What one transaction does wrong: nothing is written, or all of it and the answer is lost."""

    NONE = "none"
    SLOW = "slow"
    AWAY = "away"
    LOST = "lost"


DELAYS_S = {Fault.SLOW: 3.0, Fault.VERY_SLOW: 100.0}


@dataclass(frozen=True)
class Request:
    """What a caller asked of a replica."""

    verb: str
    owner: str = ""


REQUEST: ContextVar[Request | None] = ContextVar("request", default=None)


class Gate:
    """The way of one replica to the world outside: open, frozen, or shut for ever."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self.is_dead = False
        self.crash_in: int | None = None

    def freeze(self) -> None:
        self._open.clear()

    def thaw(self) -> None:
        self._open.set()

    @property
    def is_frozen(self) -> bool:
        return not self._open.is_set()

    async def cross(self) -> None:
        """Return when the replica may go on; count the crossings until its crash."""
        if self.crash_in is not None:
            self.crash_in -= 1
            self.is_dead = self.is_dead or self.crash_in < 0
        if self.is_dead:
            await asyncio.get_running_loop().create_future()
        await self._open.wait()


class GatedDatabase(Database):
    """The shared database as one replica reaches it."""

    def __init__(self, shared: Database, gate: Gate, simulation: Simulation) -> None:
        self.__dict__.update(shared.__dict__)
        self._shared = shared
        self._gate = gate
        self._simulation = simulation

    @contextlib.asynccontextmanager
    async def reading(self) -> AsyncIterator[Any]:
        await self._gate.cross()
        async with self._shared.reading() as connection:
            yield connection

    @contextlib.asynccontextmanager
    async def writing(self) -> AsyncIterator[Any]:
        await self._gate.cross()
        fault = self._simulation.next_store_fault()
        if fault is StoreFault.SLOW:
            await asyncio.sleep(0.5)
            await self._gate.cross()
        if fault is StoreFault.AWAY:
            raise StoreUnavailableError
        async with self._shared.writing() as connection:
            yield connection
        await self._gate.cross()
        if fault is StoreFault.LOST:
            raise StoreUnavailableError


class Handle:
    """What stands for the SDK's object of a sandbox in which nothing runs."""


class GatedProvider:
    """The shared provider as one replica reaches it, with the faults of the simulation."""

    def __init__(self, simulation: Simulation, replica: SimulatedReplica) -> None:
        self._simulation = simulation
        self._replica = replica
        self._skew = timedelta()

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._simulation.provider, name)
        if not asyncio.iscoroutinefunction(value):
            return value

        async def call(*args: Any, **given: Any) -> Any:
            return await self._call(name, lambda: value(*args, **given), args)

        return call

    async def open_sdk_sandbox(self, _instance_id: str) -> Handle:
        await self._replica.gate.cross()
        return Handle()

    async def _call(
        self, name: str, act: Callable[[], Coroutine[Any, Any, Any]], args: tuple[Any, ...]
    ) -> Any:
        await self._replica.gate.cross()
        fault = self._simulation.next_fault()
        if fault is Fault.REFUSED:
            raise ProviderUnavailableError("The connection was refused.")
        if fault is Fault.LIMITED:
            raise ProviderRateLimitedError(retry_after_s=5)
        if fault is Fault.WRONG_404 and name in ("get", "connect", "pause", "set_timeout"):
            raise InstanceGoneError(instance_id=args[0])
        # What was sent is carried out, whatever becomes of its sender.
        sent = self._simulation.spawn(self._simulation.carry_out(name, act, args))
        answer = await asyncio.shield(sent)
        await asyncio.sleep(DELAYS_S.get(fault, 0.05))
        await self._replica.gate.cross()
        if fault is Fault.LOST:
            raise ProviderUnavailableError("The reply was lost.")
        if fault is Fault.GARBAGE:
            raise ProviderAmbiguousError("The reply cannot be read.")
        return self._date(answer)

    async def measure_skew(self) -> timedelta | None:
        try:
            ahead: timedelta = await self._call("measure_skew", self._read_ahead, ())
        except SandkeeperError:
            return None
        self._skew = ahead if abs(ahead) > SKEW_MAX else timedelta()
        return ahead

    async def _read_ahead(self) -> timedelta:
        return self._simulation.read_provider_time() - self._replica.clock()

    async def list_events(
        self, *, since: datetime, instance_id: str | None = None, pages_max: int = 100
    ) -> list[LifecycleEvent]:
        shared = self._simulation.provider

        async def read() -> list[LifecycleEvent]:
            return list(
                await shared.list_events(
                    since=since + self._skew, instance_id=instance_id, pages_max=pages_max
                )
            )

        events: list[LifecycleEvent] = await self._call("list_events", read, ())
        return [replace(one, at=one.at - self._skew) for one in events]

    def parse_webhook(
        self, body: bytes, headers: Mapping[str, str], *, secret: str
    ) -> LifecycleEvent | None:
        event = self._simulation.provider.parse_webhook(body, headers, secret=secret)
        return None if event is None else replace(event, at=event.at - self._skew)

    def _date(self, answer: Any) -> Any:
        """Date an answer by the replica's clock, and what it tells by the provider's."""
        if isinstance(answer, Instance):
            wrong = self._simulation.provider.clock_ahead - self._skew
            return replace(
                answer,
                seen_at=answer.seen_at + (self._replica.clock() - self._simulation.now()),
                started_at=None if answer.started_at is None else answer.started_at + wrong,
                end_at=None if answer.end_at is None else answer.end_at + wrong,
            )
        if isinstance(answer, InstancePage):
            return replace(answer, instances=tuple(self._date(one) for one in answer.instances))
        return answer


class SimulatedStore(Store):
    """The store of one replica. What several replicas share has a clock of its own."""

    def __init__(self, simulation: Simulation, gate: Gate, *, is_shared: bool) -> None:
        super().__init__(GatedDatabase(simulation.database, gate, simulation))
        self._simulation = simulation
        self._gate = gate
        self._is_shared = is_shared
        file = None if is_shared else Path(f"{simulation.database.url.database}.lock")
        self.lock = ProcessLock(file)
        self.replicas.make_lock = lambda: self.lock  # type: ignore[method-assign]

    @property
    def is_shared(self) -> bool:
        return self._is_shared

    async def read_time(self) -> datetime:
        await self._gate.cross()
        return self._simulation.now() + self._simulation.database_ahead


class SimulatedReplica:
    """The shipped services of one process, on a machine whose clock may be wrong."""

    def __init__(self, simulation: Simulation, name: str, *, ahead: timedelta) -> None:
        self.name = name
        self.gate = Gate()
        self.machine_ahead = ahead
        self.clock = ProcessClock(wall=lambda: simulation.now() + self.machine_ahead)
        self.store = SimulatedStore(simulation, self.gate, is_shared=simulation.is_shared)
        provider: Any = GatedProvider(simulation, self)
        deps = make_deps(
            self.store,
            _as_provider(provider),
            clock=self.clock,
            replica=name,
            keep_files=False,
        )
        self.services = Services(deps, Overrides(verify_retries_s=(0.1, 0.2, 0.4)))
        self.sweep = make_sweep(self.services)

    async def start(self) -> None:
        """Start as the application does; what is away then is asked again."""
        if self.store.is_shared:
            await _until_done(
                lambda: self.clock.follow(lambda: read_database_time(self.store, self.name))
            )
        await _until_done(self.services.clock_monitor.check)
        await _until_done(self._recover)

    async def _recover(self) -> None:
        self.store.lock.close()
        await self.services.recovery.start()


async def _until_done(act: Callable[[], Awaitable[None]]) -> None:
    while True:
        try:
            await act()
        except StoreUnavailableError:
            await asyncio.sleep(1)
        else:
            return


async def _sweep(replica: SimulatedReplica) -> None:
    # It does what it may, and says so in this way.
    with contextlib.suppress(ClocksDifferError):
        await replica.sweep.run()


def _as_provider(provider: Any) -> Provider:
    return provider  # type: ignore[no-any-return]


class Simulation:
    """Replicas, provider, webhooks on their way, and what callers were told."""

    def __init__(self, loop: VirtualLoop, database: Database, *, replicas: int) -> None:
        self.loop = loop
        self.database = database
        self.provider = SimulatedProvider(clock=self.now)
        self.faults: deque[Fault] = deque()
        self.store_faults: deque[StoreFault] = deque()
        self.broken: list[str] = []
        self.story: list[str] = []
        self.leases: dict[str, tuple[str, Lease, datetime]] = {}
        self.active_at: dict[str, datetime] = {}
        self.finished_wakes: set[str] = set()
        self.absorbed: Counter[str] = Counter()
        self.is_shared = replicas > 1
        self.database_ahead = timedelta()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._numbers = 0
        self._started: list[SimulatedReplica] = []
        self.replicas = [self._start_replica() for _ in range(replicas)]

    def now(self) -> datetime:
        return BEGIN + timedelta(seconds=self.loop.time())

    def read_provider_time(self) -> datetime:
        return self.now() + self.provider.clock_ahead

    def next_fault(self) -> Fault:
        return self.faults.popleft() if self.faults else Fault.NONE

    def next_store_fault(self) -> StoreFault:
        return self.store_faults.popleft() if self.store_faults else StoreFault.NONE

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def run(self, work: Awaitable[Any]) -> Any:
        return self.loop.run_until_complete(work)

    def advance(self, seconds: float) -> None:
        self.run(asyncio.sleep(seconds))

    def close(self) -> None:
        """End what is left. A dead replica unwinds now, and stops at its gate each time."""
        while left := asyncio.all_tasks(self.loop):
            for task in left:
                task.cancel()
            self.advance(0)
        for replica in self._started:
            replica.store.lock.close()
        self.run(self.database.close())

    def _start_replica(self, ahead: timedelta = timedelta()) -> SimulatedReplica:
        self._numbers += 1

        async def start() -> SimulatedReplica:
            replica = SimulatedReplica(self, f"replica-{self._numbers}", ahead=ahead)
            # A dead one is never unwound before the end, so it is kept.
            self._started.append(replica)
            await replica.start()
            return replica

        started: SimulatedReplica = self.run(start())
        return started

    # What callers ask.

    def request(
        self, number: int, verb: str, owner: str, work: Callable[[SimulatedReplica], Awaitable[Any]]
    ) -> None:
        """Ask a replica; what it raises must be one of our errors."""
        replica = self.replicas[number % len(self.replicas)]

        async def ask() -> None:
            REQUEST.set(Request(verb, owner))
            try:
                await work(replica)
            except SandkeeperError as error:
                self._tell(f"{verb} {owner} on {replica.name}: {error.code}")
                if status_of(type(error)) == 500:
                    self.broken.append(f"{verb} {owner} answered 500: {error!r}")
            except Exception as error:  # noqa: BLE001  # Anything else would be a 500.
                self.broken.append(f"{verb} {owner} raised {error!r}")
            else:
                self._tell(f"{verb} {owner} on {replica.name}: done")

        self._tell(f"{verb} {owner} on {replica.name}")
        self.spawn(ask())
        self.advance(0.01)

    async def create(self, replica: SimulatedReplica, owner: str) -> None:
        await replica.services.creation.create(
            Owner.project(owner), launch=Launch(), policy=POLICY, actor="test"
        )

    async def wake(self, replica: SimulatedReplica, owner: str) -> None:
        known = await self._find(replica, owner)
        wake = await replica.services.wakes.start(known.id, actor="test")
        wake = await replica.services.wakes.wait(wake, within_s=300)
        if wake.is_over and wake.error_code is None:
            up = await replica.store.sandboxes.get(known.id)
            self.finished_wakes.add(up.instance_id or "")

    async def pause(self, replica: SimulatedReplica, owner: str) -> None:
        known = await self._find(replica, owner)
        await replica.services.lifecycle.pause(known.id, actor="test")

    async def kill(self, replica: SimulatedReplica, owner: str) -> None:
        known = await self._find(replica, owner)
        await replica.services.lifecycle.kill(known.id, actor="test")

    async def verify(self, replica: SimulatedReplica, owner: str) -> None:
        known = await self._find(replica, owner)
        await replica.services.verification.verify(known.id)

    async def touch(self, replica: SimulatedReplica, owner: str) -> None:
        known = await self._find(replica, owner)
        at = self.now()
        replica.services.activities.record(known.id, kind=ActivityClass.INTENT, source="test")
        await replica.services.activities.flush()
        self.active_at[known.id] = max(at, self.active_at.get(known.id, at))

    async def lease(self, replica: SimulatedReplica, owner: str) -> None:
        known = await self._find(replica, owner)
        begun = self.now()
        taken = await replica.services.leases.acquire(known, holder="test", wait_s=5)
        if taken is not None:
            lease, _ = taken
            self.leases[lease.id] = (known.id, lease, begun + timedelta(seconds=LEASE_S))

    async def release(self, replica: SimulatedReplica, owner: str) -> None:
        known = await self._find(replica, owner)
        for lease_id, (sandbox_id, _, _) in list(self.leases.items()):
            if sandbox_id == known.id:
                del self.leases[lease_id]
                await replica.services.leases.release(lease_id)

    async def _find(self, replica: SimulatedReplica, owner: str) -> Sandbox:
        return await replica.store.sandboxes.get_by_owner(Owner.project(owner))

    # What runs by itself.

    def background(self, number: int, verb: str) -> None:
        work: dict[str, Callable[[SimulatedReplica], Awaitable[Any]]] = {
            "sweep": _sweep,
            "reconcile": lambda one: one.services.reconciliation.run(),
            "catch up": lambda one: one.services.event_polling.run(),
            "take up": lambda one: one.services.wakes.resume_interrupted(),
            "recover": lambda one: one.services.recovery.run(),
            "check clocks": lambda one: one.services.clock_monitor.check(),
        }
        self.request(number, verb, "", work[verb])

    def deliver(self, number: int, event: LifecycleEvent) -> None:
        """Deliver a webhook, and count it if it was absorbed."""
        body = render_event(event)

        async def receive(replica: SimulatedReplica) -> None:
            secret = await replica.services.webhook_registration.secret()
            headers = {"e2b-signature": sign(secret, body), "e2b-delivery-id": event.event_id}
            result = await replica.services.webhooks.receive(body, headers)
            if result.outcome in ABSORBED:
                self.absorbed[event.event_id] += 1
                if self.absorbed[event.event_id] > 1:
                    self.broken.append(f"event {event.event_id} was absorbed twice")

        self.request(number, f"webhook {event.kind.value}", event.instance_id[:6], receive)

    # What goes wrong.

    def crash(self, number: int, *, after: int) -> None:
        """Let a replica die at the gate of this number from now."""
        replica = self.replicas[number % len(self.replicas)]
        if replica.gate.crash_in is None:
            self._tell(f"{replica.name} dies after {after} calls")
            replica.gate.crash_in = after

    def restart(self) -> None:
        """Start a process in place of each dead one."""
        for index, replica in enumerate(self.replicas):
            if replica.gate.is_dead:
                replica.store.lock.close()
                self.replicas[index] = self._start_replica(replica.machine_ahead)
                self._tell(f"{self.replicas[index].name} starts in place of {replica.name}")

    def move_clock(self, number: int, ahead_s: float) -> None:
        """Let the clock of a replica's machine jump."""
        replica = self.replicas[number % len(self.replicas)]
        replica.machine_ahead = timedelta(seconds=ahead_s)
        self._tell(f"the machine of {replica.name} is {ahead_s:+g} s ahead")

    def move_provider_clock(self, ahead_s: float) -> None:
        self.provider.clock_ahead = timedelta(seconds=ahead_s)
        self._tell(f"the provider is {ahead_s:+g} s ahead")

    def move_database_clock(self, ahead_s: float) -> None:
        self.database_ahead = timedelta(seconds=ahead_s)
        self._tell(f"the database is {ahead_s:+g} s ahead")

    def forge(self, index: int, kind: EventKind, *, late_s: float) -> LifecycleEvent | None:
        """Return an event about a living instance that did not happen."""
        living = sorted(self.provider.instances)
        if not living:
            return None
        instance = self.provider.instances[living[index % len(living)]]
        self._numbers += 1
        return LifecycleEvent(
            event_id=f"forged-{self._numbers}",
            kind=kind,
            instance_id=instance.instance_id,
            run_id=instance.run_id,
            at=self.read_provider_time() - timedelta(seconds=late_s),
            kill_reason="request" if kind is EventKind.KILLED else None,
            tag=instance.tag,
        )

    async def carry_out(
        self, name: str, act: Callable[[], Coroutine[Any, Any, Any]], args: tuple[Any, ...]
    ) -> Any:
        """Carry out one call at the provider, and compare it with what was promised."""
        if name in ("pause", "kill"):
            self._judge(name, args[0])
        answer = await act()
        if name == "create":
            self._count_living()
        return answer

    # What must be true.

    def _judge(self, verb: str, instance_id: str) -> None:
        instance = self.provider.instances.get(instance_id)
        if instance is None or instance.tag is None:
            return
        request = REQUEST.get()
        assert request is not None
        self._tell(f"the provider's {verb} of {instance_id[:6]} for {request.verb}")
        if request.owner == instance.tag.owner_id and request.verb == verb:
            return
        if verb == "pause":
            self._judge_pause(instance, request)
        elif not self._is_second(instance) and not self._is_unfinished(instance, request):
            self.broken.append(f"{request.verb} destroyed the healthy {instance_id}")

    def _judge_pause(self, instance: Instance, request: Request) -> None:
        assert instance.tag is not None
        sandbox_id = instance.tag.sandbox_id
        now = self.now()
        for held_id, lease, until in self.leases.values():
            if held_id == sandbox_id and now < until - timedelta(seconds=FLUSH_S):
                self.broken.append(f"{request.verb} paused {sandbox_id} under lease {lease.id}")
        active_at = self.active_at.get(sandbox_id)
        rested = timedelta(seconds=IDLE_S - FLUSH_S) - self._find_tolerated()
        if active_at is not None and now - active_at < rested:
            self.broken.append(f"{request.verb} paused {sandbox_id}, active at {active_at}")

    def _find_tolerated(self) -> timedelta:
        """Return by how much a keeper that has no second clock may be wrong and still sweep."""
        off = self.replicas[0].clock() - self.now()
        return abs(off) if abs(off) <= ALONE_SKEW_MAX and not self.is_shared else timedelta()

    def _is_second(self, instance: Instance) -> bool:
        return len(self._list_living(instance)) > 1

    def _is_unfinished(self, instance: Instance, request: Request) -> bool:
        """Return whether a failed wake gives up an instance that no caller was given."""
        assert instance.tag is not None
        is_new = instance.tag.generation > 1 and instance.instance_id not in self.finished_wakes
        return is_new and request.verb in ("wake", "take up")

    def _list_living(self, of: Instance) -> list[Instance]:
        assert of.tag is not None
        return [
            one
            for one in self.provider.instances.values()
            if one.tag is not None and one.tag.owner_id == of.tag.owner_id
        ]

    def _count_living(self) -> None:
        owners = Counter(
            one.tag.owner_id for one in self.provider.instances.values() if one.tag is not None
        )
        for owner, count in owners.items():
            if count > 1:
                self.broken.append(f"{owner} has {count} instances")

    def heal(self) -> None:
        """End every fault, and give the replicas two periods of the reconciler."""
        self.faults.clear()
        self.store_faults.clear()
        self.provider.clock_ahead = self.database_ahead = timedelta()
        self._tell("healed")
        for replica in self.replicas:
            replica.gate.thaw()
            replica.machine_ahead = timedelta()
            if not replica.gate.is_dead:
                replica.gate.crash_in = None
        self.restart()
        # What was under way ends, or is left to the background.
        self.advance(0.1)
        for _ in range(8):
            for number, _ in enumerate(self.replicas):
                self.background(number, "recover")
            self.advance(2)
        for turn in range(8):
            for number, _ in enumerate(self.replicas):
                self.background(number, "check clocks")
                self.background(number, "recover")
            for verb in ("take up", "sweep", "catch up"):
                self.background(turn, verb)
            if turn % 4 == 3:
                for number, _ in enumerate(self.replicas):
                    self.background(number, "reconcile")
            self.advance(RECONCILE_S / 4)
        self.background(0, "sweep")
        self.advance(1)

    def check_healed(self) -> None:
        """Compare every record with the provider."""
        self._count_living()
        records = self.run(self.read_all())
        for record in records:
            self._compare(record)
        known = {one.id for one in records}
        for instance in self.provider.instances.values():
            if instance.tag is None or instance.tag.sandbox_id not in known:
                self.broken.append(f"no record for {instance}")

    async def read_all(self) -> list[Sandbox]:
        store = Store(self.database)
        owners = {one.tag.owner_id for one in self.provider.instances.values() if one.tag}
        owners |= {f"p{number}" for number in range(10)}
        found = [await store.sandboxes.find_by_owner(Owner.project(one)) for one in sorted(owners)]
        return [one for one in found if one is not None]

    def _compare(self, record: Sandbox) -> None:
        found = self.provider.instances.get(record.instance_id or "")
        truth = None if found is None else STATES[found.state]
        told = None if record.state.is_ended else record.state
        if told is not truth:
            self.broken.append(
                f"{record.owner.id} is {record.state.value} ({record.reason}), in truth {truth}"
            )
        if record.is_claimed(self.replicas[0].clock()):
            self.broken.append(f"{record.owner.id} has a claim left over: {record.claim}")

    def _tell(self, line: str) -> None:
        self.story.append(f"{self.loop.time():9.2f} {line}")


STATES = {InstanceState.RUNNING: State.RUNNING, InstanceState.PAUSED: State.PAUSED}
