"""One run: real replicas, a real engine and a real database, users at work, and faults.

The run ends by itself, uses loopback only, signals only its own processes, and leaves nothing
behind. `Lab.run` returns what was broken.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import json
import random
import re
import signal
import sqlite3
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import asyncpg
import e2b
import httpx

from faultlab.clocks import (
    DATABASE_OFFSETS_S,
    MACHINE_OFFSETS_S,
    PROVIDER_OFFSETS_S,
    MachineClock,
    move_times,
)
from faultlab.fault_proxy import FaultProxy, WebhookProxy
from faultlab.oracle import Oracle
from faultlab.patience import RECORD_PASSES, WORK_PASSES, Patience
from faultlab.processes import (
    PERIODS,
    Database,
    Disk,
    PostgresDatabase,
    ProxiedEngine,
    Replica,
    SqliteDatabase,
    signal_all,
)
from faultlab.schedule import (
    OWNERS,
    PROXY_KINDS,
    WEBHOOK_KINDS,
    Act,
    Fault,
    Kind,
    Schedule,
    Verb,
)
from sandkeeper.domain.errors import SandkeeperError
from sandkeeper.providers.e2b.signature import sign
from support.engine_process import Engine
from support.wake_replica import connect

KEY: Final = "sk_faultlab"
WORKDIR: Final = "/home/user"
POLICY: Final = {"idleTimeoutMs": 3000}
GUARD_S: Final = 1500
"""When a run that hangs is given up; nothing is judged by it."""
WAKE_S: Final = 60
WAKES_MAX: Final = 3
"""A wake on a machine that is very busy may run out of attempts."""
RECONCILED_AT: Final = re.compile(
    r'background_last_success_timestamp_seconds\{task="reconcile"\} (\S+)'
)
READS: Final = (
    "/readyz",
    "/api/sandboxes/p0/status",
    "/api/fleet/health",
    "/api/sandboxes/p1/files",
    "/api/sandboxes?limit=100",
    "/api/sandboxes/p2/history",
    "/api/sandboxes/p3/explain",
    "/api/fleet/leaks",
    "/metrics",
)
ABSORBED: Final = ("changed", "confirmed", "ended")


@dataclass(frozen=True)
class Result:
    """What one run was and what it found."""

    broken: list[str]
    story: list[str]
    counts: Counter[str]
    logs: dict[str, str]
    """What the processes said."""


class Lab:
    """A run of one schedule."""

    def __init__(
        self, folder: Path, engine: Engine, schedule: Schedule, *, replicas: int, database: str
    ) -> None:
        if database == "sqlite" and replicas > 1:
            raise ValueError("Several replicas need PostgreSQL.")
        self._folder = folder
        self._engine = engine
        self._schedule = schedule
        self._kind = database
        self._count = replicas
        self.oracle = Oracle()
        self.story: list[str] = []
        self.counts: Counter[str] = Counter()
        self._begun = time.monotonic()
        self._replicas: list[Replica] = []
        self._locks: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._tasks: set[asyncio.Task[None]] = set()
        self._restoring = asyncio.Lock()
        self._going = asyncio.Event()
        self._going.set()
        self._secret = ""

    async def run(self) -> Result:
        """Run the schedule, heal everything, and compare."""
        try:
            async with asyncio.timeout(self._schedule.seconds + GUARD_S), self._open():
                await self._begin()
                acting = asyncio.create_task(self._act_all())
                await self._disturb_all()
                await acting
                await self._heal()
                await self._settle()
                await self._compare_files()
        except Exception as error:  # noqa: BLE001  # It is reported with the seed and the story.
            self.oracle.break_(f"the lab itself failed: {error!r}")
        logs = {f"replica-{number}": "".join(one.logs) for number, one in enumerate(self._replicas)}
        return Result(
            self.oracle.broken, self.story, self.counts, {**logs, "engine": self._engine.log}
        )

    # The processes.

    @contextlib.asynccontextmanager
    async def _open(self) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            disk = Disk(self._folder / "disk")
            stack.callback(disk.remove)
            self._disk = disk
            self._database: Database = await self._open_database()
            stack.callback(self._database.stop)
            self._proxy = FaultProxy(lambda: self._engine.port, self._schedule.seed)
            self._proxy.ahead_s = self._schedule.provider_ahead_s
            self._webhooks = WebhookProxy(self._deliver)
            for proxy in (self._proxy, self._webhooks):
                await proxy.start()
                stack.push_async_callback(proxy.stop)
            self._provider = connect(self._engine.url, self._engine.key, "faultlab")
            stack.push_async_callback(self._provider.close)
            self._http = await stack.enter_async_context(httpx.AsyncClient(timeout=8))
            stack.push_async_callback(self._end_tasks)
            for watch in (self._look_forever(), self._read_forever()):
                stack.push_async_callback(_end, asyncio.create_task(watch))
            stack.callback(self._stop_replicas)
            stack.callback(self._wake_processes)
            for number in range(self._count):
                self._replicas.append(self._make_replica(number))
            await asyncio.gather(*(asyncio.to_thread(one.start) for one in self._replicas))
            yield

    async def _open_database(self) -> Database:
        if self._kind == "sqlite":
            return SqliteDatabase(self._disk.folder / "keeper-0" / "sandkeeper.db")
        postgres = await asyncio.to_thread(PostgresDatabase)
        await postgres.create()
        return postgres

    def _make_replica(self, number: int) -> Replica:
        clock = MachineClock(self._folder / f"clock-{number}")
        clock.move(self._schedule.replicas_ahead_s[number])
        return Replica(
            self._disk.folder / f"keeper-{number}",
            self._folder / f"keeper-{number}.log",
            ProxiedEngine(self._engine, self._proxy.url),
            clock,
            *self._database.flags,
            operator_key=KEY,
            public_url=self._webhooks.url,
            files_url=f"file://{self._disk.folder / 'files'}",
            **PERIODS,
        )

    def _wake_processes(self) -> None:
        """Let everything go on that stands still."""
        for replica in self._replicas:
            replica.signal(signal.SIGCONT)
        if self._engine.process is not None:
            self._engine.process.send_signal(signal.SIGCONT)
        signal_all(self._database.list_processes(), signal.SIGCONT)

    def _stop_replicas(self) -> None:
        for replica in self._replicas:
            replica.stop()

    async def _end_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._note_end)

    def _note_end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.oracle.break_(f"the lab itself failed: {error!r}")

    # The faults.

    async def _begin(self) -> None:
        """Create every sandbox without a fault, so that there is something to lose."""
        for number in range(OWNERS):
            await self._create_first(Act(0, f"p{number}", Verb.CREATE, number, 0))
        await self._database.back_up()
        self._begun = time.monotonic()
        self._tell("a backup is taken")

    async def _create_first(self, act: Act) -> None:
        """Ask until it is there: a machine that is very busy may need more than one try."""
        status: dict[str, Any] = {}
        while status.get("status") not in ("RUNNING", "PAUSED"):
            with contextlib.suppress(httpx.HTTPError):
                await self._ask(act, "PUT", "", json={"policy": POLICY}, timeout=30)
                status = (await self._ask(act, "GET", "/status")).json()
            await asyncio.sleep(0.1)
        self._give(act.owner, status["instanceId"])

    async def _disturb_all(self) -> None:
        for fault in self._schedule.faults:
            await self._wait_until(fault.at_s)
            self._spawn(self._disturb(fault))
        await self._wait_until(self._schedule.seconds)

    async def _disturb(self, fault: Fault) -> None:
        """Begin a fault, and end it after its time."""
        self._tell(f"fault: {fault}")
        self.counts[fault.kind.value] += 1
        if fault.kind in PROXY_KINDS:
            self._proxy.fault, self._proxy.everything = fault.kind, fault.value % 4 == 0
            if fault.kind is Kind.DOWN:
                await self._proxy.refuse()
            await asyncio.sleep(fault.lasts_s)
            await self._proxy.start()
            if self._proxy.fault is fault.kind:
                self._proxy.fault = None
        elif fault.kind in WEBHOOK_KINDS:
            self._webhooks.fault = fault.kind
            await asyncio.sleep(fault.lasts_s)
            if self._webhooks.fault is fault.kind:
                self._webhooks.fault = None
        else:
            await self._faults()[fault.kind](fault)

    def _faults(self) -> dict[Kind, Callable[[Fault], Coroutine[Any, Any, None]]]:
        return {
            Kind.KILL_REPLICA: self._kill_replica,
            Kind.FREEZE_REPLICA: self._freeze_replica,
            Kind.KILL_ENGINE: self._kill_engine,
            Kind.FREEZE_ENGINE: self._freeze_engine,
            Kind.KILL_DATABASE: self._kill_database,
            Kind.FREEZE_DATABASE: self._freeze_database,
            Kind.FULL_DISK: self._fill_disk,
            Kind.RESTORE_BACKUP: self._restore_backup,
            Kind.REPLICA_CLOCK: self._move_replica_clock,
            Kind.PROVIDER_CLOCK: self._move_provider_clock,
            Kind.DATABASE_CLOCK: self._move_database_clock,
            Kind.CONTRADICTION: self._contradict,
            Kind.INSTANCE_KILLED: self._kill_instance,
        }

    def _choose(self, number: int) -> Replica:
        return self._replicas[number % len(self._replicas)]

    async def _kill_replica(self, fault: Fault) -> None:
        replica = self._choose(fault.number)
        async with self._restoring:
            if not replica.is_up:
                return
            await asyncio.to_thread(replica.kill9)
            await asyncio.sleep(min(1.0, fault.lasts_s))
            await self._start(replica)

    async def _start(self, replica: Replica) -> None:
        """Start a replica. It may refuse while its surroundings are broken; healing repeats it.

        The schedule stands still while no replica is up, however long a start takes.
        """
        begun = time.monotonic()
        is_alone = not any(one.is_up for one in self._replicas)
        if is_alone:
            self._going.clear()
        try:
            await asyncio.to_thread(replica.start)
        except AssertionError as error:
            self._tell(f"a replica did not start: {str(error)[-300:]}")
        if not self._going.is_set():
            self._begun += time.monotonic() - begun
            self._going.set()

    async def _freeze_replica(self, fault: Fault) -> None:
        replica = self._choose(fault.number)
        replica.signal(signal.SIGSTOP)
        await asyncio.sleep(fault.lasts_s * 5)
        replica.signal(signal.SIGCONT)

    async def _kill_engine(self, fault: Fault) -> None:
        async with self._restoring:
            await asyncio.to_thread(self._engine.kill9)
            await asyncio.sleep(min(1.0, fault.lasts_s))
            await asyncio.to_thread(self._engine.start)

    async def _freeze_engine(self, fault: Fault) -> None:
        async with self._restoring:
            process = self._engine.process
            assert process is not None
            process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(fault.lasts_s)
            process.send_signal(signal.SIGCONT)

    async def _kill_database(self, fault: Fault) -> None:
        async with self._restoring:
            processes = self._database.list_processes()
            if not processes:
                return
            signal_all(processes[:1], signal.SIGKILL)
            await asyncio.sleep(min(1.0, fault.lasts_s))
            await asyncio.to_thread(self._database.start)

    async def _freeze_database(self, fault: Fault) -> None:
        async with self._restoring:
            processes = self._database.list_processes()
            signal_all(processes, signal.SIGSTOP)
            await asyncio.sleep(fault.lasts_s)
            signal_all(processes, signal.SIGCONT)

    async def _fill_disk(self, fault: Fault) -> None:
        """Fill the disk of the replicas, or the one of PostgreSQL."""
        own = self._database.disk
        disk = own if own is not None and fault.value % 2 else self._disk
        if not disk.is_small:
            self._tell("no small disk here: none is filled")
            return
        self._tell(
            "the disk of PostgreSQL is full" if disk is own else "the replicas' disk is full"
        )
        # A backup cannot be restored, nor the server started, while its disk is full.
        async with self._restoring if disk is own else contextlib.nullcontext():
            await asyncio.to_thread(disk.fill)
            await asyncio.sleep(fault.lasts_s)
            disk.free()
            if disk is own:
                await asyncio.to_thread(self._database.start)

    async def _restore_backup(self, _fault: Fault) -> None:
        async with self._restoring:
            for replica in self._replicas:
                await asyncio.to_thread(replica.kill9)
            await self._database.restore()
            self._secret = ""
            self.oracle.forget_kept()
            await asyncio.gather(*(self._start(one) for one in self._replicas))

    async def _move_replica_clock(self, fault: Fault) -> None:
        """Let the clock of a replica's machine jump; one of three replicas starts again by it."""
        replica = self._choose(fault.number)
        if not replica.clock.can_move:
            self._tell("no libfaketime here: no clock is moved")
            return
        was_ahead_s = self._schedule.replicas_ahead_s[self._replicas.index(replica)]
        replica.clock.move(MACHINE_OFFSETS_S[fault.value % len(MACHINE_OFFSETS_S)])
        if fault.value // len(MACHINE_OFFSETS_S) % 3 == 0:
            await self._kill_replica(fault)
        await asyncio.sleep(fault.lasts_s)
        replica.clock.move(was_ahead_s)

    async def _move_provider_clock(self, fault: Fault) -> None:
        self._proxy.ahead_s = PROVIDER_OFFSETS_S[fault.value % len(PROVIDER_OFFSETS_S)]
        await asyncio.sleep(fault.lasts_s)
        self._proxy.ahead_s = self._schedule.provider_ahead_s

    async def _move_database_clock(self, fault: Fault) -> None:
        clock = self._database.clock
        if clock is None or not clock.can_move:
            self._tell("this database has no clock of its own that could be moved")
            return
        clock.move(DATABASE_OFFSETS_S[fault.value % len(DATABASE_OFFSETS_S)])
        self._tell(f"PostgreSQL is {clock.ahead_s:+d} s ahead")
        await asyncio.sleep(fault.lasts_s)
        clock.move(0)

    async def _contradict(self, fault: Fault) -> None:
        """Deliver a signed event that did not happen."""
        with contextlib.suppress(Exception):
            living = await self._list()
            if not living:
                return
            kind = ("killed", "paused", "resumed")[fault.value % 3]
            chosen = living[fault.number % len(living)]
            body = json.dumps(
                {
                    "version": "v2",
                    "id": f"forged-{fault.value}-{fault.at_s}",
                    "type": f"sandbox.lifecycle.{kind}",
                    "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                    "sandbox_id": chosen["sandboxID"],
                    "event_data": {"sandbox_metadata": chosen.get("metadata") or {}},
                }
            ).encode()
            signature = sign(await self._read_secret(), body)
            await self._deliver(f"e2b-signature: {signature}\r\n".encode(), body)

    async def _kill_instance(self, fault: Fault) -> None:
        with contextlib.suppress(httpx.HTTPError):
            living = await self._list()
            if not living or fault.value % 2:
                return
            chosen = living[fault.number % len(living)]
            owner = (chosen.get("metadata") or {}).get("sandkeeper-owner", "")
            self.oracle.lose_instance(owner)
            self._tell(f"the provider ends {chosen['sandboxID']} of {owner}")
            await self._ask_engine("DELETE", f"/sandboxes/{chosen['sandboxID']}")

    async def _deliver(self, head: bytes, body: bytes) -> int:
        """Hand a webhook to some replica, as a load balancer would."""
        headers = {}
        for line in head.decode(errors="replace").split("\r\n"):
            name, _, value = line.partition(": ")
            if name.lower().startswith("e2b-"):
                headers[name] = value
        up = [one for one in self._replicas if one.is_up]
        if not up:
            return 503
        url = f"{random.choice(up).url}/api/webhooks/e2b"
        try:
            if self._proxy.ahead_s:
                body = move_times(body, self._proxy.ahead_s)
                headers["e2b-signature"] = sign(await self._read_secret(), body)
            answer = await self._http.post(url, content=body, headers=headers)
        except (httpx.HTTPError, sqlite3.Error, asyncpg.PostgresError, OSError):
            return 503
        self.oracle.answer("a webhook", answer.status_code, answer.text)
        self.counts["webhooks"] += 1
        return answer.status_code

    async def _read_secret(self) -> str:
        """Return the secret of the webhooks; a restored database may have another one."""
        if not self._secret:
            found = await asyncio.to_thread(self._replicas[0].read_fact, "webhook.secret")
            assert found is not None
            self._secret = str(found)
        return self._secret

    # The users.

    async def _act_all(self) -> None:
        under_way = []
        for act in self._schedule.acts:
            await self._wait_until(act.at_s)
            under_way.append(asyncio.create_task(self._act(act)))
        await asyncio.gather(*under_way)

    async def _act(self, act: Act) -> None:
        """Do one thing at a time for each owner; skip it if the owner is still busy."""
        lock = self._locks[act.owner]
        if lock.locked():
            return
        async with lock:
            try:
                result = await getattr(self, f"_{act.verb.value}")(act)
            except (httpx.HTTPError, e2b.SandboxException, SandkeeperError) as error:
                result = type(error).__name__
            self.counts[act.verb.value] += 1
            self._tell(f"{act}: {result}")

    async def _create(self, act: Act) -> object:
        answer = await self._ask(act, "PUT", "", json={"policy": POLICY}, timeout=20)
        if answer.status_code in (200, 201):
            self._give(act.owner, answer.json().get("instanceId"))
        return answer.status_code

    async def _wake(self, act: Act) -> object:
        answers = await asyncio.gather(
            *(self._ask_wake(act, act.replica + number) for number in range(2)),
            return_exceptions=True,
        )
        return [one if isinstance(one, int) else type(one).__name__ for one in answers]

    async def _ask_wake(self, act: Act, replica: int) -> int:
        answer = await self._ask(act, "POST", "/wake?wait=15", replica=replica, timeout=20)
        return answer.status_code

    async def _edit(self, act: Act) -> object:
        """Write into the sandbox itself, after a wake that has finished."""
        woken = await self._ask_wake(act, act.replica)
        if woken != 200:
            return f"wake {woken}"
        status = await self._ask(act, "GET", "/status")
        instance_id = status.json().get("instanceId") if status.status_code == 200 else None
        if not instance_id:
            return "no instance"
        self._give(act.owner, instance_id)
        path = f"{WORKDIR}/file-{act.content % 3}"
        content = random.Random(act.content).randbytes(3000)
        number = self.oracle.edit(act.owner, path, _hash(content))
        sandbox = await self._provider.open_sdk_sandbox(instance_id)
        async with asyncio.timeout(8):
            await sandbox.files.write(path, content, request_timeout=6)
        self.oracle.promise(act.owner, path, number)
        return "written"

    async def _capture(self, act: Act) -> object:
        promises = self.oracle.read_promises(act.owner)
        answer = await self._ask(act, "POST", "/capture", timeout=15)
        if answer.status_code == 200:
            self.oracle.keep(act.owner, promises)
        return answer.status_code

    async def _pause(self, act: Act) -> object:
        told = self.oracle.told[act.owner]
        told.pausing += 1
        answer = await self._ask(act, "POST", "/pause", timeout=20)
        told.pausing -= 1
        return answer.status_code

    async def _kill(self, act: Act) -> object:
        self.oracle.lose_instance(act.owner)
        return (await self._ask(act, "DELETE", "", timeout=30)).status_code

    async def _lease(self, act: Act) -> object:
        """Hold a lease for a while; the sandbox must run until its end."""
        told = self.oracle.told[act.owner]
        begun = time.monotonic()
        answer = await self._ask(act, "POST", "/leases", json={"holder": "user"})
        if answer.status_code != 201:
            return answer.status_code
        told.leased_until = begun + PERIODS["session_lease_s"]
        await asyncio.sleep(4.5)
        told.leased_until = 0.0
        lease_id = answer.json()["lease"]["id"]
        released = await self._request(act.replica, "DELETE", f"/api/leases/{lease_id}")
        return f"held, {released.status_code}"

    async def _touch(self, act: Act) -> object:
        body = {"kind": "intent", "source": "faultlab"}
        return (await self._ask(act, "POST", "/activity", json=body)).status_code

    async def _verify(self, act: Act) -> object:
        return (await self._ask(act, "POST", "/verify")).status_code

    def _give(self, owner: str, instance_id: str | None) -> None:
        told = self.oracle.told[owner]
        if instance_id is not None and instance_id not in told.instances:
            told.instances.add(instance_id)
            told.may_end = False

    async def _ask(
        self, act: Act, method: str, path: str, *, replica: int | None = None, **given: Any
    ) -> httpx.Response:
        number = act.replica if replica is None else replica
        return await self._request(number, method, f"/api/sandboxes/{act.owner}{path}", **given)

    async def _request(self, number: int, method: str, path: str, **given: Any) -> httpx.Response:
        replica = self._choose(number)
        headers = {"Authorization": f"Bearer {KEY}"}
        answer = await self._http.request(method, replica.url + path, headers=headers, **given)
        self.oracle.answer(f"{method} {path}", answer.status_code, answer.text)
        return answer

    # The truth.

    async def _look_forever(self) -> None:
        while True:
            with contextlib.suppress(httpx.HTTPError):
                self.oracle.look(await self._list())
            await asyncio.sleep(0.2)

    async def _read_forever(self) -> None:
        """Read what a dashboard and an orchestrator read: it may fail, but not with a 500."""
        for number in itertools.count():
            up = [one for one, replica in enumerate(self._replicas) if replica.is_up]
            if up:
                with contextlib.suppress(httpx.HTTPError):
                    await self._request(up[number % len(up)], "GET", READS[number % len(READS)])
                self.counts["reads"] += 1
            await asyncio.sleep(0.2)

    async def _list(self) -> list[dict[str, Any]]:
        answer = await self._ask_engine("GET", "/v2/sandboxes?limit=100&state=running,paused")
        found: list[dict[str, Any]] = answer.json()
        return found

    async def _ask_engine(self, method: str, path: str) -> httpx.Response:
        headers = {"X-API-KEY": self._engine.key}
        answer = await self._http.request(method, self._engine.url + path, headers=headers)
        if method == "GET":
            answer.raise_for_status()
        return answer

    async def _heal(self) -> None:
        """End every fault, and start what is not running."""
        async with self._restoring:
            await self._end_tasks()
        self._proxy.fault = self._webhooks.fault = None
        self._proxy.ahead_s = self._schedule.provider_ahead_s
        await self._proxy.start()
        await self._webhooks.flush()
        for replica, ahead_s in zip(self._replicas, self._schedule.replicas_ahead_s, strict=False):
            replica.clock.move(ahead_s)
        if self._database.clock is not None:
            self._database.clock.move(0)
        self._wake_processes()
        for disk in (self._disk, self._database.disk):
            if disk is not None:
                disk.free()
        if self._engine.process is None:
            await asyncio.to_thread(self._engine.start)
        await asyncio.to_thread(self._database.start)
        for replica in self._replicas:
            if not replica.is_up:
                await asyncio.to_thread(replica.start)
        self._tell("healed")

    async def _settle(self) -> None:
        """Wait until every record is true and nothing is held, or something is stuck."""
        begun = time.monotonic()
        patience = Patience(self._count)
        while True:
            wrong, held = await self._find_differences()
            await self._count_runs(patience)
            patience.look((*wrong, *held))
            stuck = patience.find_stuck(wrong, passes=RECORD_PASSES)
            stuck += patience.find_stuck(held, passes=WORK_PASSES)
            if stuck or not (wrong or held):
                break
            await asyncio.sleep(1)
        for line in stuck:
            self.oracle.break_(f"{time.monotonic() - begun:.0f} s after healing: {line}")
        twice = await self._database.read(
            f"SELECT event_id, COUNT(*) FROM deliveries WHERE outcome IN {ABSORBED} "
            "GROUP BY event_id HAVING COUNT(*) > 1"
        )
        for event_id, count in twice:
            self.oracle.break_(f"the event {event_id} was absorbed {count} times")

    async def _count_runs(self, patience: Patience) -> None:
        for number in range(self._count):
            with contextlib.suppress(httpx.HTTPError):
                answer = await self._request(number, "GET", "/metrics")
                if found := RECONCILED_AT.search(answer.text):
                    patience.note_run(number, found[1])

    async def _find_differences(self) -> tuple[list[str], list[str]]:
        """Return what is wrong in the records, and what is still held or under way."""
        try:
            truth = {one["sandboxID"]: one["state"] for one in await self._list()}
            answer = await self._request(0, "GET", "/api/sandboxes?limit=100")
        except httpx.HTTPError as error:
            return [f"it does not answer: {error!r}"], []
        if answer.status_code != 200:
            return [f"the list answers {answer.status_code}"], []
        claims = await self._database.read(
            "SELECT owner_id, claim_kind, claim_holder, claim_until FROM sandboxes "
            "WHERE claim_holder IS NOT NULL"
        )
        wakes = await self._database.read(
            "SELECT owner_id, wakes.id, wakes.status, attempt, steps, due_at FROM wakes "
            "JOIN sandboxes ON sandboxes.id = wakes.sandbox_id WHERE finished_at IS NULL"
        )
        busy = {owner for owner, *_ in (*claims, *wakes)}
        wrong: list[str] = []
        held = [f"a claim is left over: {claim}" for claim in claims]
        held += [f"a wake is left over: {wake}" for wake in wakes]
        for record in answer.json()["items"]:
            state = truth.get(record["instanceId"] or "", "ended")
            told = record["status"].lower()
            # A creation that is still to be repeated has no instance, and says so.
            is_ended = told in ("killed", "expired", "terminated", "starting")
            if (state == "ended") != is_ended or (not is_ended and told != state):
                line = f"{record['project']} is {told} ({record['reason']}), truth {state}"
                (held if record["project"] in busy else wrong).append(line)
        return wrong, held

    async def _compare_files(self) -> None:
        """Wake every sandbox and read what was promised to be in it."""
        for owner, told in sorted(self.oracle.told.items()):
            if not told.files:
                continue
            act = Act(0, owner, Verb.WAKE, 0, 0)
            try:
                answer = await self._wake_healed(act)
                if answer.status_code != 200:
                    self.oracle.break_(f"{owner} does not wake after healing: {answer.text[:300]}")
                    continue
                status = (await self._ask(act, "GET", "/status")).json()
                sandbox = await self._provider.open_sdk_sandbox(status["instanceId"])
                for path in told.files:
                    self.oracle.compare_file(owner, path, await _read_hash(sandbox, path))
            except (httpx.HTTPError, e2b.SandboxException, SandkeeperError) as error:
                self.oracle.break_(f"{owner} cannot be compared: {error!r}")

    async def _wake_healed(self, act: Act) -> httpx.Response:
        """Ask until the wake is over, however long it takes here; then for a second one."""
        for _ in range(WAKES_MAX):
            answer = await self._ask(act, "POST", f"/wake?wait={WAKE_S}", timeout=GUARD_S)
            while answer.status_code == 202:
                answer = await self._ask(act, "POST", f"/wake?wait={WAKE_S}", timeout=GUARD_S)
            if answer.status_code == 200:
                break
        return answer

    async def _wait_until(self, at_s: float) -> None:
        while (left_s := self._begun + at_s - time.monotonic()) > 0 or not self._going.is_set():
            await self._going.wait()
            await asyncio.sleep(min(max(0.0, left_s), 0.1))

    def _tell(self, line: str) -> None:
        self.story.append(f"{time.monotonic() - self._begun:7.2f} {line}")


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


async def _read_hash(sandbox: e2b.AsyncSandbox, path: str) -> str | None:
    try:
        return _hash(bytes(await sandbox.files.read(path, format="bytes")))
    except e2b.NotFoundException:
        return None
