"""Migrations lead forward and back with the data kept, and end at the schema of the code."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import text
from sqlalchemy.engine import Connection

from sandkeeper.domain.errors import (
    InvalidSettingsError,
    SchemaMismatchError,
    SchemaTooNewError,
    StoreUnavailableError,
)
from sandkeeper.domain.owner import Owner
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.store import Store, open_store
from sandkeeper.store.database import Database, parse_url
from sandkeeper.store.schema import downgrade, find_revision, latest_revision, upgrade
from sandkeeper.store.tables.sandboxes import METADATA
from support.records import T0


def differences(connection: Connection) -> list[object]:
    def is_ours(name: str | None, *_: object) -> bool:
        # The index of the texts is not on every database, and SQLite's consists of tables.
        return not (name or "").startswith(("sandbox_search_index", "ix_sandbox_search_text"))

    options = {"compare_type": False, "include_name": is_ours}
    context = MigrationContext.configure(connection, opts=options)
    return list(compare_metadata(context, METADATA))


async def test_the_migrations_end_at_the_schema_of_the_code(store: Store) -> None:
    async with store.database.reading() as connection:
        assert await connection.run_sync(differences) == []
    assert await find_revision(store.database) == latest_revision()


async def test_back_and_forth_keeps_the_data_and_backfills_the_verification(store: Store) -> None:
    made = Sandbox(
        id="sb",
        owner=Owner.project("p"),
        provider="e2b",
        created_at=T0,
        updated_at=T0,
        state_since=T0,
        instance_id="i",
        reason="kept",
    )
    await store.sandboxes.insert(made)
    await downgrade(store.database, "0001")
    async with store.database.reading() as connection:
        row = (await connection.execute(text("SELECT * FROM sandboxes"))).mappings().one()
    assert (row["reason"], row["instance_id"]) == ("kept", "i")
    assert "last_verified_at" not in row
    await upgrade(store.database)
    assert await store.sandboxes.get("sb") == made.evolve(last_verified_at=T0)
    await downgrade(store.database, "base")
    await upgrade(store.database)
    assert await store.sandboxes.find("sb") is None


async def test_an_older_schema_is_refused_when_nothing_may_be_migrated(
    store: Store, database_url: str
) -> None:
    await downgrade(store.database, "0001")
    with pytest.raises(SchemaMismatchError):
        async with open_store(database_url, migrate=False):
            pass
    await upgrade(store.database)
    async with open_store(database_url, migrate=False) as opened:
        await opened.ping()


async def test_a_schema_of_a_newer_version_is_refused_and_left_as_it_is(
    store: Store, database_url: str
) -> None:
    async with store.database.writing() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    for migrate in (True, False):
        with pytest.raises(SchemaTooNewError, match="newer version"):
            async with open_store(database_url, migrate=migrate):
                pass
    assert await find_revision(store.database) == "9999"


async def test_replicas_that_start_at_once_migrate_once(store: Store, database_url: str) -> None:
    await downgrade(store.database, "base")

    async def start() -> None:
        async with open_store(database_url) as opened:
            await opened.ping()

    await asyncio.gather(*(start() for _ in range(4)))
    assert await find_revision(store.database) == latest_revision()


async def test_due_work_is_found_by_its_partial_index(store: Store) -> None:
    """Asked of the planner, because a scan would be right and only slow."""
    explain = "EXPLAIN QUERY PLAN" if store.database.is_sqlite else "EXPLAIN"
    query = (
        "SELECT id FROM sandboxes WHERE next_check_at IS NOT NULL AND next_check_at <= 5"
        " AND (claim_until IS NULL OR claim_until <= 5) ORDER BY next_check_at LIMIT 10"
    )
    async with store.database.writing() as connection:
        if not store.database.is_sqlite:
            await connection.execute(text("SET LOCAL enable_seqscan = off"))
        rows = (await connection.execute(text(f"{explain} {query}"))).all()
    assert "ix_sandboxes_due" in str(rows)


async def test_a_database_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailableError):
        async with open_store(f"sqlite:///{tmp_path}/none/store.db"):
            pass
    with pytest.raises(StoreUnavailableError):
        async with open_store("postgresql://user@127.0.0.1:1/none"):
            pass


def test_a_path_is_a_file_and_other_databases_are_refused() -> None:
    assert parse_url("/data/store.db").render_as_string() == "sqlite+aiosqlite:////data/store.db"
    assert Database("postgres://u@h/d").is_sqlite is False
    with pytest.raises(InvalidSettingsError):
        parse_url("mysql://h/d")
