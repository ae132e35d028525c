"""The runtime that makes sandboxes with bubblewrap. Implements the contract's `Runtime`.

The engine's process decides and reads; everything that needs a fork goes to the spawner. The record
of a living sandbox is a file below `run/`, written by the worker that booted it, so a new engine
starts from the facts: the records whose first process still lives.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import logging
import os
import resource
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from sandkeeper.engine.runtime import capabilities
from sandkeeper.engine.runtime.base import rootfs
from sandkeeper.engine.runtime.bubblewrap import binaries, disks
from sandkeeper.engine.runtime.bubblewrap.child import RunningChild
from sandkeeper.engine.runtime.bubblewrap.sandbox_handle import SandboxHandle
from sandkeeper.engine.runtime.contract import (
    BootPlan,
    Capability,
    Child,
    Command,
    DiskFullError,
    Egress,
    Isolation,
    NotAliveError,
    NothingListensError,
    RuntimeFaultError,
    Usage,
)
from sandkeeper.engine.runtime.egress import backends, names, network, veth
from sandkeeper.engine.runtime.gvisor import runsc, trial
from sandkeeper.engine.runtime.linux import cgroups, hibernation, process_records, seccomp
from sandkeeper.engine.runtime.spawner import orphans
from sandkeeper.engine.runtime.spawner.client import SpawnerClient

log = logging.getLogger(__name__)

_DIAL_WAIT_S = 5.0
_END_WAIT_S = 20.0
_EARLY_CODES_MAX = 1024
_SOCKETS_AHEAD = {socket.AF_INET: 6, socket.AF_INET6: 2}


class BubblewrapRuntime:
    """Makes, freezes and ends sandboxes below one data folder."""

    def __init__(self, data: Path, *, backend: str | None = None) -> None:
        """Take the network `backend`; by default the best one available."""
        self._wanted_backend = backend
        self._data = data.absolute()
        self._run = self._data / "run"
        self._handles: dict[str, SandboxHandle] = {}
        self._children: dict[int, RunningChild] = {}
        self._early_codes: dict[int, int] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._disks = disks.Disks(self._data)
        self._spawner: SpawnerClient | None = None
        self._uid_base = binaries.find_uid_base()
        self._names = names.NameResolver()
        self._filter = (seccomp.build_filter() or b"").hex()
        self.group_prefix = cgroups.name_prefix(self._data)

    # Start and end of the engine

    async def start(self) -> None:
        for folder in (self._data, self._run):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self._machine = process_records.read_machine()
        self._tool = binaries.find_bubblewrap()
        self._spawner = SpawnerClient(self._data, self._on_spawner_message, self._on_spawner_lost)
        self._backend, self._base, _connected = await asyncio.gather(
            asyncio.to_thread(lambda: self._wanted_backend or backends.find_best()),
            asyncio.to_thread(rootfs.ensure_base, self._data, self._uid_base),
            self._spawner.connect(),
        )
        await self._disks.start()
        for sandbox_id in process_records.list_booting(self._run):
            await asyncio.to_thread(self._await_boot, sandbox_id)
        for record in process_records.read_records(self._run):
            await self._undo_boot(record)
        await asyncio.to_thread(orphans.end_orphans, self._data, set(self._handles))
        if not self._handles:
            await self._discard_old_bases()

    async def close(self) -> None:
        for child in self._children.values():
            child.detach()
        self._children.clear()
        if self._spawner is not None:
            await self._spawner.close()
        for handle in self._handles.values():
            handle.close()
        self._handles.clear()
        await self._disks.close()

    # Sandboxes

    async def prove(self, isolation: Isolation) -> None:
        if isolation is Isolation.GVISOR:
            await trial.run_trial(self, self._data)

    async def boot(self, plan: BootPlan) -> None:
        async with self._lock(plan.sandbox_id):
            if self.is_alive(plan.sandbox_id):
                return
            await self._end(plan.sandbox_id)
            answer = await self._call_spawner(
                {
                    "op": "boot",
                    "id": plan.sandbox_id,
                    "machine": self._machine,
                    "run": str(self._run),
                    "tool": self._tool,
                    "base": str(self._base),
                    "layers": [str(layer.absolute()) for layer in plan.layers],
                    "is_whole": plan.is_whole,
                    "upper": str(plan.upper.absolute()),
                    "work": str(plan.work.absolute()),
                    "uid_base": self._uid_base,
                    # The owners of the host's files have no id in another namespace.
                    "maps_owners": self._uid_base == binaries.UID_BASE,
                    "group_prefix": self.group_prefix,
                    "limits": dataclasses.asdict(plan.limits),
                    "hostname": rootfs.HOSTNAME,
                    "filter": self._filter,
                    "backend": self._backend,
                    "routes": await self._plan_routes(plan.egress),
                    "mounts": {path: str(one.absolute()) for path, one in plan.mounts.items()},
                    "notes": dict(plan.notes),
                    "isolation": plan.isolation,
                    **await asyncio.to_thread(runsc.describe_program, plan.isolation),
                }
            )
            self._open_handle(answer[0]["record"])

    def is_alive(self, sandbox_id: str) -> bool:
        handle = self._handles.get(sandbox_id)
        return handle is not None and handle.is_alive()

    def is_frozen(self, sandbox_id: str) -> bool:
        handle = self._handles.get(sandbox_id)
        return handle is not None and handle.is_alive() and bool(handle.record["frozen"])

    def living(self) -> list[str]:
        return [sandbox_id for sandbox_id in self._handles if self.is_alive(sandbox_id)]

    async def freeze(self, sandbox_id: str) -> None:
        await self._set_frozen(sandbox_id, frozen=True)

    async def thaw(self, sandbox_id: str) -> None:
        await self._set_frozen(sandbox_id, frozen=False)

    async def move_to_swap(self, sandbox_id: str) -> int:
        # Without the sandbox's lock: a thaw need not wait until the disk has taken everything.
        record = self._get_handle(sandbox_id).record
        if not record["frozen"] or not record["group"]:
            return 0
        return await asyncio.to_thread(hibernation.move_to_swap, record["group"])

    async def halt(self, sandbox_id: str) -> None:
        async with self._lock(sandbox_id):
            await self._end(sandbox_id)

    # Processes inside

    async def spawn(self, sandbox_id: str, command: Command) -> Child:
        handle = self._get_handle(sandbox_id)
        if handle.record["frozen"]:
            raise RuntimeFaultError(f"sandbox {sandbox_id} is frozen")
        described, descriptors = await self._call_spawner(
            {
                "op": "spawn",
                "sandbox": handle.record,
                "argv": list(command.argv),
                "env": dict(command.env),
                "user": command.user,
                "cwd": command.cwd,
                "size": list(command.size) if command.size else None,
                "stdin": command.stdin,
                "label": base64.b64encode(command.label).decode(),
                "filter": self._filter,
            }
        )
        return self._adopt(described, descriptors)

    def children(self, sandbox_id: str) -> list[Child]:
        return [child for child in self._children.values() if child.sandbox_id == sandbox_id]

    async def dial(self, sandbox_id: str, port: int) -> socket.socket:
        handle = self._get_handle(sandbox_id)
        loop = asyncio.get_running_loop()
        for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            sock = handle.take_socket(family)
            if sock is None:
                await self._fetch_sockets(handle, family)
                sock = handle.take_socket(family)
            if sock is None:
                continue
            try:
                await asyncio.wait_for(loop.sock_connect(sock, (host, port)), _DIAL_WAIT_S)
            except (OSError, TimeoutError):
                sock.close()
            except BaseException:
                sock.close()
                raise
            else:
                return sock
        self._get_handle(sandbox_id)
        raise NothingListensError(f"nothing listens on port {port} in sandbox {sandbox_id}")

    def root(self, sandbox_id: str) -> int:
        return self._get_handle(sandbox_id).root

    def ids(self, sandbox_id: str) -> Mapping[str, tuple[int, int]]:
        return self._get_handle(sandbox_id).list_ids()

    def find_account(self, sandbox_id: str, name: str) -> tuple[tuple[int, int], str]:
        return self._get_handle(sandbox_id).find_account(name)

    # Network and disk

    async def set_egress(self, sandbox_id: str, egress: Egress) -> None:
        routes = await self._plan_routes(egress)
        async with self._lock(sandbox_id):
            handle = self._get_handle(sandbox_id)
            record = handle.record
            if not routes:
                await asyncio.to_thread(backends.disconnect, record)
                record["routes"] = []
            elif backends.is_connected(record):
                present = record["routes"]
                if sorted(map(tuple, present)) == sorted(routes):
                    return
                order = {"op": "routes", "sandbox": record, "present": present, "routes": routes}
                await self._call_spawner(order)
                record["routes"] = routes
            elif self._backend:
                order = {"op": "network", "sandbox": record, "backend": self._backend}
                order["routes"] = routes
                answer, _descriptors = await self._call_spawner(order)
                record |= {name: answer[name] for name in ("device", "helper", "routes")}
            process_records.write_record(self._run, record)

    async def intercept(
        self, sandbox_id: str, names: Sequence[str], authority: str
    ) -> list[socket.socket]:
        order: dict[str, Any] = {"op": "intercept", "names": [*names], "authority": authority}
        order["sandbox"] = self._get_handle(sandbox_id).record
        _answer, descriptors = await self._call_spawner(order)
        return [socket.socket(fileno=fd) for fd in descriptors]

    async def find_addresses(self, sandbox_id: str, name: str, *, is_allowed: bool) -> list[str]:
        routes = [(kind, cidr) for kind, cidr in self._get_handle(sandbox_id).record["routes"]]
        return await self._names.find(name, routes, is_allowed=is_allowed)

    async def guard(self) -> None:
        if self._backend == veth.NAME:
            await asyncio.to_thread(veth.guard)

    async def usage(self, sandbox_id: str) -> Usage:
        handle = self._get_handle(sandbox_id)
        usage = await asyncio.to_thread(handle.measure, self._disks)
        is_full = usage.disk_used >= usage.disk_total
        # Again and again while it is full: a program may raise the limit that it got.
        if is_full or self.is_full(sandbox_id):
            async with self._lock(sandbox_id):
                await self._set_full(self._get_handle(sandbox_id), is_full=is_full)
        return usage

    def is_full(self, sandbox_id: str) -> bool:
        handle = self._handles.get(sandbox_id)
        return handle is not None and bool(handle.record.get("full"))

    async def copy_disk(self, source: Path, target: Path) -> None:
        await self._disks.copy(source, target)

    async def discard(self, folder: Path) -> None:
        await self._disks.discard(folder)

    def capabilities(self) -> list[Capability]:
        return capabilities.check_all(self._data)

    # Inside

    def _lock(self, sandbox_id: str) -> asyncio.Lock:
        return self._locks.setdefault(sandbox_id, asyncio.Lock())

    def _get_handle(self, sandbox_id: str) -> SandboxHandle:
        handle = self._handles.get(sandbox_id)
        if handle is None or not handle.is_alive():
            raise NotAliveError(f"sandbox {sandbox_id} has no living process")
        return handle

    def _await_boot(self, sandbox_id: str) -> None:
        """Wait for a boot that an earlier engine ordered; remove its files if it failed."""
        with process_records.lock_boot(self._run, sandbox_id):
            if process_records.find_record(self._run, sandbox_id) is None:
                process_records.forget(self._run, sandbox_id)

    async def _discard_old_bases(self) -> None:
        """Delete the bases that were made from other programs of the host and that nothing uses."""
        for folder in self._data.glob("base-*"):
            if folder != self._base and not folder.is_symlink():
                await self._disks.discard(folder)

    async def _undo_boot(self, record: dict[str, Any]) -> None:
        """Adopt a sandbox of an earlier engine, or delete what is left of it."""
        deadline = asyncio.get_running_loop().time() + _END_WAIT_S
        while process_records.is_living(record, self._machine):
            try:
                self._open_handle(record)
            except NotAliveError:
                # Its first process is exiting and waits only for its children.
                if asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(0.01)
            else:
                return
        await asyncio.to_thread(self._delete_resources, record)

    def _open_handle(self, record: dict[str, Any]) -> None:
        try:
            self._handles[record["id"]] = SandboxHandle(record)
        except OSError as error:
            raise NotAliveError(
                f"sandbox {record['id']} ended right after its start: {error}"
            ) from error

    async def _plan_routes(self, egress: Egress) -> list[network.Route]:
        """Return what a sandbox may reach. Raise for rules this machine cannot apply."""
        if not egress.internet:
            return []
        if (egress.allow_out or egress.deny_out) and self._backend is None:
            raise RuntimeFaultError(
                "allow and deny lists need a network backend: see `sandkeeper doctor`"
            )
        try:
            plain = await self._names.resolve(egress)
            return network.plan_routes(plain.allow_out, plain.deny_out)
        except network.BadRangeError as error:
            raise RuntimeFaultError(str(error)) from error

    async def _call_spawner(self, record: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
        """Send an order to the spawner; raise its errors as the contract's."""
        if self._spawner is None:
            raise RuntimeFaultError("the runtime has not been started")
        answer, descriptors = await self._spawner.call(record)
        if "error" not in answer:
            return answer, descriptors
        for fd in descriptors:
            os.close(fd)
        message, number = answer["message"], answer.get("errno")
        if answer["error"] == "gone":
            raise NotAliveError(message)
        if answer["error"] == "full" or "No space left" in message:
            raise DiskFullError(message)
        if answer["error"] == "missing" and record["op"] == "spawn":
            raise FileNotFoundError(number, message)
        raise RuntimeFaultError(message)

    async def _fetch_sockets(self, handle: SandboxHandle, family: socket.AddressFamily) -> None:
        """Make some sockets ahead, of the one family that has run out."""
        order = {"op": "sockets", "sandbox": handle.record}
        families = [int(family)] * _SOCKETS_AHEAD[family]
        _answer, descriptors = await self._call_spawner({**order, "families": families})
        for fd in descriptors:
            handle.return_socket(socket.socket(fileno=fd))

    async def _set_frozen(self, sandbox_id: str, *, frozen: bool) -> None:
        async with self._lock(sandbox_id):
            handle = self._get_handle(sandbox_id)
            if handle.record["frozen"] == frozen:
                return
            group = handle.record["group"]
            if group and cgroups.can_freeze(group):
                if not await asyncio.to_thread(cgroups.set_frozen, group, frozen=frozen):
                    await asyncio.to_thread(cgroups.set_frozen, group, frozen=not frozen)
                    raise RuntimeFaultError(f"the kernel did not freeze sandbox {sandbox_id}")
            else:
                number = signal.SIGSTOP if frozen else signal.SIGCONT
                await self._call_spawner(
                    {"op": "signal", "sandbox": handle.record, "signal": int(number)}
                )
            if not frozen:
                handle.start_cpu_window()
            handle.record["frozen"] = frozen
            process_records.write_record(self._run, handle.record)

    async def _set_full(self, handle: SandboxHandle, *, is_full: bool) -> None:
        """Forbid the programs of a sandbox to write files, or allow it again."""
        record = handle.record
        before = record.get("full", False)
        # Set first, because commands that are started now get their limits by it.
        record["full"] = is_full
        try:
            if not handle.is_gvisor:
                await self._call_spawner({"op": "limit_files", "sandbox": record})
        except BaseException:
            record["full"] = before
            raise
        if is_full != before:
            can = "cannot" if is_full else "can again"
            log.warning("sandbox %s %s write files: its disk's limit", record["id"], can)
            process_records.write_record(self._run, record)

    async def _end(self, sandbox_id: str) -> None:
        if sandbox_id not in self._handles and process_records.is_booting(self._run, sandbox_id):
            # An order was lost or timed out; its outcome is in the sandbox's files.
            await asyncio.to_thread(self._await_boot, sandbox_id)
            record = process_records.find_record(self._run, sandbox_id)
            if record is not None:
                await self._undo_boot(record)
            else:
                # A first process may live though; a second one must not get the same disk.
                await asyncio.to_thread(orphans.end_unwritten, self._data, sandbox_id)
        handle = self._handles.pop(sandbox_id, None)
        if handle is None:
            return
        handle.kill()
        group = handle.record["group"]
        if group and handle.record["frozen"] and cgroups.can_freeze(group):
            # With cgroups version 1, a frozen process ends only after it thaws.
            with contextlib.suppress(OSError):
                await asyncio.to_thread(cgroups.set_frozen, group, frozen=False)
        try:
            await asyncio.wait_for(handle.wait_for_end(), _END_WAIT_S)
        except TimeoutError:
            self._handles[sandbox_id] = handle
            raise RuntimeFaultError(f"sandbox {sandbox_id} does not end") from None
        handle.close()
        for child in self.children(sandbox_id):
            assert isinstance(child, RunningChild)
            child.record_end(-signal.SIGKILL)
            self._forget(child.number)
        await asyncio.to_thread(self._delete_resources, handle.record)

    def _delete_resources(self, record: dict[str, Any]) -> None:
        """Release everything a dead sandbox still holds, except for its disk."""
        if record["machine"] == self._machine:
            # Where only gVisor's kernel has ended, the first process is still there.
            process_records.kill_known({"pid": record["pid"], "started": record["started"]})
            if record["helper"]:
                process_records.kill_known(record["helper"])
        if record["group"]:
            cgroups.remove(record["group"])
        process_records.forget(self._run, record["id"])

    # Messages of the spawner

    def _adopt(self, described: dict[str, Any], descriptors: list[int]) -> RunningChild:
        assert self._spawner is not None

        child = RunningChild(described, descriptors, self._spawner, self._handles.get, self._forget)
        code = self._early_codes.pop(child.number, None)
        if code is not None:
            child.record_end(code)
        else:
            self._children[child.number] = child
        return child

    def _forget(self, number: int) -> None:
        """Release everything held for a process that has ended."""
        self._children.pop(number, None)
        if self._spawner is not None:
            self._spawner.notify({"op": "forget", "child": number})

    def _on_spawner_message(self, record: dict[str, Any], descriptors: list[int]) -> None:
        if record["event"] == "child":
            self._adopt(record, descriptors)
        elif record["event"] == "exit":
            child = self._children.pop(record["child"], None)
            if child is not None:
                child.record_end(record["code"])
                return
            # A short process may end before the answer that announces it is processed.
            self._early_codes[record["child"]] = record["code"]
            while len(self._early_codes) > _EARLY_CODES_MAX:
                self._early_codes.pop(next(iter(self._early_codes)))

    def _on_spawner_lost(self) -> None:
        log.warning("the spawner ended; exit codes of running processes are lost")
        for child in self._children.values():
            child.on_spawner_lost()
        self._early_codes.clear()
