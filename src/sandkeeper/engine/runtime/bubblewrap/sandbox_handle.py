"""One living sandbox as the engine holds it: its first process, its root folder, its sockets."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import socket
import time
from pathlib import Path
from typing import Any

from sandkeeper.engine.runtime.bubblewrap.disks import Disks
from sandkeeper.engine.runtime.bubblewrap.user_database import (
    PASSWD,
    Account,
    UnknownUserError,
    UserDatabase,
    map_ids,
    read_opened,
)
from sandkeeper.engine.runtime.contract import Isolation, ResourceLimits, Usage
from sandkeeper.engine.runtime.linux import cgroups, process_records
from sandkeeper.engine.runtime.linux.paths import open_below

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
# CPU usage is measured over at least this time. Shorter makes one short burst look like a busy
# sandbox; longer shows a sandbox that has become busy later.
_CPU_WINDOW_S = 1.0
# While no program inside runs, its memory changes only if the kernel takes some back. Reading it is
# most of the cost of measuring, and most of many sandboxes are idle.
_IDLE_MEMORY_S = 60.0


class SandboxHandle:
    """Holds a sandbox's first process by descriptor, so nothing here can affect another process."""

    def __init__(self, record: dict[str, Any]) -> None:
        """Open the handle. Raises OSError if the first process has ended."""
        self.record = record
        self._first = os.pidfd_open(record["pid"])
        self._sentry: int | None = None
        self._sockets: list[socket.socket] = []
        self._users: tuple[tuple[int, ...], UserDatabase] = ((), UserDatabase(b""))
        self._memory = (0.0, -1.0, (0, 0))
        """When the group's memory was read, the CPU seconds used by then, and what it said."""
        try:
            if not process_records.is_same(record["pid"], record["started"]):
                raise ProcessLookupError(f"process {record['pid']} is another one now")
            if self.is_gvisor:
                self._sentry = os.pidfd_open(record["sentry"]["pid"])
                if not process_records.is_same(**record["sentry"]):
                    raise ProcessLookupError("gVisor's kernel has ended")
            way = f"/proc/{record['pid']}/root"
            self.root = os.open(way, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            self._close_processes()
            raise
        self.start_cpu_window()

    @property
    def is_gvisor(self) -> bool:
        """Return whether the programs run on gVisor's kernel."""
        return bool(self.record.get("isolation") == Isolation.GVISOR)

    def close(self) -> None:
        self._close_processes()
        os.close(self.root)
        for sock in self._sockets:
            sock.close()
        self._sockets.clear()

    def _close_processes(self) -> None:
        os.close(self._first)
        if self._sentry is not None:
            os.close(self._sentry)

    def is_alive(self) -> bool:
        return self._runs(self._first) and (self._sentry is None or self._runs(self._sentry))

    def _runs(self, process: int) -> bool:
        poll = select.poll()
        poll.register(process, select.POLLIN)
        return not poll.poll(0)

    def kill(self) -> None:
        """End the first process; the kernel ends all others with it."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._first, signal.SIGKILL)

    async def wait_for_end(self) -> None:
        """Wait until the first process and, with it, every other one has ended."""
        if not self._runs(self._first):
            return
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        loop.add_reader(self._first, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(self._first)

    def kill_session(self, session: int) -> None:
        """End every process of one session, named as the sandbox itself names it."""
        for number, fields in self._list_processes():
            if int(fields[3]) != session:
                continue
            with contextlib.suppress(OSError):
                folder = os.open(f"proc/{number}", os.O_RDONLY | os.O_DIRECTORY, dir_fd=self.root)
                try:
                    signal.pidfd_send_signal(folder, signal.SIGKILL)
                finally:
                    os.close(folder)

    def list_ids(self) -> dict[str, tuple[int, int]]:
        """Return the host's ids of every user that the sandbox's passwd file names now."""
        found = {}
        for account in self._read_users().list():
            with contextlib.suppress(UnknownUserError):
                found[account.name] = self._map_ids(account)
        return found

    def find_account(self, name: str) -> tuple[tuple[int, int], str]:
        """Return the host's ids and the home folder of a user. Raises UnknownUserError."""
        account = self._read_users().find(name)
        return self._map_ids(account), account.home

    def _map_ids(self, account: Account) -> tuple[int, int]:
        return map_ids(account, self.record["uid_base"], (os.getuid(), os.getgid()))

    def _read_users(self) -> UserDatabase:
        try:
            fd = open_below(self.root, PASSWD, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
        except OSError:
            return UserDatabase(b"")
        try:
            looks = os.fstat(fd)
            # Of its times, a program inside cannot set the last change.
            seen = (looks.st_dev, looks.st_ino, looks.st_ctime_ns, looks.st_size)
            if seen != self._users[0]:
                self._users = (seen, UserDatabase(read_opened(fd)))
        except OSError:
            return UserDatabase(b"")
        finally:
            os.close(fd)
        return self._users[1]

    def take_socket(self, family: int) -> socket.socket | None:
        for position, sock in enumerate(self._sockets):
            if sock.family == family:
                return self._sockets.pop(position)
        return None

    def return_socket(self, sock: socket.socket) -> None:
        self._sockets.append(sock)

    def start_cpu_window(self) -> None:
        """Measure CPU usage from now on: what was before, as a pause, does not count."""
        self._cpu_pct = 0.0
        self._window_start = (time.monotonic(), self._read_usage()[0])

    def measure(self, disks: Disks) -> Usage:
        """Return the sandbox's current usage. CPU usage is since the last call, or the start."""
        limits = self.record["limits"]
        cpu_s, memory = self._read_usage()
        began, cpu_before_s = self._window_start
        now = time.monotonic()
        if now - began >= _CPU_WINDOW_S:
            self._cpu_pct = max(0.0, 100 * (cpu_s - cpu_before_s) / (now - began))
            self._window_start = (now, cpu_s)
        # Sandboxes that an earlier version booted have no limit for their disk.
        disk = limits.get("disk_mb", ResourceLimits().disk_mb) * 1024 * 1024
        # Commands find it there, for `df`.
        self.record["disk_used"] = disks.measure(Path(self.record["upper"]), disk)
        return Usage(
            cpu_count=limits["cpu_count"],
            cpu_used_pct=round(self._cpu_pct, 2),
            mem_used=memory[0],
            mem_total=limits["memory_mb"] * 1024 * 1024,
            mem_cache=memory[1],
            disk_used=self.record["disk_used"],
            disk_total=disk,
        )

    def _read_usage(self) -> tuple[float, tuple[int, int]]:
        """Return the CPU seconds used so far, and the bytes of memory in use and in caches."""
        group = self.record["group"]
        cpu_s = cgroups.read_cpu_s(group) if group else None
        memory = self._read_memory(group, cpu_s) if group else None
        if cpu_s is not None and memory is not None:
            return cpu_s, memory
        ticks, pages = 0, 0
        for _number, fields in self._list_processes():
            ticks += int(fields[11]) + int(fields[12])
            pages += int(fields[21])
        return (
            ticks / _TICKS if cpu_s is None else cpu_s,
            (pages * _PAGE, 0) if memory is None else memory,
        )

    def _read_memory(self, group: cgroups.Group, cpu_s: float | None) -> tuple[int, int] | None:
        """Return the group's memory as it is, or as it was if nothing has run since."""
        now = time.monotonic()
        at, cpu_before_s, known = self._memory
        if cpu_s == cpu_before_s and now - at < _IDLE_MEMORY_S:
            return known
        memory = cgroups.read_memory(group)
        if memory is not None and cpu_s is not None:
            self._memory = (now, cpu_s, memory)
        return memory

    def _list_processes(self) -> list[tuple[str, list[str]]]:
        """Return every process inside with the fields of its `stat` after the name."""
        found = []
        try:
            listed = os.open("proc", os.O_RDONLY | os.O_DIRECTORY, dir_fd=self.root)
        except OSError:
            return []
        try:
            for name in os.listdir(listed):  # noqa: PTH208 -- a descriptor.
                if not name.isdigit():
                    continue
                with contextlib.suppress(OSError):
                    fd = os.open(f"{name}/stat", os.O_RDONLY, dir_fd=listed)
                    with open(fd, errors="replace") as file:  # noqa: PTH123 -- a descriptor.
                        found.append((name, file.read().rpartition(")")[2].split()))
        finally:
            os.close(listed)
        return found
