"""The state changes of a sandbox, and their order.

Each change has three steps under the sandbox's own lock: check the record again, let the runtime
act, write the new record together with its event. The write comes last, so a crash leaves an older
record and a machine that is one step ahead; `recovery` compares and repairs both. A kill is the
exception: its record is deleted first, so that a killed sandbox never comes back.

    create ─▶ running ⇄ paused          timeout: kill, or pause if the policy says so
                 │         │            kill: from either, at any time
                 ▼         ▼
               (no record, a `killed` event)
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace

from sandkeeper.engine.errors import (
    BadRequestError,
    ConflictError,
    LimitError,
    MachineError,
    ResourceNotFoundError,
)
from sandkeeper.engine.images.store import is_kept
from sandkeeper.engine.runtime.contract import (
    Egress,
    Isolation,
    Runtime,
    RuntimeFaultError,
    Usage,
)
from sandkeeper.engine.runtime.linux.fingerprint import compute_fingerprint
from sandkeeper.engine.sandboxes import events
from sandkeeper.engine.sandboxes.model import (
    RUN_MAX_S,
    CreateRequest,
    blueprint_fields,
    check_timeout,
    get_egress,
    make_fork,
    make_record,
    to_running_sandbox,
    wakes_on_traffic,
)
from sandkeeper.engine.sandboxes.operations import SandboxOperations, save_sandbox
from sandkeeper.engine.sandboxes.records import (
    EngineState,
    PauseMode,
    SandboxRecord,
    TemplateRecord,
)
from sandkeeper.engine.sandboxes.registry import SandboxEntry, SandboxRegistry, Transition
from sandkeeper.engine.sandboxes.routing import RunningSandbox, SandboxNotRoutableError
from sandkeeper.engine.storage.data_dir import DataDir, new_id
from sandkeeper.engine.storage.database import EngineDatabase
from sandkeeper.engine.templates.catalogue import TemplateCatalog

_log = logging.getLogger("sandkeeper.engine")

AUTO_RESUME_MIN_S = 300
REFRESH_MIN_S = 15
# At about a megabyte each, this fits a small machine; one more is refused with a 429.
SANDBOXES_MAX = 2000
_ADMIT_WAIT_S = 60.0
_REVIVALS_MAX = 5  # More would let a broken sandbox use the machine's CPU for ever.
_REVIVAL_S = 60.0


class SandboxLifecycle:
    """Decides and orders the changes of all sandboxes. Implements `SandboxLookup`."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        database: EngineDatabase,
        catalogue: TemplateCatalog,
        data_dir: DataDir,
        registry: SandboxRegistry,
        operations: SandboxOperations,
    ) -> None:
        self.runtime = runtime
        self.data_dir = data_dir
        self._database = database
        self._catalogue = catalogue
        self.registry = registry
        self._operations = operations

    # --- reading: never resumes, never changes ----------------------------------------------

    def get(self, sandbox_id: str) -> SandboxRecord:
        """Return a running or paused sandbox; one being created or killed is not found."""
        return self.registry.get_visible(sandbox_id).record

    def list_records(self) -> list[SandboxRecord]:
        return [e.record for _, e in self.registry.list_entries() if not e.is_hidden]

    def metrics(self, sandbox_id: str) -> list[tuple[float, Usage]]:
        return self.registry.get_visible(sandbox_id).metrics.list()

    async def measure(self, sandbox_id: str) -> tuple[float, Usage] | None:
        """Return what a sandbox uses now; of a paused one, what it used last; None if unknown."""
        entry = self.registry.get_visible(sandbox_id)
        if entry.takes_traffic:
            with contextlib.suppress(RuntimeFaultError):
                return time.time(), await self.runtime.usage(sandbox_id)
        return entry.metrics.last

    async def read_fingerprint(
        self, sandbox_id: str, path: str, skipped: frozenset[str]
    ) -> str | None:
        """Return the fingerprint of a folder; None if it has none, or does not run.

        gVisor holds changes back from the host's kernel, so its sandboxes have none.
        """
        entry = self.registry.get_visible(sandbox_id)
        if not entry.takes_traffic or entry.record.isolation != Isolation.BUBBLEWRAP:
            return None
        try:
            root = os.dup(self.runtime.root(sandbox_id))
        except RuntimeFaultError:
            return None
        return await asyncio.to_thread(_read_fingerprint, root, path, skipped)

    def find(self, sandbox_id: str) -> RunningSandbox | None:
        return self.registry.find(sandbox_id)

    def running(self) -> Iterable[RunningSandbox]:
        return self.registry.running()

    # --- changes --------------------------------------------------------------------------

    async def create(self, request: CreateRequest) -> SandboxRecord:
        """Start a sandbox. On failure nothing of it is left."""
        self._check_capacity(1)
        record = make_record(request, time.time())
        with self.data_dir.headroom(record.id):
            started = await self._operations.boot_new(record)
        self._catalogue.record_spawn(request.origin.template)
        return started

    async def pause(self, sandbox_id: str, *, memory: bool) -> None:
        """Pause a running sandbox; ConflictError if it is paused."""
        async with self._holding(sandbox_id, Transition.PAUSING) as entry:
            if entry.record.state == EngineState.PAUSED:
                raise ConflictError(f'Sandbox "{sandbox_id}" is already paused')
            await self._operations.pause(entry, memory=memory)

    async def connect(
        self, sandbox_id: str, timeout_s: int, *, memory: bool = True
    ) -> tuple[SandboxRecord, bool]:
        """Make it run for at least that long; return True if it had to be resumed."""
        check_timeout(timeout_s)
        present = self.registry.find_entry(sandbox_id)
        if present is not None and present.transition is Transition.KILLING:
            raise ConflictError(f'Sandbox "{sandbox_id}" is being killed')
        async with self._holding(sandbox_id, Transition.RESUMING) as entry:
            if entry.record.state == EngineState.PAUSED:
                return await self._operations.resume(entry, timeout_s, memory=memory), True
            return await self._operations.extend(entry, time.time() + timeout_s), False

    async def resume(
        self, sandbox_id: str, timeout_s: int, *, memory: bool, auto_pause: bool | None
    ) -> SandboxRecord:
        """Resume a paused sandbox; ConflictError if it runs."""
        check_timeout(timeout_s)
        async with self._holding(sandbox_id, Transition.RESUMING) as entry:
            if entry.record.state == EngineState.RUNNING:
                raise ConflictError(f'Sandbox "{sandbox_id}" is already running')
            if auto_pause is not None:
                entry.record = replace(entry.record, auto_pause=auto_pause)
            return await self._operations.resume(entry, timeout_s, memory=memory)

    async def set_timeout(self, sandbox_id: str, timeout_s: int) -> None:
        """Set a new end, earlier or later; zero ends the run immediately."""
        if timeout_s > RUN_MAX_S:
            raise BadRequestError(f"Timeout cannot be greater than {RUN_MAX_S // 3600} hours")
        async with self._holding(sandbox_id, Transition.UPDATING) as entry:
            self._check_running(entry)
            now = time.time()
            latest = entry.record.started_at + RUN_MAX_S
            if now >= latest:
                raise BadRequestError("Max instance length exceeded")
            await self._operations.set_end(entry, min(now + max(0, timeout_s), latest))

    async def refresh(self, sandbox_id: str, duration_s: int) -> None:
        """Move the end later, never earlier."""
        async with self._holding(sandbox_id, Transition.UPDATING) as entry:
            self._check_running(entry)
            wanted = time.time() + min(max(duration_s, REFRESH_MIN_S), RUN_MAX_S)
            await self._operations.extend(entry, wanted)

    async def set_egress(self, sandbox_id: str, egress: Egress, internet: bool | None) -> None:
        """Replace the egress rules of a running sandbox."""
        async with self._holding(sandbox_id, Transition.UPDATING) as entry:
            self._check_running(entry)
            if egress.rules and entry.record.isolation == Isolation.GVISOR:
                raise BadRequestError("field 'network.rules': not behind gVisor's wall")
            try:
                await self.runtime.set_egress(sandbox_id, egress)
                await self._operations.egress_proxy.open(sandbox_id, egress)
            except RuntimeFaultError as fault:
                raise BadRequestError(f"network: {fault}") from fault
            record = replace(
                entry.record,
                allow_internet=internet,
                allow_out=egress.allow_out,
                deny_out=egress.deny_out,
                rules={host: dict(headers) for host, headers in egress.rules.items()},
            )
            rules = {
                "allowed_cidrs": [a for a in egress.allow_out if a[:1].isdigit()],
                "allowed_domains": [a for a in egress.allow_out if not a[:1].isdigit()],
                "denied_cidrs": list(egress.deny_out),
            }
            await self._operations.write(entry, record, events.UPDATED, network_egress=rules)

    async def refresh_names(self, sandbox_id: str) -> None:
        """Resolve the names in an allow list again; what it means may have changed."""
        with contextlib.suppress(ResourceNotFoundError):
            async with self._holding(sandbox_id, Transition.UPDATING) as entry:
                if entry.record.state == EngineState.RUNNING:
                    await self.runtime.set_egress(sandbox_id, get_egress(entry.record))

    async def repair_egress(self) -> None:
        """Open the egress proxy again after a restart, and close it for what has ended."""
        proxy = self._operations.egress_proxy
        proxy.close_ended()
        for sandbox_id, entry in self.registry.list_entries():
            if entry.takes_traffic and entry.record.rules and proxy.is_missing(sandbox_id):
                with contextlib.suppress(ResourceNotFoundError):
                    async with self._holding(sandbox_id, Transition.UPDATING) as held:
                        if held.record.state == EngineState.RUNNING:
                            await proxy.reopen(sandbox_id, get_egress(held.record))

    async def kill(self, sandbox_id: str, reason: str = "request") -> None:
        """End a sandbox, running or paused, and delete its disk."""
        async with self._holding(sandbox_id, Transition.KILLING) as entry:
            await self._operations.kill(entry, reason)

    async def expire(self, sandbox_id: str) -> None:
        """Apply the timeout policy if the end of the run has passed."""
        with contextlib.suppress(ResourceNotFoundError):
            async with self._holding(sandbox_id, Transition.PAUSING) as entry:
                record = entry.record
                if record.state != EngineState.RUNNING or record.end_at > time.time():
                    return
                if record.auto_pause:
                    await self._operations.pause(entry, memory=record.auto_pause_memory)
                else:
                    entry.transition = Transition.KILLING
                    await self._operations.kill(entry, "timeout")

    async def snapshot(self, sandbox_id: str, name: str | None) -> TemplateRecord:
        """Copy the disk of a running sandbox into a template of its own."""
        layer_id = new_id()
        with self.data_dir.headroom(layer_id):
            async with self._holding(sandbox_id, Transition.SNAPSHOTTING) as entry:
                self._check_not_paused(entry)
                async with self._operations.frozen(sandbox_id):
                    await self._operations.copy_disk(sandbox_id, layer_id)
                template = await self._catalogue.add_snapshot(
                    blueprint_fields(entry.record, layer_id), sandbox_id, name
                )
                await self._operations.write(entry, entry.record, events.CHECKPOINTED, memory=False)
        return template

    async def fork(
        self, sandbox_id: str, count: int, timeout_s: int
    ) -> list[SandboxRecord | Exception]:
        """Start forks from a copy of the disk. Each fails or succeeds on its own."""
        check_timeout(timeout_s)
        self._check_capacity(count)
        layer_id = new_id()
        now = time.time()
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(self.data_dir.headroom(layer_id))
            async with self._holding(sandbox_id, Transition.SNAPSHOTTING) as entry:
                self._check_not_paused(entry)
                async with self._operations.frozen(sandbox_id):
                    await self._operations.copy_disk(sandbox_id, layer_id)
                await self._operations.write(entry, entry.record, events.CHECKPOINTED, memory=False)
                source = entry.record
            forks = [make_fork(source, layer_id, timeout_s, now) for _ in range(count)]
            stack.enter_context(self.data_dir.headroom(*(fork.id for fork in forks)))
            outcomes = await asyncio.gather(
                *(self._operations.boot_new(fork) for fork in forks),
                return_exceptions=True,
            )
        await self.sweep_layers()
        return [_get_outcome(outcome) for outcome in outcomes]

    async def get_ready(
        self, sandbox_id: str, may_enter: Callable[[RunningSandbox], bool]
    ) -> RunningSandbox:
        entry = self.registry.find_entry(sandbox_id)
        if entry is None or entry.is_hidden:
            raise SandboxNotRoutableError(sandbox_id)
        if entry.takes_traffic:
            return to_running_sandbox(entry.record)
        if entry.transition is None and not wakes_on_traffic(entry.record):
            raise SandboxNotRoutableError(sandbox_id)
        try:
            async with self._holding(sandbox_id, Transition.RESUMING, wait_s=_ADMIT_WAIT_S) as held:
                return await self._admit(held, may_enter)
        except (ResourceNotFoundError, MachineError, TimeoutError) as error:
            raise SandboxNotRoutableError(sandbox_id) from error

    async def _admit(
        self, entry: SandboxEntry, may_enter: Callable[[RunningSandbox], bool]
    ) -> RunningSandbox:
        sandbox = to_running_sandbox(entry.record)
        record = entry.record
        if record.state == EngineState.RUNNING:
            return sandbox
        if not wakes_on_traffic(record):
            raise SandboxNotRoutableError(record.id)
        if may_enter(sandbox):
            await self._operations.resume(
                entry, max(record.timeout_s, AUTO_RESUME_MIN_S), memory=True
            )
        return sandbox

    # --- for recovery and the sweeps ------------------------------------------------------

    async def revive(self, sandbox_id: str) -> None:
        """Restart from its disk a sandbox that should run but has no processes.

        If that fails, or happens too often, it stays paused: its disk is intact, and a client can
        connect later.
        """
        with contextlib.suppress(ResourceNotFoundError):
            async with self._holding(sandbox_id, Transition.RESUMING) as entry:
                if entry.record.state != EngineState.RUNNING or self.runtime.is_alive(sandbox_id):
                    return
                self._operations.drop_connections(sandbox_id)
                left_s = max(1, round(entry.record.end_at - time.time()))
                now = time.monotonic()
                entry.revivals = [at for at in entry.revivals if now - at < _REVIVAL_S] + [now]
                if len(entry.revivals) > _REVIVALS_MAX:
                    _log.error("%s is paused: its first process ends each time", sandbox_id)
                    await self._operations.mark_paused_without_memory(entry)
                    return
                try:
                    entry.record = replace(entry.record, memory_lost=True)
                    await self._operations.resume(entry, left_s, memory=False)
                except (MachineError, BadRequestError):
                    _log.exception("%s is paused: it could not be started", sandbox_id)
                    await self._operations.mark_paused_without_memory(entry)

    async def record_lost_memory(self, sandbox_id: str) -> None:
        """Record that a paused sandbox has only its disk left."""
        entry = self.registry.get_visible(sandbox_id)
        record = replace(entry.record, pause_mode=PauseMode.FILESYSTEM, memory_lost=True)
        await self._database.run(lambda c: save_sandbox(c, record))
        entry.record = record

    async def sweep_layers(self) -> None:
        """Delete layers that no template and no sandbox needs."""
        used = self._catalogue.layers_in_use()
        for _, entry in self.registry.list_entries():
            used.update(entry.record.layers)
        for folder in await asyncio.to_thread(lambda: list(self.data_dir.layers.iterdir())):
            if folder.name in used or self.data_dir.is_reserved(folder.name):
                continue
            if not is_kept(folder, time.time()):
                await self.runtime.discard(folder)

    # --- locking ----------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _holding(
        self, sandbox_id: str, transition: Transition, wait_s: float | None = None
    ) -> AsyncIterator[SandboxEntry]:
        """Hold a sandbox's lock, and set its transition until it is released."""
        entry = self.registry.get_visible(sandbox_id)
        async with asyncio.timeout(wait_s):
            await entry.lock.acquire()
        try:
            if self.registry.find_entry(sandbox_id) is not entry or entry.is_hidden:
                raise ResourceNotFoundError.of_sandbox(sandbox_id)
            entry.transition = transition
            yield entry
        finally:
            entry.transition = None
            entry.lock.release()

    def _check_running(self, entry: SandboxEntry) -> None:
        if entry.record.state != EngineState.RUNNING:
            raise ResourceNotFoundError.of_sandbox(entry.record.id)

    def _check_not_paused(self, entry: SandboxEntry) -> None:
        if entry.record.state == EngineState.PAUSED:
            raise ConflictError(f'Sandbox "{entry.record.id}" is paused')

    def _check_capacity(self, count: int) -> None:
        if len(self.registry) + count > SANDBOXES_MAX:
            raise LimitError(f"this engine holds {SANDBOXES_MAX} sandboxes at most")


def _read_fingerprint(root: int, path: str, skipped: frozenset[str]) -> str | None:
    """Use and close a descriptor of our own, which stays open if the request is cancelled."""
    try:
        return compute_fingerprint(root, path, skipped)
    finally:
        os.close(root)


def _get_outcome(outcome: SandboxRecord | BaseException) -> SandboxRecord | Exception:
    """Return a fork's record or error; raise if the fork was interrupted."""
    if isinstance(outcome, SandboxRecord | Exception):
        return outcome
    raise outcome
