"""The operations on one locked sandbox: the runtime acts, then the database is written.

Each ends in one transaction with the new record and its event; only then is either visible.
A crash in between leaves the older record, which `recovery` compares with the machine.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import time
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

from sandkeeper.engine.egress_proxy.proxy import EgressProxy
from sandkeeper.engine.errors import BadRequestError, MachineError, NoRoomError
from sandkeeper.engine.interpreter.layer import PackagesLayer
from sandkeeper.engine.runtime.contract import (
    BootPlan,
    DiskFullError,
    Isolation,
    ResourceLimits,
    Runtime,
    RuntimeFaultError,
)
from sandkeeper.engine.sandboxes import events
from sandkeeper.engine.sandboxes.commands import start_service, wait_until_ready
from sandkeeper.engine.sandboxes.model import RUN_MAX_S, get_egress, get_env, list_notes
from sandkeeper.engine.sandboxes.records import EngineState, PauseMode, SandboxRecord
from sandkeeper.engine.sandboxes.registry import SandboxEntry, SandboxRegistry, Transition
from sandkeeper.engine.sandboxes.webhooks import WebhookSender
from sandkeeper.engine.storage.data_dir import DataDir
from sandkeeper.engine.storage.database import EngineDatabase

_log = logging.getLogger("sandkeeper.engine")

_READY_WAIT_S = 60.0


class SandboxOperations:
    """Carries out the lifecycle's decisions. The caller holds the sandbox's lock."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        database: EngineDatabase,
        webhooks: WebhookSender,
        data_dir: DataDir,
        registry: SandboxRegistry,
        packages: PackagesLayer,
        egress_proxy: EgressProxy,
        drop_connections: Callable[[str], None],
    ) -> None:
        """Take `drop_connections`, which ends a sandbox's open requests when it stops."""
        self._runtime = runtime
        self._database = database
        self._webhooks = webhooks
        self._data_dir = data_dir
        self._registry = registry
        self._packages = packages
        self.egress_proxy = egress_proxy
        self.drop_connections = drop_connections

    async def boot_new(self, record: SandboxRecord) -> SandboxRecord:
        """Boot a new sandbox and save its record; on failure undo everything."""
        entry = self._registry.add(record, Transition.STARTING)
        try:
            async with entry.lock:
                await self._boot(record)
                now = time.time()
                length = record.end_at - record.started_at
                started = replace(record, created_at=now, started_at=now, end_at=now + length)
                await self.write(entry, started, events.CREATED)
                entry.transition = None
        except BaseException:
            self._registry.remove(record.id)
            await self.delete_resources(record.id)
            raise
        self._registry.note_end(entry.record.end_at)
        return entry.record

    async def _boot(self, record: SandboxRecord) -> None:
        """Start the first process and, where the template has one, its start command."""
        layers = tuple(self._data_dir.layer(layer) for layer in record.layers)
        plan = BootPlan(
            sandbox_id=record.id,
            layers=self._packages.add_to(layers, record.services),
            upper=self._data_dir.upper(record.id),
            work=self._data_dir.work(record.id),
            limits=ResourceLimits(cpu_count=record.cpu_count, memory_mb=record.memory_mb),
            egress=get_egress(record),
            mounts={path: self._data_dir.volumes / one for path, one in record.mounts.items()},
            isolation=Isolation(record.isolation),
            is_whole=record.image is not None,
            notes=list_notes(record),
        )
        try:
            await self._runtime.boot(plan)
            await self.egress_proxy.open(record.id, plan.egress)
            if record.start_cmd:
                await self._start_service(record)
        except RuntimeFaultError as fault:
            is_limited = record.allow_out or record.deny_out or record.rules
            if is_limited and not isinstance(fault, DiskFullError):
                raise BadRequestError(f"network: {fault}") from fault
            raise _describe("the sandbox could not be started", fault) from fault

    async def _start_service(self, record: SandboxRecord) -> None:
        assert record.start_cmd is not None
        where = {"env": get_env(record), "user": record.user, "cwd": record.workdir}
        try:
            await start_service(self._runtime, record.id, record.start_cmd, **where)  # type: ignore[arg-type]  # one dict, three types
            if record.ready_cmd:
                await wait_until_ready(
                    self._runtime,
                    record.id,
                    record.ready_cmd,
                    within_s=_READY_WAIT_S,
                    **where,  # type: ignore[arg-type]  # one dict, three types
                )
        except (TimeoutError, FileNotFoundError):
            _log.warning("the start command of %s did not start", record.id)

    async def pause(self, entry: SandboxEntry, *, memory: bool) -> None:
        record = entry.record
        try:
            if memory:
                await self._runtime.freeze(record.id)
            else:
                self.egress_proxy.close(record.id)
                await self._runtime.halt(record.id)
        except RuntimeFaultError as fault:
            raise MachineError(f"the sandbox could not be paused: {fault}") from fault
        paused = replace(
            record,
            state=EngineState.PAUSED,
            end_at=time.time(),
            pause_mode=PauseMode.FULL if memory else PauseMode.FILESYSTEM,
            memory_lost=False,
        )
        await self.write(entry, paused, events.PAUSED)
        self.drop_connections(record.id)

    async def mark_paused_without_memory(self, entry: SandboxEntry) -> None:
        """Record as paused a sandbox that has no processes any more."""
        paused = replace(
            entry.record,
            state=EngineState.PAUSED,
            end_at=time.time(),
            pause_mode=PauseMode.FILESYSTEM,
            memory_lost=True,
        )
        await self.write(entry, paused, events.PAUSED, memory_lost=True)

    async def resume(self, entry: SandboxEntry, timeout_s: int, *, memory: bool) -> SandboxRecord:
        """Thaw, or boot from the disk if there is no memory or the caller does not want it."""
        record = entry.record
        alive = self._runtime.is_alive(record.id)
        warm = memory and alive
        try:
            if warm:
                await self._runtime.thaw(record.id)
            else:
                await self._runtime.halt(record.id)
                await self._boot(record)
        except RuntimeFaultError as fault:
            raise MachineError(f"the sandbox could not be resumed: {fault}") from fault
        now = time.time()
        lost = record.memory_lost or (
            memory and not alive and record.pause_mode != PauseMode.FILESYSTEM
        )
        running = replace(
            record,
            state=EngineState.RUNNING,
            execution_id=str(uuid.uuid4()),
            started_at=now,
            end_at=now + timeout_s,
            pause_mode=None,
            memory_lost=False,
        )
        details = {"memory_lost": True} if lost else {}
        await self.write(entry, running, events.RESUMED, **details)
        self._registry.note_end(running.end_at)
        return running

    async def extend(self, entry: SandboxEntry, wanted: float) -> SandboxRecord:
        """Move the end later, within the longest run."""
        latest = entry.record.started_at + RUN_MAX_S
        return await self.set_end(entry, max(entry.record.end_at, min(wanted, latest)))

    async def set_end(self, entry: SandboxEntry, end_at: float) -> SandboxRecord:
        record = replace(entry.record, end_at=end_at)
        await self.write(entry, record, events.UPDATED, set_timeout=events.render_instant(end_at))
        self._registry.note_end(end_at)
        return record

    async def kill(self, entry: SandboxEntry, reason: str) -> None:
        record = entry.record
        event = events.make_event(events.KILLED, record, time.time(), kill_reason=reason)

        def write(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM sandboxes WHERE id = ?", (record.id,))
            events.append(connection, event)

        await self._database.run(write)
        self.drop_connections(record.id)
        try:
            await self.delete_resources(record.id)
        finally:
            self._registry.remove(record.id)
            self._webhooks.wake_up()

    async def delete_resources(self, sandbox_id: str) -> None:
        """End the processes and delete the disk. What fails here is left to the sweep."""
        self.egress_proxy.close(sandbox_id)
        try:
            await self._runtime.halt(sandbox_id)
            disk = self._data_dir.disk(sandbox_id)
            if disk.exists():
                await self._runtime.discard(disk)
        except (RuntimeFaultError, OSError):
            _log.exception("the resources of a sandbox were not deleted; the sweep tries again")

    async def copy_disk(self, sandbox_id: str, layer_id: str) -> None:
        try:
            await self._runtime.copy_disk(
                self._data_dir.upper(sandbox_id), self._data_dir.layer(layer_id)
            )
        except (RuntimeFaultError, OSError) as fault:
            raise _describe("the disk could not be copied", fault) from fault

    async def write(
        self, entry: SandboxEntry, record: SandboxRecord, kind: str, **data: Any
    ) -> None:
        """Save the change and its event in one transaction, then make both visible."""
        event = events.make_event(kind, record, time.time(), **data)

        def write(connection: sqlite3.Connection) -> None:
            save_sandbox(connection, record)
            events.append(connection, event)

        await self._database.run(write)
        entry.record = record
        self._webhooks.wake_up()

    @contextlib.asynccontextmanager
    async def frozen(self, sandbox_id: str) -> AsyncIterator[None]:
        """Freeze the processes while the disk is copied, so that the copy is of one moment."""
        await self._runtime.freeze(sandbox_id)
        try:
            yield
        finally:
            await self._runtime.thaw(sandbox_id)


def _describe(what: str, fault: Exception) -> MachineError:
    """Return the error for the API; a full disk has its own, because the caller can free it."""
    kind = NoRoomError if isinstance(fault, DiskFullError) else MachineError
    return kind(f"{what}: {fault}")


def save_sandbox(connection: sqlite3.Connection, record: SandboxRecord) -> None:
    """Write a sandbox's record, new or changed."""
    connection.execute(
        "INSERT INTO sandboxes (id, record) VALUES (?, ?) "
        "ON CONFLICT (id) DO UPDATE SET record = excluded.record",
        (record.id, record.to_json()),
    )
